"""Looking for effects around operations: together, cancelled, failing, and while tools write."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rath._async.runtime import runtime
from rath.backend import (
    BackendSandbox,
    BackendToolCommandRun,
    BackendToolFilesWrite,
    observe_effects,
)
from rath.backend.effects import EffectLog, PausableDeadline
from rath.backend.host import changes
from rath.backend.host.changes import LEFT_RUNNING, TreeScans, WatchedOperation, run_observed
from rath.backend.host.paths import Workspace
from rath.backend.host.sandbox import DirectorySandbox, HostSandbox
from rath.backend.tool_types import BackendTool

COMMAND = BackendToolCommandRun("true")


@pytest.fixture
def native(workspace: Path) -> HostSandbox:
    return DirectorySandbox(Workspace.at(str(workspace)))


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A pipe outside the workspace, by which a command says that it has come so far."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


async def watched(native: HostSandbox, op: BackendTool, run: Callable[[], Awaitable[Any]]) -> Any:
    tree = native.watched_tree()
    return await run_observed(tree, op, run, policy=native.effects, leftovers=native.leftovers)


def on_runtime(make: Callable[[], Awaitable[Any]]) -> EffectLog:
    """Await it on the runtime and return what was observed."""

    async def observe() -> EffectLog:
        with observe_effects() as effects:
            await make()
        return effects

    return runtime().run(observe, label="a test")


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def told(effects: EffectLog) -> list[tuple[str, str, str]]:
    return [(each.path, each.kind, each.attribution) for each in effects]


def test_a_cancelled_command_tells_what_it_did(sandbox: BackendSandbox, pipe: Path) -> None:
    async def cancel_it() -> None:
        line = f"echo x > a; echo > {pipe}; exec sleep 60"
        task = asyncio.create_task(sandbox.adispatch(BackendToolCommandRun(line)))
        await runtime().call_in_worker(pipe.read_bytes)
        await cancelled(task)

    effects = on_runtime(cancel_it)
    assert (told(effects), effects.gaps) == ([("a", "created", "window")], [])


def test_a_cancelled_operation_does_not_wait_long_for_its_effects(
    native: HostSandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def finish_late(view: TreeScans, operation: WatchedOperation) -> None:
        go_on.wait()

    monkeypatch.setattr(changes, "CANCEL_SECONDS", 0.0)
    monkeypatch.setattr(TreeScans, "finish", finish_late)
    ran = asyncio.Event()

    async def run() -> None:
        (workspace / "a").write_text("x")
        ran.set()
        await asyncio.Event().wait()

    async def cancel_it() -> None:
        task = asyncio.create_task(watched(native, COMMAND, run))
        await ran.wait()
        await cancelled(task)
        go_on.set()

    effects = on_runtime(cancel_it)
    assert list(effects) == []
    assert "was cancelled" in effects.gaps[0]


def test_a_cancellation_while_it_looks_afterwards_keeps_the_effects(
    native: HostSandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, go_on = threading.Event(), threading.Event()
    finish = TreeScans.finish

    def finish_late(view: TreeScans, operation: WatchedOperation) -> None:
        looking.set()
        go_on.wait()
        finish(view, operation)

    monkeypatch.setattr(TreeScans, "finish", finish_late)

    async def run() -> None:
        (workspace / "a").write_text("x")

    async def cancel_it() -> None:
        task = asyncio.create_task(watched(native, COMMAND, run))
        await runtime().call_in_worker(looking.wait)
        task.cancel()
        asyncio.get_running_loop().call_soon(go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    effects = on_runtime(cancel_it)
    assert told(effects) == [("a", "created", "window")]


def test_a_cancellation_while_it_looks_before_runs_nothing(
    native: HostSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, go_on = threading.Event(), threading.Event()

    def look_late(view: TreeScans, since: int) -> None:
        looking.set()
        go_on.wait()

    monkeypatch.setattr(TreeScans, "scan", look_late)
    ran: list[int] = []

    async def run() -> None:
        ran.append(1)

    async def cancel_it() -> None:
        task = asyncio.create_task(watched(native, COMMAND, run))
        await runtime().call_in_worker(looking.wait)
        await cancelled(task)
        go_on.set()

    effects = on_runtime(cancel_it)
    assert (list(effects), ran) == ([], [])


def test_an_operation_that_raises_tells_what_it_did(native: HostSandbox, workspace: Path) -> None:
    async def run() -> None:
        (workspace / "a").write_text("x")
        raise ValueError("broken")

    async def raise_it() -> None:
        with pytest.raises(ValueError, match="broken"):
            await watched(native, COMMAND, run)

    assert told(on_runtime(raise_it)) == [("a", "created", "window")]


def test_nothing_is_looked_at_while_nobody_observes(
    native: HostSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TreeScans, "scan", None)

    async def run() -> str:
        return "done"

    assert runtime().run(lambda: watched(native, COMMAND, run), label="a test") == "done"


def test_a_file_written_while_a_command_runs_is_not_the_commands(
    sandbox: BackendSandbox, pipe: Path
) -> None:
    logs: dict[str, EffectLog] = {}

    async def command() -> None:
        line = f"echo x > made; cat {pipe} > /dev/null; echo more >> shared"
        with observe_effects() as logs["command"]:
            await sandbox.adispatch(BackendToolCommandRun(line))

    async def tool() -> None:
        # The pipe opens when the command reads it: it runs.
        end = await runtime().call_in_worker(lambda: pipe.open("wb"))
        with end, observe_effects() as logs["tool"]:
            await sandbox.adispatch(BackendToolFilesWrite("written", "x"))
            await sandbox.adispatch(BackendToolFilesWrite("shared", "one\n"))

    async def both() -> None:
        await asyncio.gather(command(), tool())

    on_runtime(both)
    assert told(logs["tool"]) == [("written", "created", "exact"), ("shared", "created", "exact")]
    assert told(logs["command"]) == [("made", "created", "window"), ("shared", "changed", "window")]
    shared = logs["command"][1]
    assert shared.before is not None
    assert shared.after is not None
    assert (shared.before.data, shared.after.data) == (b"one\n", b"one\nmore\n")


def test_commands_side_by_side_are_ambiguous(sandbox: BackendSandbox, tmp_path: Path) -> None:
    logs: dict[str, EffectLog] = {}
    pipes = [tmp_path / "first", tmp_path / "second"]
    for path in pipes:
        os.mkfifo(path)

    async def command(name: str, line: str) -> None:
        with observe_effects() as logs[name]:
            await sandbox.adispatch(BackendToolCommandRun(line))

    async def both() -> None:
        first, second = (
            asyncio.create_task(command(name, f"cat {path}; echo x > {name}"))
            for name, path in zip(("one", "two"), pipes, strict=True)
        )
        # Both run: each has opened its pipe.
        ends = [await runtime().call_in_worker(partial_open(path)) for path in pipes]
        ends[0].close()
        await first
        ends[1].close()
        await second

    on_runtime(both)
    assert told(logs["one"]) == [("one", "created", "ambiguous")]
    assert told(logs["two"]) == [("one", "created", "ambiguous"), ("two", "created", "window")]


def partial_open(path: Path) -> Callable[[], Any]:
    return lambda: path.open("wb")


def test_each_operation_tells_only_its_own_time(sandbox: BackendSandbox, workspace: Path) -> None:
    with observe_effects() as first:
        sandbox.dispatch(BackendToolCommandRun("echo 1 > a"))
    (workspace / "a").write_text("somebody else")
    with observe_effects() as second:
        sandbox.dispatch(BackendToolCommandRun("echo 2 > a"))
    assert first[0].after is not None
    assert first[0].after.data == b"1\n"
    assert second[0].before is not None
    assert second[0].before.data == b"somebody else"


def test_a_process_that_is_left_running_is_a_gap(sandbox: BackendSandbox, pipe: Path) -> None:
    line = f"setsid sh -c ': > ready; cat {pipe}' >/dev/null 2>&1 & until [ -e ready ]; do :; done"

    async def leave_it() -> None:
        await sandbox.adispatch(BackendToolCommandRun(line))

    effects = on_runtime(leave_it)
    assert (told(effects), effects.gaps) == ([("ready", "created", "window")], [LEFT_RUNNING])


def test_a_process_that_ends_with_its_command_is_no_gap(sandbox: BackendSandbox) -> None:
    async def run_it() -> None:
        await sandbox.adispatch(BackendToolCommandRun("sleep 60 & sleep 60 & true"))

    assert on_runtime(run_it).gaps == []


def test_looking_takes_no_time_of_a_call(
    native: HostSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    stood: list[tuple[str, bool]] = []
    look = TreeScans.scan

    async def in_time() -> None:
        async with PausableDeadline(60) as time:

            def look_at(view: TreeScans, since: int) -> None:
                stood.append(("look", time.is_paused))
                look(view, since)

            async def run() -> None:
                stood.append(("run", time.is_paused))

            monkeypatch.setattr(TreeScans, "scan", look_at)
            await watched(native, COMMAND, run)
            stood.append(("end", time.is_paused))

    on_runtime(in_time)
    assert stood == [("look", True), ("run", False), ("look", True), ("end", False)]
