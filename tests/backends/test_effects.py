"""What file operations changed is told exactly, wherever they ran."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._core.blobs import MAX_BLOB_BYTES, Blob
from rath.backend import (
    Backend,
    BackendSandbox,
    BackendSandboxSpec,
    BackendTool,
    BackendToolCommandRun,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    Capabilities,
    CommandResult,
    FileEffect,
    IsolationLevel,
    ToolResult,
    observe_effects,
)
from rath.backend.effects import (
    MAX_PAUSE_SECONDS,
    PausableDeadline,
    UnobservedOps,
    happening_in,
    note_effect,
    note_gap,
    paused_deadlines,
)
from rath.testing import FakeBackend
from tests.support.virtual_time import run_virtually

MODE = 0o100644
"""Of a regular file that a tool wrote."""


def created(path: str, content: bytes) -> FileEffect:
    return FileEffect(path, "created", None, Blob.from_bytes(content), after_mode=MODE)


@given(
    writes=st.lists(st.tuples(st.sampled_from(["a", "d/b"]), st.sampled_from([b"", b"1", b"2"])))
)
def test_effects_chain_from_before_to_after(writes: list[tuple[str, bytes]]) -> None:
    sandbox = FakeBackend().open()
    with observe_effects() as effects:
        for path, data in writes:
            sandbox.dispatch(BackendToolFilesWrite(path, data))
    now: dict[str, Blob | None] = {}
    for effect in effects:
        assert effect.before == now.get(effect.path)
        now[effect.path] = effect.after
    assert now == {path: Blob.from_bytes(data) for path, data in writes}
    sandbox.backend.close(sandbox)


def test_a_new_file_is_created(sandbox: BackendSandbox) -> None:
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("a/b.txt", "new"))
    assert effects == [created("a/b.txt", b"new")]
    assert effects[0].after is not None
    assert effects[0].after.data == b"new"


def test_an_old_file_is_changed(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "old"))
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("a.txt", "new"))
    before, after = Blob.from_bytes(b"old"), Blob.from_bytes(b"new")
    changed = FileEffect(
        "a.txt", "changed", before, after, "exact", before_mode=MODE, after_mode=MODE
    )
    assert effects == [changed]


def test_writing_what_is_there_is_no_effect(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "same"))
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("a.txt", "same"))
    assert effects == []


def test_the_path_is_the_real_one_below_the_root(sandbox: BackendSandbox, workspace: Path) -> None:
    (workspace / "real").mkdir()
    (workspace / "link").symlink_to("real")
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite(f"{workspace}/link/../link/a.txt", "x"))
    assert effects == [created("real/a.txt", b"x")]


def test_a_large_content_keeps_digest_and_size_only(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    large = b"x" * (MAX_BLOB_BYTES + 1)
    (workspace / "large").write_bytes(large)
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("large", b""))
    before = effects[0].before
    assert before == Blob(sha256(large).hexdigest(), len(large))
    assert before is not None
    assert before.data is None


def test_a_failed_write_and_a_read_note_nothing(sandbox: BackendSandbox) -> None:
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("../out.txt", "x"))
        sandbox.dispatch(BackendToolFilesRead("a.txt"))
    assert effects == []


def test_a_write_that_only_changes_the_mode_tells_the_modes(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("same")
    (workspace / "a.txt").chmod(0o600)
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("a.txt", "same"))
    modes = [(effect.before_mode, effect.after_mode) for effect in effects]
    assert modes == [(0o100600, MODE)]


def test_parallel_writes_of_one_file_each_tell_what_they_replaced(sandbox: BackendSandbox) -> None:
    with observe_effects() as effects, sandbox.stream() as one, sandbox.stream() as two:
        for n in range(10):
            one.submit(BackendToolFilesWrite("a.txt", f"one {n}"))
            two.submit(BackendToolFilesWrite("a.txt", f"two {n}"))
        one.synchronize()
        two.synchronize()
    afters = {effect.after.digest for effect in effects if effect.after is not None}
    befores = {effect.before.digest for effect in effects if effect.before is not None}
    assert len(effects) == 20
    assert len(afters - befores) == 1


def test_an_observer_sees_only_what_happens_inside(sandbox: BackendSandbox) -> None:
    def write(name: str) -> list[FileEffect]:
        with observe_effects() as effects:
            sandbox.dispatch(BackendToolFilesWrite(name, name))
        return effects

    names = [f"{n}.txt" for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(write, names))
    assert seen == [[created(name, name.encode())] for name in names]


def test_every_observer_around_an_operation_is_reported() -> None:
    effect = created("a.txt", b"")
    with observe_effects() as outer:
        with observe_effects() as inner:
            note_effect(effect)
        note_effect(effect)
    assert (outer, inner) == ([effect, effect], [effect])


def test_nobody_has_to_observe() -> None:
    note_effect(created("a.txt", b""))


def test_an_effect_says_in_which_sandbox_it_happened(
    sandbox: BackendSandbox, tmp_path: Path
) -> None:
    other = FakeBackend().open()
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("a", "1"))
        other.dispatch(BackendToolFilesWrite("a", "1"))
        note_effect(created("a", b"1"))
    other.backend.close(other)
    assert [effect.sandbox for effect in effects] == [sandbox.handle, other.handle, None]


def test_an_effect_that_names_a_sandbox_keeps_it() -> None:
    with observe_effects() as effects, happening_in(FakeBackend().lazy()):
        note_effect(replace(created("a", b"1"), sandbox="there"))
        note_effect(created("a", b"1"))
    assert [effect.sandbox for effect in effects] == ["there", None]


def test_equal_contents_are_held_once() -> None:
    with observe_effects() as effects:
        note_effect(created("a", bytes([1, 2])))
        note_effect(FileEffect("a", "deleted", Blob.from_bytes(bytes([1, 2])), None))
    assert effects[0].after is effects[1].before


def test_contents_under_a_wrong_digest_reach_nobody_else() -> None:
    right = Blob.from_bytes(b"right")
    with observe_effects() as effects:
        note_effect(FileEffect("a", "created", None, Blob(right.digest, 5, b"wrong")))
        note_effect(FileEffect("a", "created", None, right))
        note_effect(FileEffect("a", "created", None, Blob(right.digest, 5)))
    assert [each.after.data for each in effects if each.after] == [b"wrong", b"right", None]


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


@pytest.mark.parametrize(
    ("op", "paths", "gaps"),
    [
        (BackendToolCommandRun("rm -r ."), [], SILENT),
        (BackendToolCommandRun("broken"), [], SILENT),
        (BackendToolCommandRun("told"), ["a"], []),
        (BackendToolCommandRun("gap"), [], ["because"]),
        (BackendToolFilesRead("a"), [], []),
    ],
    ids=["silent", "failing", "an effect", "a gap of its own", "a read"],
)
def test_a_backend_that_tells_no_effects_leaves_a_gap(
    op: BackendTool, paths: list[str], gaps: list[str]
) -> None:
    with SilentBackend().open() as sandbox, observe_effects() as effects, suppress(ValueError):
        sandbox.dispatch(op)
    assert ([each.path for each in effects], effects.gaps) == (paths, gaps)


def test_what_somebody_observes_or_only_reads_is_not_counted() -> None:
    with FakeBackend().open() as sandbox:
        with observe_effects():
            sandbox.dispatch(BackendToolCommandRun("echo"))
        sandbox.dispatch(BackendToolFilesRead("a"))
        assert not sandbox.unobserved.any_since(0)


async def look(seconds: float) -> None:
    with paused_deadlines():
        await asyncio.sleep(seconds)


async def run_out(work: Coroutine[Any, Any, None]) -> tuple[float, float]:
    """Return the milliseconds that work took itself when its 5 s were over, and the time then."""
    time = PausableDeadline(5)

    async def limited() -> None:
        async with time:
            await work

    with pytest.raises(TimeoutError):
        await limited()
    assert time.has_expired
    return time.elapsed_ms(), asyncio.get_running_loop().time()


def test_it_runs_out() -> None:
    assert run_virtually(run_out(asyncio.sleep(6))) == (5000.0, 5.0)


def test_looking_takes_none_of_it() -> None:
    async def main() -> tuple[float, bool]:
        async with PausableDeadline(5) as time:
            with paused_deadlines():
                await asyncio.sleep(50)
            await asyncio.sleep(4)
        return time.elapsed_ms(), time.has_expired

    assert run_virtually(main()) == (4000.0, False)


def test_what_is_left_of_it_after_looking_runs_out() -> None:
    async def work() -> None:
        await asyncio.sleep(4)
        await look(50)
        await asyncio.sleep(2)

    assert run_virtually(run_out(work())) == (5000.0, 55.0)


def test_looks_side_by_side_count_once() -> None:
    async def main() -> float:
        async with PausableDeadline(5) as time:
            await asyncio.gather(look(10), look(20))
            await asyncio.sleep(1)
        return time.elapsed_ms()

    assert run_virtually(main()) == 1000.0


def test_looking_without_end_ends_at_a_bound() -> None:
    ended = run_virtually(run_out(look(10 * MAX_PAUSE_SECONDS)))
    assert ended == (0.0, MAX_PAUSE_SECONDS + 5)


def test_all_looks_together_have_one_bound() -> None:
    async def work() -> None:
        while True:
            await look(MAX_PAUSE_SECONDS / 8)

    assert run_virtually(run_out(work())) == (0.0, MAX_PAUSE_SECONDS + 5)


def test_a_look_that_outlives_its_call_moves_nothing() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def look_late() -> None:
        await begun.wait()
        with paused_deadlines():
            await go_on.wait()

    async def main() -> float:
        async with PausableDeadline(5) as time:
            left_behind = asyncio.create_task(look_late())
        begun.set()
        await asyncio.sleep(7)
        elapsed = time.elapsed_ms()
        go_on.set()
        await left_behind
        return elapsed

    assert run_virtually(main()) == 0.0


def test_a_call_inside_another_stops_the_time_of_both() -> None:
    async def main() -> list[bool]:
        async with PausableDeadline(5) as outer, PausableDeadline(5) as inner:
            with paused_deadlines():
                return [outer.is_paused, inner.is_paused]

    assert run_virtually(main()) == [True, True]
