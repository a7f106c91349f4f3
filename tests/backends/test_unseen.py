"""Operations whose effects nobody was told leave a gap."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from rath.backend import (
    Backend,
    BackendSandbox,
    BackendSandboxSpec,
    BackendTool,
    BackendToolCommandRun,
    BackendToolFilesRead,
    Capabilities,
    CommandResult,
    FileEffect,
    IsolationLevel,
    ToolResult,
    observe_effects,
)
from rath.backend.effects import EffectLog, UnobservedOps, note_effect, note_gap
from rath.testing import FakeBackend


class SilentBackend(Backend):
    """Runs what it is given and does not say what that changed, but for some commands."""

    name = "silent"

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(
            IsolationLevel.PROCESS,
            supports_command=True,
            supports_filesystem=True,
            supports_code_interpreter=False,
        )

    @classmethod
    def supported_calls(cls) -> frozenset[type[BackendTool]]:
        return frozenset({BackendToolCommandRun, BackendToolFilesRead})

    def sandbox_count(self) -> int:
        return 0

    async def aopen(self, spec: BackendSandboxSpec | None) -> str:
        return "open"

    async def aclose(self, native: str) -> None: ...

    async def adispatch(self, native: str, op: BackendTool) -> ToolResult | bool:
        match op:
            case BackendToolCommandRun("told"):
                note_effect(FileEffect("a", "created", None, None))
            case BackendToolCommandRun("gap"):
                note_gap("because")
            case BackendToolCommandRun("broken"):
                raise ValueError("broken")
            case _:
                pass
        return CommandResult(0, b"", b"", 0.0)


SILENT = [
    "the silent backend does not tell what its operations change "
    "(capabilities().observes_effects is False)"
]


def observed(op: BackendTool) -> EffectLog:
    with SilentBackend().open() as sandbox, observe_effects() as effects, suppress(ValueError):
        sandbox.dispatch(op)
    return effects


def test_a_backend_that_tells_no_effects_leaves_a_gap() -> None:
    assert observed(BackendToolCommandRun("rm -r .")).gaps == SILENT


def test_a_failure_in_such_a_backend_leaves_one_too() -> None:
    assert observed(BackendToolCommandRun("broken")).gaps == SILENT


def test_an_effect_that_it_tells_after_all_fills_the_gap() -> None:
    effects = observed(BackendToolCommandRun("told"))
    assert ([each.path for each in effects], effects.gaps) == (["a"], [])


def test_a_gap_of_its_own_is_enough() -> None:
    assert observed(BackendToolCommandRun("gap")).gaps == ["because"]


def test_reading_leaves_none() -> None:
    assert observed(BackendToolFilesRead("a")).gaps == []


def test_what_somebody_observes_is_not_counted() -> None:
    with FakeBackend().open() as sandbox:
        with observe_effects():
            sandbox.dispatch(BackendToolCommandRun("echo"))
        assert not sandbox.unobserved.any_since(0)


def test_what_reads_is_not_counted() -> None:
    with FakeBackend().open() as sandbox:
        sandbox.dispatch(BackendToolFilesRead("a"))
        assert not sandbox.unobserved.any_since(0)


def test_what_ended_before_is_not_seen_from_a_moment() -> None:
    unseen = UnobservedOps()
    with unseen.counting():
        pass
    assert not unseen.any_since(unseen.mark())


def test_what_runs_at_a_moment_is_seen_from_it() -> None:
    unseen = UnobservedOps()
    with unseen.counting():
        mark = unseen.mark()
    assert unseen.any_since(mark)


def test_an_operation_of_a_thread_without_context_is_counted(sandbox: BackendSandbox) -> None:
    with observe_effects() as effects, ThreadPoolExecutor() as pool:
        mark = sandbox.unobserved.mark()
        pool.submit(sandbox.dispatch, BackendToolCommandRun("true")).result(50)
    assert (sandbox.unobserved.any_since(mark), list(effects)) == (True, [])
