"""What is kept of a tool call: its effects, its own time, its place, also when it is cut off."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rath._async.runtime import runtime
from rath.backend import (
    BackendToolCommandRun,
    BackendToolFilesWrite,
    CommandResult,
    ToolResult,
)
from rath.backend.effects import note_effect
from rath.backend.own_time import looking
from rath.backend.tool_types import BackendTool
from rath.backend.unseen import UNOBSERVED
from rath.session import Session
from rath.session.content import ToolCall
from rath.session.record import ToolRun
from rath.session.run.rounds import CUT_OFF, ToolRounds
from rath.session.tooling import ToolEffects
from rath.testing import FakeBackend, FakeSandbox, tool_call
from tests.support.api import FULL, ContentCache, offer
from tests.support.session_files import FilesBackend, created, placed, running, worked, writing
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import at_a_deadline

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
                with looking():
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


def calls_of(session: Session) -> list[ToolRun]:
    return [entry for entry in session.record if isinstance(entry, ToolRun)]


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
    (call,) = calls_of(out)
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
    (call,) = calls_of(out)
    assert (call.status, call.rows, call.arguments) == ("interrupted", (), {"cmd": "hold"})
    assert (call.file_effects, call.effect_gaps) == ((created("a", b"1"),), ())
    assert call.duration_ms > 0
    assert call.sandbox is not None


def test_a_function_that_is_cut_off_keeps_what_it_did_and_says_that_it_may_go_on() -> None:
    call = cut_off_in(write)
    assert (call.status, call.arguments, paths(call)) == ("interrupted", {"x": 1}, ["a"])
    assert call.effect_gaps == (CUT_OFF,)


def test_a_function_that_reads_leaves_no_gap_when_it_is_cut_off() -> None:
    assert cut_off_in(lambda _: None, effects="read_only").effect_gaps == ()


def test_a_call_that_was_cut_off_before_it_began_did_nothing() -> None:
    backend = SlowBackend()
    session = Session.from_user_message("go").bind_sandbox(backend.lazy())
    both = running("hold", writing("b", "1", id="second"), id="first")
    out = worked(session, both)
    assert backend.holds.wait(WAIT)
    out.cancel()
    first, second = calls_of(out)
    assert (paths(first), first.status) == (["a"], "interrupted")
    assert (paths(second), second.status, second.rows) == ([], "interrupted", ())
    assert second.effect_gaps == ()


def test_commands_of_a_thread_without_context_leave_a_gap() -> None:
    def use_thread(session: Session, _: object) -> None:
        with ThreadPoolExecutor() as pool:
            pool.submit(write, session).result(WAIT)

    def use_own(session: Session, _: object) -> None:
        write(session)

    tools = [FunctionTool("threads", use_thread), FunctionTool("own", use_own)]
    out = run([tool_call("threads"), tool_call("own"), "x"], *tools, user=placed())
    threads, own = calls_of(out)
    assert (paths(threads), threads.effect_gaps) == ([], (UNOBSERVED,))
    assert (paths(own), own.effect_gaps) == ([], ())


def test_commands_before_a_call_are_none_of_its_business() -> None:
    session = placed({"a": "0"})
    (call,) = calls_of(worked(session, writing("a", "1")))
    assert (paths(call), call.effect_gaps) == (["a"], ())


def test_a_call_ran_where_the_session_was_when_it_ended() -> None:
    session = Session.from_user_message("go").bind_sandbox(FakeBackend().lazy())
    pure = FunctionTool("pure", lambda *_: None)
    both = tool_call("pure", {}, writing("a", "1", id="second"), id="first")
    first, second = calls_of(worked(session, both, tools=[pure]))
    assert first.sandbox is None
    assert second.sandbox is not None
    assert [effect.sandbox for effect in second.file_effects] == [second.sandbox.sandbox_id]


def test_effects_elsewhere_say_where() -> None:
    elsewhere = FakeBackend().open()

    def write_both(session: Session, _: object) -> None:
        elsewhere.dispatch(BackendToolFilesWrite("b", "1"))
        write(session)

    (call,) = calls_of(run([tool_call("w"), "x"], FunctionTool("w", write_both), user=placed()))
    elsewhere.backend.close(elsewhere)
    assert call.sandbox is not None
    assert [(each.path, each.sandbox) for each in call.file_effects] == [
        ("b", elsewhere.handle),
        ("a", call.sandbox.sandbox_id),
    ]


def test_looking_for_effects_takes_no_time_of_a_tool() -> None:
    def run_until(deadline: float) -> tuple[float, ToolRun]:
        session = Session.from_user_message("go").bind_sandbox(SlowBackend(deadline * 1.2).open())
        tool = CommandTool("look", timeout=deadline)
        (call,) = calls_of(run([tool_call("look"), "x"], tool, user=session))
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
    rounds = ToolRounds({"w": offer(tool)}, session.placement, None, contents=ContentCache(0))
    (finished,) = runtime().run(
        lambda: rounds.run([ToolCall("1", "w", "{}")], session, {}), label="a round"
    )
    assert finished.effects == (created("a", b"1"),)
    assert [each.after.data for each in finished.effects if each.after] == [None]
    assert finished.effect_gaps == (FULL,)
