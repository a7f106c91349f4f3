"""What the record has of a tool call, also when it is cut off, and which calls run together."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rath import backend
from rath._async.runtime import runtime
from rath.backend import (
    BackendSandboxSpec,
    BackendToolCommandRun,
    BackendToolFilesWrite,
    CommandResult,
    ToolResult,
    registry,
)
from rath.backend.effects import UNOBSERVED, note_effect, paused_deadlines
from rath.backend.local import LocalBackend
from rath.backend.tool_types import BackendTool
from rath.flow.tool import FlowToolCall
from rath.llm import RathLLMAssistantMessage
from rath.session import Session
from rath.session.content import ToolCall
from rath.session.record import ToolRun
from rath.session.run.rounds import CUT_OFF, ContentCache, ToolRounds
from rath.session.tooling import ToolEffects
from rath.testing import FakeBackend, FakeSandbox, tool_call
from tests.support.api import FULL, offer
from tests.support.session_files import (
    FilesBackend,
    created,
    placed,
    running,
    worked,
    writing,
)
from tests.support.sessions import FunctionTool, entries_of, run
from tests.support.waiting import PATIENCE, at_a_deadline, wait_until

WAIT = 15.0


class SlowBackend(FilesBackend):
    """Knows two more commands: `hold` writes `a` and never ends, `look` only looks for effects.

    Args:
        looks: Seconds that `look` takes.
    """

    def __init__(self, looks: float = 0.0) -> None:
        super().__init__()
        self.looks = looks
        self.holds = threading.Event()

    async def adispatch(self, native: FakeSandbox, op: BackendTool) -> ToolResult | bool:
        match op:
            case BackendToolCommandRun("hold"):
                try:
                    self.holds.set()
                    await asyncio.Event().wait()
                finally:
                    note_effect(created("a", b"1"))
            case BackendToolCommandRun("look"):
                with paused_deadlines():
                    await asyncio.sleep(self.looks)
            case _:
                return await super().adispatch(native, op)
        return CommandResult(0, b"", b"", 0.0)


class CommandTool(FunctionTool):
    """A tool each call of which is one command."""

    runs_on_sandbox = True

    def __init__(self, name: str, *, timeout: float | None = None) -> None:
        super().__init__(name, lambda *_: None, timeout=timeout)

    def to_payload(self, arguments: Mapping[str, Any]) -> BackendTool:
        return BackendToolCommandRun(self.name)


def paths(call: ToolRun) -> list[str]:
    return [effect.path for effect in call.file_effects]


def cut_off_in(
    work: Callable[[Session], object], *, effects: ToolEffects = "non_idempotent"
) -> ToolRun:
    """Return the entry of a call that does `work` and is cut off then."""
    done, go_on = threading.Event(), threading.Event()

    def hold(session: Session, _: object) -> None:
        work(session)
        done.set()
        go_on.wait(WAIT)

    tool = FunctionTool("hold", hold)
    tool.effects = effects
    out = run([tool_call("hold", {"x": 1}), "never"], tool, user=placed())
    assert done.wait(WAIT)
    out.cancel()
    (call,) = entries_of(out, ToolRun)
    go_on.set()
    return call


def write(session: Session) -> None:
    session.require_sandbox().dispatch(BackendToolFilesWrite("a", "1"))


def test_a_command_that_is_cut_off_keeps_what_it_did() -> None:
    backend = SlowBackend()
    session = Session.from_user_message("go").bind_sandbox(backend.lazy())
    out = worked(session, running("hold"))
    assert backend.holds.wait(WAIT)
    out.cancel()
    (call,) = entries_of(out, ToolRun)
    assert (call.status, call.rows, call.arguments) == ("interrupted", (), {"cmd": "hold"})
    assert (call.file_effects, call.effect_gaps) == ((created("a", b"1"),), ())
    assert call.duration_ms > 0
    assert call.sandbox is not None


def test_a_function_that_is_cut_off_keeps_what_it_did_and_says_that_it_may_go_on() -> None:
    call = cut_off_in(write)
    assert (call.status, call.arguments, paths(call)) == ("interrupted", {"x": 1}, ["a"])
    assert call.effect_gaps == (CUT_OFF,)


def test_a_call_that_was_cut_off_before_it_began_did_nothing() -> None:
    backend = SlowBackend()
    session = Session.from_user_message("go").bind_sandbox(backend.lazy())
    both = running("hold", writing("b", "1", id="second"), id="first")
    out = worked(session, both)
    assert backend.holds.wait(WAIT)
    out.cancel()
    first, second = entries_of(out, ToolRun)
    assert (paths(first), first.status) == (["a"], "interrupted")
    assert (paths(second), second.status, second.rows) == ([], "interrupted", ())
    assert second.effect_gaps == ()


def test_what_a_call_that_was_cut_off_returns_to_be_awaited_is_closed() -> None:
    has_begun, may_return = threading.Event(), threading.Event()
    returned: list[Coroutine[Any, Any, str]] = []

    async def answer() -> str:
        return "never read"

    def begin(*_: object) -> object:
        has_begun.set()
        assert may_return.wait(PATIENCE)
        returned.append(answer())
        return returned[0]

    session = run([tool_call("begin")], FunctionTool("begin", begin))
    assert has_begun.wait(PATIENCE)
    session.cancel()
    session.synchronize()
    may_return.set()
    wait_until(lambda: [*map(inspect.getcoroutinestate, returned)] == [inspect.CORO_CLOSED])


def test_commands_of_a_thread_without_context_leave_a_gap() -> None:
    def use_thread(session: Session, _: object) -> None:
        with ThreadPoolExecutor() as pool:
            pool.submit(write, session).result(WAIT)

    def use_own(session: Session, _: object) -> None:
        write(session)

    tools = [FunctionTool("threads", use_thread), FunctionTool("own", use_own)]
    out = run([tool_call("threads"), tool_call("own"), "x"], *tools, user=placed())
    threads, own = entries_of(out, ToolRun)
    assert (paths(threads), threads.effect_gaps) == ([], (UNOBSERVED,))
    assert (paths(own), own.effect_gaps) == ([], ())


def test_looking_for_effects_takes_no_time_of_a_tool() -> None:
    def run_until(deadline: float) -> tuple[float, ToolRun]:
        session = Session.from_user_message("go").bind_sandbox(SlowBackend(deadline * 1.2).open())
        tool = CommandTool("look", timeout=deadline)
        (call,) = entries_of(run([tool_call("look"), "x"], tool, user=session), ToolRun)
        return deadline, call

    # What the call takes itself is the machine's time.
    deadline, call = at_a_deadline(run_until, lambda made: made[1].status == "done")
    assert call.status == "done"
    assert call.duration_ms < deadline * 1000


def test_a_record_that_holds_enough_keeps_digests_only() -> None:
    session = placed()

    def work(session: Session, _: object) -> None:
        write(session)

    tool = FunctionTool("w", work)
    rounds = ToolRounds({"w": offer(tool)}, session.core.placement, None, contents=ContentCache(0))
    (finished,) = runtime().run(
        lambda: rounds.run([ToolCall("1", "w", "{}")], session, {}), label="a round"
    )
    assert finished.effects == (created("a", b"1"),)
    assert [each.after.data for each in finished.effects if each.after] == [None]
    assert finished.effect_gaps == (FULL,)


N_TURNS = 20


"""Turns of the event loop that a write_all leaves to others, so that those beside it begin."""


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


def write_all(user: Session, *turns: Any, tools: tuple[FlowToolCall, ...] = ()) -> None:
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
def test_writes_of_one_file_run_one_after_the_other(
    name: str, place: Callable[..., Session], log: Log, tmp_path: Path
) -> None:
    names = ("a.txt", str(tmp_path / "a.txt"), "./x/../a.txt", "link.txt")
    write_all(place(kind_of(name)), writes("x/b.txt"), writes(*names))
    assert log[2:] == in_turn(*names)
    assert (tmp_path / "a.txt").read_text() == names[-1]


def test_files_that_a_backend_cannot_name_have_one_lane(
    place: Callable[..., Session], log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    class Nameless(LocalBackend):
        def canonical_path(self, sandbox: Any, path: str) -> str:
            raise OSError("no names")

    write_all(place(Nameless), writes("a.txt", "b.txt"))
    assert log == in_turn("a.txt", "b.txt")
    assert "could not name the files of a round" in caplog.text


@pytest.mark.parametrize(
    "paths",
    [
        ("link.txt", "a.txt"),
        ("out/../b.txt", "x/b.txt"),
        ("out/new/b.txt", "x/deep/new/b.txt"),
    ],
    ids=["a file", "a directory", "a missing directory"],
)
def test_links_are_followed_also_where_the_workspace_is_not_open_yet(
    paths: tuple[str, str], place: Callable[..., Session], log: Log
) -> None:
    write_all(place(), writes(*paths))
    assert log == in_turn(*paths)


def test_on_a_sandbox_elsewhere_paths_are_compared_by_their_names(
    place: Callable[..., Session], log: Log
) -> None:
    root = FakeBackend().open().describe().root
    names = ("a.txt", f"{root}/a.txt", "./x/../a.txt")
    write_all(place(FakeBackend), writes(*names), writes("b.txt", "c.txt"))
    assert log[: 2 * len(names)] == in_turn(*names)
    assert [what for what, _ in log[2 * len(names) :]] == ["begin", "begin", "end", "end"]


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
    write_all(place(), RathLLMAssistantMessage(tool_calls=calls), tools=(tool,))
    assert [what for what, _ in log] == ["begin", "end", "append"]
