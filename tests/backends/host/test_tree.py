"""Who may have changed a file: against a simulated tree whose every change has a known cause."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rath._core.blobs import Blob
from rath.backend.changes import EffectPolicy, ScanCache, TreeState
from rath.backend.effects import FileEffect
from rath.backend.host.changes import (
    WatchedOperation,
    WatchedTree,
    exact_change,
    tick,
    tree_at,
    working_on,
)
from rath.backend.host.paths import Workspace
from rath.backend.host.sandbox import DirectorySandbox
from rath.backend.host.scan import Keep
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


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_window_never_holds_what_another_operation_did(data: st.DataObject) -> None:
    simulation = simulated(data)
    for run in simulation.over:
        for effect in run.operation.effects:
            causes = {change.by for change in chain(simulation, effect)}
            assert causes
            if effect.attribution == "window":
                assert causes <= {run.name, NOBODY}


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_content_that_an_operation_left_is_among_its_effects(data: st.DataObject) -> None:
    simulation = simulated(data)
    last = {change.path: change for change in simulation.world.log}
    by_name = {run.name: run.operation for run in simulation.over if run.view is not None}
    for path, change in last.items():
        if change.by in by_name and change.after is not None:
            afters = [each.after for each in by_name[change.by].effects if each.path == path]
            assert simulation.world.blob(change.after) in afters


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_effects_hold_no_change_from_before_or_after_the_operation(data: st.DataObject) -> None:
    simulation = simulated(data)
    spans = {run.name: run.operation for run in simulation.over}
    for run in simulation.over:
        for effect in run.operation.effects:
            for change in chain(simulation, effect):
                other = spans.get(change.by)
                if other is not None:
                    assert other.ended is not None
                    assert run.operation.ended is not None
                    assert other.may_have_run(run.asked, change.at)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_what_a_file_tool_did_is_told_by_it_alone(data: st.DataObject) -> None:
    simulation = simulated(data)
    exact = {effect.after for effect in simulation.exact}
    for run in simulation.over:
        assert not exact & {effect.after for effect in run.operation.effects}


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
