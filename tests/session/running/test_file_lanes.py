"""Which calls on files of one round run side by side: those on different files, and no others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rath import backend
from rath.backend import BackendSandboxSpec, BackendToolFilesWrite, registry
from rath.backend.local import LocalBackend
from rath.flow.tool import FlowToolCall
from rath.llm import RathLLMAssistantMessage
from rath.session import Session
from rath.testing import FakeBackend, tool_call
from tests.support.sessions import FunctionTool, run

N_TURNS = 20
"""Turns of the event loop that a write leaves to others, so that those beside it begin."""

Log = list[tuple[str, str]]


def observed(base: type[Any], log: Log) -> type[Any]:
    """Return a backend of a kind that notes when writes begin and end."""

    async def adispatch(self: Any, native: Any, op: Any) -> Any:
        if not isinstance(op, BackendToolFilesWrite):
            return await base.adispatch(self, native, op)
        log.append(("begin", op.path))
        for _ in range(N_TURNS):
            await asyncio.sleep(0)
        result = await base.adispatch(self, native, op)
        log.append(("end", op.path))
        return result

    return type("Observed", (base,), {"adispatch": adispatch, "name": "observed"})


@pytest.fixture
def log() -> Log:
    return []


@pytest.fixture
def place(log: Log, tmp_path: Path) -> Generator[Callable[..., Session]]:
    """Give a session in a workspace with a file, a directory and a link to each."""
    (tmp_path / "x" / "deep").mkdir(parents=True)
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "link.txt").symlink_to("a.txt")
    (tmp_path / "out").symlink_to("x/deep")

    def placed(base: type[Any] = LocalBackend) -> Session:
        backend.register("observed")(observed(base, log))
        user = Session.from_user_message("go")
        return user.to("observed", spec=BackendSandboxSpec(working_dir=str(tmp_path)))

    yield placed
    registry.unregister("observed")


def writes(*paths: str) -> RathLLMAssistantMessage:
    """Return a turn that writes each of these files."""
    first, *others = (
        tool_call("write_workspace_file", {"path": path, "content": path}, id=f"w{at}")
        for at, path in enumerate(paths)
    )
    calls = [call for turn in (first, *others) for call in turn.tool_calls or ()]
    return RathLLMAssistantMessage(tool_calls=tuple(calls))


def write(user: Session, *turns: Any, tools: tuple[FlowToolCall, ...] = ()) -> None:
    out = run([*turns, "done"], *tools, user=user, system_tools=True)
    assert out.text() == "done"
    out.close_sandbox()
    user.close_sandbox()


def in_turn(*paths: str) -> Log:
    return [(what, path) for path in paths for what in ("begin", "end")]


def kind_of(name: str) -> type[Any]:
    """Return a kind of backend that keeps its files on this host."""
    if not backend.is_available(name):
        pytest.skip(f"{name} is not available here")
    return backend.get_class(name)


@pytest.mark.parametrize("name", ["local", "bubblewrap"])
def test_writes_of_different_files_run_side_by_side(
    name: str, place: Callable[..., Session], log: Log
) -> None:
    write(place(kind_of(name)), writes("a.txt", "b.txt"))
    assert [what for what, _ in log] == ["begin", "begin", "end", "end"]


@pytest.mark.parametrize("name", ["local", "bubblewrap"])
def test_writes_of_one_file_run_one_after_the_other(
    name: str, place: Callable[..., Session], log: Log, tmp_path: Path
) -> None:
    names = ("a.txt", str(tmp_path / "a.txt"), "./x/../a.txt", "link.txt")
    write(place(kind_of(name)), writes("x/b.txt"), writes(*names))
    assert log[2:] == in_turn(*names)
    assert (tmp_path / "a.txt").read_text() == names[-1]


def test_files_that_a_backend_cannot_name_have_one_lane(
    place: Callable[..., Session], log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    class Nameless(LocalBackend):
        def canonical_path(self, sandbox: Any, path: str) -> str:
            raise OSError("no names")

    write(place(Nameless), writes("a.txt", "b.txt"))
    assert log == in_turn("a.txt", "b.txt")
    assert "could not name the files of a round" in caplog.text


def test_a_workspace_that_is_not_open_yet_is_looked_at_too(
    place: Callable[..., Session], log: Log
) -> None:
    write(place(), writes("link.txt", "a.txt"))
    assert log == in_turn("link.txt", "a.txt")


def test_what_follows_a_link_to_a_directory_is_where_the_link_leads(
    place: Callable[..., Session], log: Log
) -> None:
    write(place(), writes("out/../b.txt", "x/b.txt"))
    assert log == in_turn("out/../b.txt", "x/b.txt")


def test_a_link_in_the_way_to_a_missing_directory_is_followed(
    place: Callable[..., Session], log: Log
) -> None:
    write(place(), writes("out/new/b.txt", "x/deep/new/b.txt"))
    assert log == in_turn("out/new/b.txt", "x/deep/new/b.txt")


def test_a_link_that_the_round_itself_makes_is_followed(
    place: Callable[..., Session], log: Log
) -> None:
    linking = tool_call("run_shell_command", {"cmd": "ln -s a.txt late.txt"}, id="ln")
    calls = (*(linking.tool_calls or ()), *(writes("late.txt", "a.txt").tool_calls or ()))
    write(place(), RathLLMAssistantMessage(tool_calls=calls))
    assert log == in_turn("late.txt", "a.txt")


def test_a_copied_workspace_that_is_not_open_yet_has_one_lane(
    place: Callable[..., Session], log: Log
) -> None:
    user = place()
    branch = user.fork(workspace="copy")
    write(branch, writes("link.txt", "a.txt"))
    assert log == in_turn("link.txt", "a.txt")
    user.close_sandbox()


def test_on_a_sandbox_elsewhere_paths_are_compared_by_their_names(
    place: Callable[..., Session], log: Log
) -> None:
    root = FakeBackend().open().describe().root
    names = ("a.txt", f"{root}/a.txt", "./x/../a.txt")
    write(place(FakeBackend), writes(*names), writes("b.txt", "c.txt"))
    assert log[: 2 * len(names)] == in_turn(*names)
    assert [what for what, _ in log[2 * len(names) :]] == ["begin", "begin", "end", "end"]


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "x" * 5000, "../../etc/passwd", ""])
def test_a_path_that_is_none_disturbs_no_other_call(
    path: str, place: Callable[..., Session], tmp_path: Path
) -> None:
    write(place(), writes(path, "b.txt"))
    assert (tmp_path / "b.txt").read_text() == "b.txt"


def test_a_tool_of_the_program_shares_the_lane_of_a_file(
    place: Callable[..., Session], log: Log, tmp_path: Path
) -> None:
    def append(_: Session, arguments: Mapping[str, Any]) -> str:
        log.append(("append", arguments["file"]))
        return "ok"

    class Appending(FunctionTool):
        def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
            return ("fs", arguments["file"])

    tool = Appending("append", append, parallel_safe=True)
    appending = tool_call("append", {"file": os.fspath(tmp_path / "a.txt")}, id="own")
    calls = (*(writes("link.txt").tool_calls or ()), *(appending.tool_calls or ()))
    write(place(), RathLLMAssistantMessage(tool_calls=calls), tools=(tool,))
    assert [what for what, _ in log] == ["begin", "end", "append"]
