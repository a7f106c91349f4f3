"""The laws of workspaces of one's own, for any changes on any side."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rath._async.runtime import runtime
from rath.backend.snapshots import FrozenWorkspace
from rath.session import Session
from rath.session.derive import MergedFiles
from rath.session.record import ToolRun
from tests.support.api import FileMerge, merge_trees
from tests.support.session_files import (
    Change,
    applied,
    change_lists,
    changes,
    files_of,
    follow,
    placed,
    running,
    trees,
    worked,
    writing,
)
from tests.support.trees import laid_out, lay_out

some_changes = st.lists(changes, min_size=1, max_size=5)


def turns(files: dict[str, bytes], todo: list[Change]) -> tuple[list[Any], list[dict[str, bytes]]]:
    """Return the turns in which a model makes `todo` of `files`, and the files before each."""
    made: list[Any] = []
    before: list[dict[str, bytes]] = []
    now = dict(files)
    for change in todo:
        then = dict(now)
        for effect in follow(now, [change]):
            name = f"call {len(made)}"
            old, new = map(shlex.quote, (effect.renamed_from or "", effect.path))
            if effect.kind == "renamed":
                made.append(running(f"mv {old} {new}", id=name))
            elif effect.after is None:
                made.append(running(f"rm {new}", id=name))
            else:
                made.append(writing(effect.path, now[effect.path].decode(), id=name))
            before.append(then)
    return made, [*before, now]


@given(files=trees, steps=st.lists(st.tuples(st.integers(0, 3), change_lists), max_size=5))
def test_forks_never_see_each_other(
    files: dict[str, bytes], steps: list[tuple[int, list[Change]]]
) -> None:
    sessions, model = [placed(files)], [dict(files)]
    for which, todo in steps:
        at = which % len(sessions)
        sessions.append(sessions[at].fork(workspace="copy"))
        model.append(model[at])
        made, states = turns(model[at], todo)
        sessions[at], model[at] = worked(sessions[at], *made), states[-1]
    assert [files_of(session) for session in sessions] == model


@given(files=trees, todo=some_changes, which=st.integers(0, 4))
def test_undo_brings_back_the_files_and_rows_before_a_call(
    files: dict[str, bytes], todo: list[Change], which: int
) -> None:
    made, states = turns(files, todo)
    assume(made)
    at = which % len(made)
    done = worked(placed(files), *made)
    undone = done.undo(f"call {at}")
    assert files_of(undone) == states[at]
    assert undone.chunk_table.rows == done.chunk_table.rows[: 1 + 2 * at]
    assert files_of(done) == states[-1]


@given(files=trees, todo=some_changes, more=change_lists, which=st.integers(0, 4))
def test_after_an_undo_the_changes_still_lead_from_the_beginning_to_the_files_of_now(
    files: dict[str, bytes], todo: list[Change], more: list[Change], which: int
) -> None:
    made, states = turns(files, todo)
    assume(made)
    at = which % len(made)
    fork = placed(files).fork(workspace="copy")
    undone = worked(fork, *made).undo(f"call {at}")
    again, end = turns(states[at], more)
    done = worked(undone, *again)
    assert files_of(done) == end[-1]
    assert applied(files, done.files.changes(scope="workspace")) == end[-1]
    assert applied(states[at], done.files.changes()) == end[-1]


def frozen(session: Session) -> FrozenWorkspace:
    return session.require_sandbox().freeze()


def merged(base: Session, ours: Session, theirs: Session) -> FileMerge:
    trees = (frozen(base), frozen(ours), frozen(theirs))
    return runtime().run(lambda: merge_trees(*trees), label="a merge")


def after(files: dict[str, bytes], merge: FileMerge) -> dict[str, bytes]:
    made = dict(files)
    for path, new in merge.changes.items():
        made.pop(path, None)
        if new is not None:
            made[path] = new.data
    return made


@given(base=trees, ours=trees, theirs=trees)
def test_sides_that_are_exchanged_have_the_same_conflicts_and_else_the_same_files(
    base: dict[str, bytes], ours: dict[str, bytes], theirs: dict[str, bytes]
) -> None:
    one = merged(*map(placed, (base, ours, theirs)))
    other = merged(*map(placed, (base, theirs, ours)))
    exchanged = [
        (each.path, each.kind, each.base, each.theirs, each.ours) for each in other.conflicts
    ]
    assert exchanged == [
        (each.path, each.kind, each.base, each.ours, each.theirs) for each in one.conflicts
    ]
    disputed = {each.path for each in one.conflicts}
    mine, others = after(ours, one), after(theirs, other)
    agreed = (mine.keys() | others.keys()) - disputed
    assert all(mine.get(path) == others.get(path) for path in agreed)
    assert all(mine.get(path) == ours.get(path) for path in disputed)


steps_of_a_family = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "share",
                "copy",
                "write",
                "write",
                "undo",
                "check",
                None,
                "ours",
                "theirs",
                "three-way",
            ]
        ),
        st.integers(0, 5),
        st.integers(0, 5),
        st.sampled_from("abc"),
    ),
    min_size=3,
    max_size=10,
)


sharing = ["write", "write", "copy", "merge"]


Family = list[tuple[str | None, int, int, str]]


def family(files: dict[str, bytes], steps: Family) -> list[Session]:
    """Return sessions that came from one another in any way, each in a sandbox of its own."""
    made = [placed(files).fork(workspace="copy")]
    for number, (what, one, two, path) in enumerate(steps):
        at = one % len(made)
        session, other = made[at], made[two % len(made)]
        calls = [entry for entry in session.record if isinstance(entry, ToolRun) and entry.rows]
        if what == "share":
            made[at] = session.fork()
        elif what == "copy":
            made.append(session.fork(workspace="copy"))
        elif what == "write":
            made[at] = worked(session, writing(path, f"{number}\n"), writing(path, f"{number}!"))
        elif what == "check":
            session.check("content", "true")
        elif what == "undo" and calls:
            with suppress(ValueError):
                made.append(session.undo(calls[two % len(calls)]))
        elif what is None and session is not other:
            made[at] = session.merge(other)
        elif what != "undo" and session is not other:
            with suppress(ValueError):  # no common files
                made.append(session.merge(other, files=cast("MergedFiles", what)))
    return made


@settings(max_examples=40)
@given(files=trees, steps=steps_of_a_family)
def test_however_sessions_came_from_one_another_their_changes_lead_to_their_files(
    files: dict[str, bytes], steps: Family
) -> None:
    for session in family(files, steps):
        assert applied(files, session.files.changes(scope="workspace")) == files_of(session)
        for each in session.verdicts:
            assert each.is_stale or session.is_current(each.verdict)


@settings(max_examples=25)
@given(
    files=trees, todo=st.lists(st.tuples(st.sampled_from(sharing), st.integers(0, 4)), max_size=7)
)
def test_changes_of_others_in_a_shared_sandbox_are_applied_or_nothing_is(
    files: dict[str, bytes], todo: list[tuple[str, int]]
) -> None:
    made = [placed(files).fork(workspace="copy")]
    for number, (what, one) in enumerate(todo):
        session = made[one % len(made)]
        if what == "write":
            made.append(worked(session, writing("abc"[number % 3], f"{number}")))
        elif what == "copy":
            made.append(session.fork(workspace="copy"))
        else:
            made.append(session.merge(made[-1]))
        made[-1].synchronize()
    for session in made:
        with TemporaryDirectory() as directory:
            home = Path(directory)
            lay_out(home, files)
            with suppress(ValueError):
                session.files.apply_to(home)
                assert laid_out(home) == files_of(session)


FILES = {"a.txt": b"1\n2\n3\n4\n", "b.txt": b"b\n"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    lay_out(root, FILES)
    return root


@pytest.fixture
def session(project: Path) -> Session:
    return Session.from_user_message("go").to("local", spec=str(project))


def printed(session: Session, line: str) -> str:
    """Return what a command prints in the sandbox of a session."""
    return session.check("look", line).report


def test_forks_are_merged_and_brought_home(session: Session, project: Path) -> None:
    ours = worked(session.fork(workspace="copy"), writing("a.txt", "one\n2\n3\n4\n"))
    line = "sed -i s/4/four/ a.txt && chmod +x a.txt && ln -s a.txt link && rm b.txt"
    theirs = worked(session.fork(workspace="copy"), running(line))
    merged = ours.merge(theirs, files="three-way")
    assert printed(merged, "cat link; ls") == "one\n2\n3\nfour\na.txt\nlink\n"
    assert merged.files.conflicts == ()
    assert laid_out(project) == FILES
    assert merged.files.apply_to(project) == ["a.txt", "b.txt", "link"]
    assert laid_out(project) == {"a.txt": b"one\n2\n3\nfour\n"}
    assert (project / "link").readlink() == Path("a.txt")
    assert (project / "a.txt").stat().st_mode & 0o100


def test_a_command_is_undone_with_all_that_it_changed(session: Session, project: Path) -> None:
    line = "rm a.txt; ln -s b.txt a.txt; mkdir new; echo x > new/c; chmod +x b.txt"
    done = worked(session, writing("b.txt", "B\n"), running(line, id="mess"), writing("d", "d"))
    undone = done.undo("mess")
    # A directory is no file: the new one stays, empty.
    assert printed(undone, "cat a.txt b.txt; find . -type f -o -type l | sort; test -x b.txt") == (
        "1\n2\n3\n4\nB\n./a.txt\n./b.txt\n"
    )
    assert not undone.verdicts[-1].verdict.passed
    assert laid_out(project).keys() == {"b.txt", "d", "new/c"}
