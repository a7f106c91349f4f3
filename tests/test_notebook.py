"""The extension of IPython: runs of a cell, shown as long as they go on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rath import flow, notebook
from rath.llm import RathLLMChatRequest
from rath.session import Session
from rath.testing import ScriptedClient


class Shown:
    """What was shown, and what it changed to."""

    def __init__(self) -> None:
        self.pictures: list[str] = []
        self.is_shown = threading.Event()

    def __call__(self, picture: Any, display_id: bool = True) -> Shown:
        assert display_id
        self.update(picture)
        return self

    def update(self, picture: Any, /) -> None:
        self.pictures.append(picture._repr_html_())  # the protocol of IPython
        self.is_shown.set()


@pytest.fixture
def shown() -> Shown:
    return Shown()


def waits_for(event: threading.Event) -> Callable[[RathLLMChatRequest], str]:
    def answer(_: RathLLMChatRequest) -> str:
        event.wait()
        return "done at last"

    return answer


def test_a_run_is_shown_while_it_goes_on_and_at_its_end(shown: Shown) -> None:
    runs = notebook.LiveRuns(shown, seconds=0.01)
    agent = flow.Agent("", ScriptedClient([waits_for(shown.is_shown)]).provider)
    runs.begin()
    out = agent(Session.from_user_message("go"))
    assert out.text() == "done at last"
    runs.end()
    assert "1 pending" in shown.pictures[0]
    assert "0 pending" in shown.pictures[-1]
    assert "done at last" in shown.pictures[-1]


def test_a_cell_without_runs_shows_nothing(shown: Shown) -> None:
    runs = notebook.LiveRuns(shown, seconds=0.01)
    runs.begin()
    runs.end()
    assert not shown.pictures


def test_a_cell_inside_a_cell_leaves_nobody_watching(shown: Shown) -> None:
    runs = notebook.LiveRuns(shown, seconds=0.01)
    runs.begin()
    runs.begin()
    runs.end()
    runs.end()
    runs.begin()
    agent = flow.Agent("", ScriptedClient([waits_for(shown.is_shown)]).provider)
    agent(Session.from_user_message("go")).synchronize()
    runs.end()
    assert "<b>1 run</b>" in shown.pictures[-1]


def test_runs_after_the_cell_are_not_shown(shown: Shown) -> None:
    runs = notebook.LiveRuns(shown, seconds=0.01)
    runs.begin()
    runs.end()
    agent = flow.Agent("", ScriptedClient(["now"]).provider)
    assert agent(Session.from_user_message("go")).text() == "now"
    assert not shown.pictures


def test_the_extension_is_loaded_and_unloaded(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("IPython.display")
    vars(module)["display"] = shown
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    events: dict[str, list[Callable[..., object]]] = {"pre_run_cell": [], "post_run_cell": []}

    class Events:
        def register(self, event: str, function: Callable[..., object]) -> None:
            events[event].append(function)

        def unregister(self, event: str, function: Callable[..., object]) -> None:
            events[event].remove(function)

    shell: Any = SimpleNamespace(events=Events())
    notebook.load_ipython_extension(shell)
    notebook.load_ipython_extension(shell)  # %reload_ext
    assert [len(each) for each in events.values()] == [1, 1]
    notebook.unload_ipython_extension(shell)
    assert [len(each) for each in events.values()] == [0, 0]
