"""Who may have changed a file, and scans around operations."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.backend import (
    BackendSandbox,
    BackendToolCommandRun,
    BackendToolFilesWrite,
    observe_effects,
)
from rath.backend.changes import EffectPolicy, ScanCache, TreeState
from rath.backend.effects import EffectLog, FileEffect, PausableDeadline
from rath.backend.host import changes
from rath.backend.host.changes import (
    LEFT_RUNNING,
    TreeScans,
    WatchedOperation,
    WatchedTree,
    exact_change,
    run_observed,
    tick,
    tree_at,
    working_on,
)
from rath.backend.host.paths import Workspace
from rath.backend.host.sandbox import DirectorySandbox, HostSandbox
from rath.backend.host.scan import Keep, scan
from rath.backend.tool_types import BackendTool
from tests.support.simulated_tree import (
    NOBODY,
    PATHS,
    POLICY,
    Change,
    Simulation,
    World,
    digest,
)


def simulated(data: st.DataObject) -> Simulation:
    simulation = Simulation(lambda n: data.draw(st.integers(0, n - 1)))
    for _ in range(data.draw(st.integers(1, 20))):
        simulation.step()
    while simulation.running:
        simulation.close()
    return simulation


def chain(simulation: Simulation, effect: FileEffect) -> list[Change]:
    """The true changes that lead from the content before to the content after."""
    log = [change for change in simulation.world.log if change.path == effect.path]
    afters = [None if each.after is None else digest(each.after) for each in log]
    if effect.after is not None:
        end = afters.index(effect.after.digest)
    else:
        assert effect.before is not None
        end = afters.index(None, afters.index(effect.before.digest))
    if effect.before is not None:
        return log[afters.index(effect.before.digest) + 1 : end + 1]
    start = max((n for n in range(end) if afters[n] is None), default=-1)
    return log[start + 1 : end + 1]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_effects_are_those_of_the_time_of_the_operation(data: st.DataObject) -> None:
    simulation = simulated(data)
    spans = {run.name: run.operation for run in simulation.over}
    exact = {effect.after for effect in simulation.exact}
    for run in simulation.over:
        # What a file tool did is told by it alone.
        assert not exact & {effect.after for effect in run.operation.effects}
        for effect in run.operation.effects:
            changes = chain(simulation, effect)
            assert changes
            if effect.attribution == "window":
                assert {change.by for change in changes} <= {run.name, NOBODY}
            for other, at in [(spans.get(change.by), change.at) for change in changes]:
                assert other is None or other.may_have_run(run.asked, at)
    last = {change.path: change for change in simulation.world.log}
    observed = {run.name: run.operation for run in simulation.over if run.view is not None}
    for path, change in last.items():
        if change.by in observed and change.after is not None:
            afters = [each.after for each in observed[change.by].effects if each.path == path]
            assert simulation.world.blob(change.after) in afters


@given(data=st.data())
def test_effects_of_one_operation_chain_from_its_begin_to_its_end(data: st.DataObject) -> None:
    simulation = Simulation(lambda n: data.draw(st.integers(0, n - 1)), is_quiet=True)
    simulation.write()
    simulation.open()
    run = simulation.running[0]
    for _ in range(data.draw(st.integers(0, 10))):
        (simulation.write, simulation.use_tool)[simulation.draw(2)]()
    simulation.close()
    told = [*simulation.exact, *run.operation.effects]
    for path in PATHS:
        begin, end = run.before.get(path), simulation.world.files.get(path)
        befores = Counter(effect.before for effect in told if effect.path == path)
        afters = Counter(effect.after for effect in told if effect.path == path)
        befores[simulation.world.blob(end)] += 1
        afters[simulation.world.blob(begin)] += 1
        assert befores == afters


class Quiet:
    """A tree with operations that begin and end when the test says so."""

    def __init__(self) -> None:
        self.world = World()
        self.tree = WatchedTree("quiet", self.world)
        self.view = self.tree.scans(POLICY)

    def begin(self) -> WatchedOperation:
        operation = self.view.open()
        self.view.scan(tick())
        self.tree.start(operation)
        return operation

    def end(self, operation: WatchedOperation) -> list[tuple[str, str, str]]:
        self.tree.end(operation)
        self.view.finish(operation)
        self.view.close()
        self.tree.forget_ended()
        return [(each.path, each.kind, each.attribution) for each in operation.effects]

    def write(self, path: str) -> None:
        self.world.change(path, NOBODY, is_removal=False)


def test_overlapping_operations_are_ambiguous_only_while_they_overlap() -> None:
    quiet = Quiet()
    one = quiet.begin()
    quiet.write("p")
    two = quiet.begin()
    quiet.write("q")
    ended_first = quiet.end(one)
    quiet.write("r")
    ended_last = quiet.end(two)
    assert ended_first == [("p", "created", "window"), ("q", "created", "ambiguous")]
    assert ended_last == [("q", "created", "ambiguous"), ("r", "created", "window")]


def test_an_operation_that_nobody_observes_makes_others_ambiguous() -> None:
    quiet = Quiet()
    one = quiet.begin()
    unseen = WatchedOperation()
    quiet.tree.start(unseen)
    quiet.write("p")
    quiet.tree.end(unseen)
    assert quiet.end(one) == [("p", "created", "ambiguous")]


def test_what_happened_between_operations_belongs_to_none() -> None:
    quiet = Quiet()
    quiet.end(quiet.begin())
    quiet.write("p")
    assert quiet.end(quiet.begin()) == []


def test_one_look_serves_all_who_asked_before_it_began() -> None:
    looks: list[int] = []

    def source(policy: EffectPolicy, *, known: ScanCache, keep: Keep | None) -> TreeState:
        looks.append(1)
        return TreeState()

    view = WatchedTree("counted", source).scans(POLICY)
    asked = [tick(), tick(), tick()]
    for since in asked:
        view.scan(since)
    assert len(looks) == 1
    view.scan(tick())
    assert len(looks) == 2


def test_a_look_that_began_before_it_was_asked_for_is_not_enough() -> None:
    asked: list[int] = []

    def source(policy: EffectPolicy, *, known: ScanCache, keep: Keep | None) -> TreeState:
        asked.append(tick())
        return TreeState()

    view = WatchedTree("counted", source).scans(POLICY)
    view.scan(tick())
    view.scan(asked[0])
    assert len(asked) == 2


def test_operations_that_ended_long_ago_are_forgotten() -> None:
    quiet = Quiet()
    for _ in range(5):
        quiet.end(quiet.begin())
    assert quiet.tree.activity.operations == []


def test_sandboxes_at_one_place_share_its_tree_while_one_holds_it() -> None:
    shared = Workspace("/nowhere", "/nowhere", "/nowhere", is_owned=False)
    one, two = DirectorySandbox(shared), DirectorySandbox(shared)
    tree = one.watched_tree()
    assert two.watched_tree() is tree
    one.workspace = replace(shared, root="/nowhere/else", door="/nowhere/else")
    assert one.watched_tree() is not tree
    assert two.watched_tree() is tree


def test_a_layer_has_a_tree_of_its_own_wherever_its_commands_see_it() -> None:
    layered = Workspace("/nowhere", "/nowhere", "/nowhere", is_owned=False, door="/door")
    one, two = DirectorySandbox(layered), DirectorySandbox(layered)
    tree = one.watched_tree()
    assert one.watched_tree() is tree
    assert two.watched_tree() is not tree
    assert tree_at("/nowhere") is not tree


def test_operations_on_a_tree_below_or_above_count() -> None:
    above, below = tree_at("/nowhere/up"), tree_at("/nowhere/up/down")
    beside = tree_at("/nowhere/up2")
    operation = WatchedOperation()
    below.start(operation)
    late = tree_at("/nowhere/up/down/deeper")
    ran = [list(tree.activity.operations) for tree in (above, below, late, beside)]
    below.end(operation)
    assert ran == [[operation], [operation], [operation], []]
    assert all(tree.activity.operations == [] for tree in (above, below, late))


def test_a_tree_drops_overlaps_that_no_longer_exist() -> None:
    above = tree_at("/nowhere/many")
    for n in range(5):
        tree_at(f"/nowhere/many/{n}")
        gc.collect()
    below = tree_at("/nowhere/many/last")
    assert [each() for each in above.overlaps] == [below]


def test_what_a_file_tool_did_below_is_taken_off_above(tmp_path: os.PathLike[str]) -> None:
    root = os.path.realpath(tmp_path)
    os.mkdir(os.path.join(root, "down"))
    above, below = tree_at(root), tree_at(os.path.join(root, "down"))
    view = above.scans(POLICY)
    operation = view.open()
    view.scan(tick())
    above.start(operation)
    with working_on(below), exact_change() as change:
        assert change.is_wanted
        path = os.path.join(root, "down", "a")
        with open(path, "wb") as file:
            file.write(b"x")
        mode = os.stat(path).st_mode
        change.note(FileEffect("a", "created", None, Blob.from_bytes(b"x"), after_mode=mode))
    above.end(operation)
    view.finish(operation)
    view.close()
    assert operation.effects == []


@pytest.mark.parametrize("directory", ["node_modules", "x/.git"])
def test_a_file_tool_in_an_ignored_directory_leaves_no_trace(directory: str) -> None:
    quiet = Quiet()
    operation = quiet.begin()
    with working_on(quiet.tree), exact_change() as change:
        change.note(FileEffect(f"{directory}/a", "created", None, Blob.from_bytes(b"x")))
    assert quiet.end(operation) == []


def test_nobody_wants_to_know_when_nobody_looks() -> None:
    with working_on(Quiet().tree), exact_change() as change:
        assert not change.is_wanted


def test_the_number_of_effects_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rath.backend.host.changes.MAX_EFFECTS", 2)
    quiet = Quiet()
    operation = quiet.begin()
    for path in PATHS:
        quiet.write(path)
    assert len(quiet.end(operation)) == 2
    assert operation.gaps == ["more than 2 effects: the rest is not listed"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_starts_afresh() -> None:
    here = Workspace("/nowhere", "/nowhere", "/nowhere", is_owned=False)
    sandbox = DirectorySandbox(here)
    tree = sandbox.watched_tree()
    tree.start(WatchedOperation())
    pid = os.fork()
    if pid == 0:
        fresh = sandbox.watched_tree()
        is_fresh = fresh is not tree and fresh.activity.operations == []
        os._exit(0 if is_fresh else 1)
    assert os.waitpid(pid, 0)[1] == 0


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


def test_an_operation_that_ends_during_the_scan_of_another_takes_no_change_from_it(
    tmp_path: Path,
) -> None:
    is_gated, has_started, may_go_on = threading.Event(), threading.Event(), threading.Event()

    def source(policy: EffectPolicy, *, known: ScanCache, keep: Keep | None) -> TreeState:
        if is_gated.is_set():
            has_started.set()
            may_go_on.wait()
        return scan(str(tmp_path), policy, known=known, keep=keep)

    tree = WatchedTree(str(tmp_path), source)
    scans = tree.scans(EffectPolicy())
    first, second = scans.open(), scans.open()
    scans.scan(tick())
    tree.start(first)
    tree.start(second)
    (tmp_path / "file").write_text("x")
    tree.end(first)
    is_gated.set()
    closing = threading.Thread(target=scans.finish, args=(first,))
    closing.start()
    has_started.wait()
    tree.end(second)
    is_gated.clear()
    may_go_on.set()
    closing.join()
    scans.finish(second)
    for operation in (first, second):
        assert [(e.path, e.attribution) for e in operation.effects] == [("file", "ambiguous")]
