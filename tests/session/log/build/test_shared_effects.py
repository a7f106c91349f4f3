"""Calls inside one another tell of the same effects, also when their record was read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from rath.session import Session
from rath.session.log.build import sharing_effects
from rath.session.persistence.store import FileStore
from rath.session.record import ToolRun
from rath.testing import tool_call
from tests.support.api import Entry
from tests.support.session_files import created, placed, tool_run, worked, writing
from tests.support.sessions import FunctionTool


def nested() -> Session:
    """Return a session in which a tool asked an agent that asked another one, which wrote."""

    def ask(session: Session, _: object) -> Any:
        return worked(session, writing("a", "1"), writing("b", "2")).text()

    def pass_on(session: Session, _: object) -> Any:
        return worked(session, tool_call("ask"), tools=[FunctionTool("ask", ask)]).text()

    tools = [FunctionTool("pass_on", pass_on)]
    return worked(placed(), tool_call("pass_on"), writing("a", "3"), tools=tools).synchronize()


def identities(entries: Any) -> list[list[int]]:
    """Return which effects are the same ones: the first place at which each was told."""
    known: dict[int, int] = {}
    runs = [entry for entry in entries if isinstance(entry, ToolRun)]
    return [[known.setdefault(id(e), len(known)) for e in run.file_effects] for run in runs]


def apart(entry: Entry) -> Entry:
    """Return an entry whose effects are its own, as a decoder makes them."""
    if not isinstance(entry, ToolRun):
        return entry
    return structs.replace(entry, file_effects=tuple(replace(each) for each in entry.file_effects))


def test_what_was_the_same_is_the_same_again() -> None:
    record = nested().record
    read = sharing_effects([apart(entry) for entry in record])
    assert identities(read) == identities(record)
    assert read == list(record)


def test_a_loaded_session_counts_an_effect_once(tmp_path: Path) -> None:
    session = nested()
    session.save(store=FileStore(tmp_path))
    loaded = Session.load(session.id, store=FileStore(tmp_path))
    told = [(each.call.id, each.effect.path) for each in loaded.files.effects()]
    assert told == [(each.call.id, each.effect.path) for each in session.files.effects()]


def test_equal_effects_of_calls_beside_each_other_stay_apart() -> None:
    runs = [tool_run(created("a", b"1"), call_id=name) for name in ("one", "two")]
    one, two = (structs.replace(run, operation=runs[0].operation) for run in runs)
    assert identities(sharing_effects([one, two])) == [[0], [1]]


def test_an_effect_in_another_sandbox_is_another_one() -> None:
    inner = tool_run(created("a", b"1", sandbox="here"))
    outer = tool_run(created("a", b"1", sandbox="there"))
    assert identities(sharing_effects([inner, outer])) == [[0], [1]]


def test_an_effect_is_shared_once() -> None:
    inner = tool_run(created("a", b"1"))
    outer = tool_run(created("a", b"1"), created("a", b"1"))
    assert identities(sharing_effects([inner, outer])) == [[0], [0, 1]]
