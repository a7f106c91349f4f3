"""What a session did to files, read from its record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from rath._core.vector import Vector
from rath.backend.effects import note_effect, note_gap
from rath.errors import BackendError
from rath.session import Session
from rath.session.record import Operation, ToolRun
from rath.testing import tool_call
from tests.support.api import Entry
from tests.support.session_files import (
    BUILT_IN,
    FilesBackend,
    applied,
    created,
    files_of,
    moved,
    placed,
    removed,
    running,
    with_record,
    worked,
    write,
    writing,
)
from tests.support.sessions import FunctionTool, entries_of, run

WORK = (
    writing("a", "1\n", id="one"),
    writing("b", "2\n", id="two"),
    running("rm a", id="three"),
    running("mv c d", id="four"),
)


def work() -> Session:
    """Return a run that did a little of everything."""
    return worked(placed({"c": "0\n"}), *WORK)


def test_effects_stand_in_order_with_their_calls_and_changes_and_diff_are_what_they_come_to() -> (
    None
):
    done = work()
    effects = done.files.effects()
    calls = entries_of(done, ToolRun)
    assert [each.call for each in effects] == calls
    assert [each.effect for each in effects] == [
        created("a", b"1\n"),
        created("b", b"2\n"),
        removed({"a": b"1\n"}, "a"),
        moved({"c": b"0\n"}, "c", "d"),
    ]
    assert done.files.changes() == (created("b", b"2\n"), moved({"c": b"0\n"}, "c", "d"))
    assert done.files.diff() == (
        "diff --git a/b b/b\nnew file mode 100644\n--- /dev/null\n+++ b/b\n@@ -0,0 +1 @@\n+2\n"
        "diff --git a/c b/d\nsimilarity index 100%\nrename from c\nrename to d\n"
    )


def test_the_changes_of_one_call_can_be_asked_for() -> None:
    files = work().files
    assert files.changes(call="two") == (created("b", b"2\n"),)
    assert files.changes(since="two") == (
        removed({"a": b"1\n"}, "a"),
        created("b", b"2\n"),
        moved({"c": b"0\n"}, "c", "d"),
    )
    with pytest.raises(ValueError, match="call= and since= were both given; give one"):
        files.diff(call="one", since="two")
    with pytest.raises(ValueError, match="holds no call 'five'"):
        files.effects(call="five")


def test_a_scope_says_whose_changes_count() -> None:
    first = worked(placed(), writing("a", "1"))
    second = worked(first.fork(workspace="copy"), writing("b", "2"))
    third = worked(second.fork(workspace="copy"), writing("c", "3"))
    paths: dict[Any, list[str]] = {
        scope: [change.path for change in third.files.changes(scope=scope)]
        for scope in ("run", "workspace", "whole")
    }
    assert paths == {"run": ["c"], "workspace": ["b", "c"], "whole": ["a", "b", "c"]}
    assert third.fork().files.changes() == ()
    with pytest.raises(ValueError, match="unknown scope 'all': expected 'run', 'workspace' or"):
        third.files.changes(scope="all")  # type: ignore[arg-type]  # a caller's mistake


def test_gaps_and_ambiguous_effects_name_their_calls() -> None:
    def do(session: Session, _: object) -> None:
        note_effect(created("x", b"", attribution="ambiguous"))
        note_effect(created("y", b"", attribution="window"))
        note_gap("too many files")

    done = worked(placed(), tool_call("f", id="c"), tools=[FunctionTool("f", do)])
    ((gap,), (unsure,)) = done.files.gaps(), done.files.ambiguous()
    assert (gap.call.call_id, gap.reason) == ("c", "too many files")
    assert unsure.effect.path == "x"
    assert [change.attribution for change in done.files.changes()] == ["ambiguous", "window"]


def test_calls_inside_calls_inside_calls_count_once() -> None:
    def inner(session: Session, _: object) -> str | None:
        return worked(session, writing("a", "1")).text()

    def outer(session: Session, _: object) -> str | None:
        turns = [tool_call("inner"), writing("b", "1")]
        return worked(session, *turns, tools=[FunctionTool("inner", inner)]).text()

    tools = [FunctionTool("outer", outer)]
    done = worked(placed(), tool_call("outer", id="c"), writing("c", "1"), tools=tools)
    assert [each.effect.path for each in done.files.effects()] == ["a", "b", "c"]
    assert files_of(done.undo("c")) == {}


BASE = {"a": "1\n2\n3\n", "b": "b"}


def merged(files: Any) -> Session:
    """Return a merge of two runs on forks."""
    base = placed(BASE)
    ours = worked(base.fork(workspace="copy"), writing("a", "one\n2\n3\n"))
    theirs = worked(
        base.fork(workspace="copy"),
        writing("a", "1\n2\nthree\n"),
        writing("c", "c"),
        running("rm b"),
    )
    return ours.merge(theirs, files=files)


def test_changes_of_a_merge_follow_from_the_records_of_both_sides() -> None:
    one = merged("three-way")
    copy = one.fork(workspace="copy").fork(workspace="copy")
    undone = worked(one.fork(workspace="copy"), writing("d", "d", id="w")).undo("w")
    taken = placed().merge(one, files="theirs")
    deep = copy.merge(worked(one.fork(workspace="copy"), writing("e", "e")), files="three-way")
    more = worked(one.fork(workspace="copy"), writing("f", "f"))
    for session in (one, more, copy, undone, taken, deep):
        alone = with_record(*session.record)
        reports = alone.files.changes(scope="whole")
        assert reports == session.files.changes(scope="whole")
        assert applied(as_bytes(BASE), reports) == files_of(session)


def test_changes_of_merged_merges_follow_from_the_record() -> None:
    base = placed()
    one, two, three, four = (
        worked(base.fork(workspace="copy"), writing(name, name)) for name in "abcd"
    )
    left, right = one.merge(two, files="three-way"), three.merge(four, files="three-way")
    complete = left.merge(right, files="three-way")
    moved_away = worked(placed(), writing("x", "x")).synchronize().merge(complete, files="theirs")
    for session in (complete, moved_away):
        alone = with_record(*session.record)
        assert [each.path for each in alone.files.changes(scope="whole")] == list("abcd")


def test_a_merge_needs_contents_that_both_sides_changed() -> None:
    base = placed({"a": "1\n"})
    sides = [worked(base.fork(workspace="copy"), writing("a", each)) for each in ("2\n", "3\n")]
    merge = sides[0].merge(sides[1], files="three-way")
    alone = with_record(*(without_contents(entry) for entry in merge.record))
    with pytest.raises(BackendError, match="contents were not kept"):
        alone.files.changes(scope="whole")


def without_contents(entry: Entry) -> Entry:
    """Return an entry as if no content of a file had been kept."""
    if isinstance(entry, Operation) and entry.theirs is not None:
        return structs.replace(entry, theirs=Vector(map(without_contents, entry.theirs)))
    if not isinstance(entry, ToolRun):
        return entry
    bare = [
        replace(
            effect,
            before=effect.before and effect.before.without_data(),
            after=effect.after and effect.after.without_data(),
        )
        for effect in entry.file_effects
    ]
    return structs.replace(entry, file_effects=tuple(bare))


def test_conflicts_follow_from_the_record_too() -> None:
    base = placed()
    one = worked(base.fork(workspace="copy"), writing("a", "ours"))
    two = worked(base.fork(workspace="copy"), writing("a", "theirs"))
    merge = one.merge(two, files="three-way")
    alone = with_record(*merge.record, id=merge.id)
    assert [each.path for each in alone.files.conflicts] == ["a"]
    assert alone.files.conflicts == merge.files.conflicts
    assert with_record(*merge.record).files.conflicts == ()


def test_changes_of_a_merge_without_its_sides_are_an_error() -> None:
    merge = merged("three-way")
    (made,) = [e for e in merge.record if isinstance(e, Operation) and e.kind == "merge"]
    alone = with_record(structs.replace(made, theirs=None, n_ours=3))
    with pytest.raises(BackendError, match="does not hold both its sides"):
        alone.files.diff(scope="whole")


def as_bytes(files: dict[str, str]) -> dict[str, bytes]:
    return {path: text.encode() for path, text in files.items()}


def test_what_happened_in_another_sandbox_does_not_count() -> None:
    def attempt(session: Session, _: object) -> None:
        write(session.fork(workspace="copy"), {"a": "tried"})
        write(session, {"b": "1"})

    tools = [FunctionTool("attempt", attempt)]
    done = worked(placed(), tool_call("attempt", id="c"), tools=tools)
    assert done.files.changes() == done.files.changes(call="c") == (created("b", b"1"),)


def test_sessions_that_moved_do_not_mix_directories() -> None:
    first = worked(placed({"x": "0"}), writing("a", "1")).synchronize()
    moved_on = worked(first.bind_sandbox(OtherBackend().lazy()), writing("b", "1"))
    assert moved_on.files.changes(scope="workspace") == (created("b", b"1"),)
    assert first.files.changes() == (created("a", b"1"),)
    assert first.fork(workspace="copy").files.changes(scope="whole") == ()


class OtherBackend(FilesBackend):
    """The same with sandboxes of other names."""

    name = "others"


def test_a_call_in_another_place_is_no_beginning() -> None:
    done = worked(placed(), writing("a", "1", id="c")).synchronize()
    done.bind_sandbox(OtherBackend().lazy())
    with pytest.raises(ValueError, match="'c' is not behind the files of this session"):
        done.files.changes(since="c")


def test_what_happened_to_the_session_of_the_agent_is_no_change_here() -> None:
    elsewhere = Session.from_user_message("plan").bind_sandbox(OtherBackend().lazy())
    agent = worked(elsewhere, writing("a", "1")).fork(workspace="copy")
    base = placed().fork(workspace="copy")
    done = run([writing("b", "1"), "done"], user=base, agent=agent, system_tools=BUILT_IN)
    assert done.files.changes(scope="workspace") == (created("b", b"1"),)


def test_scope_and_gaps_are_checked_always(tmp_path: Path) -> None:
    files = work().files
    with pytest.raises(ValueError, match="unknown scope 'all'"):
        files.changes(call="one", scope="all")  # type: ignore[arg-type]  # a caller's mistake
    with pytest.raises(ValueError, match="unknown gaps 'refsue': expected 'refuse' or 'ignore'"):
        files.apply_to(tmp_path, gaps="refsue")  # type: ignore[arg-type]  # a caller's mistake


def test_a_session_without_a_record_says_that_it_knows_nothing() -> None:
    done = work()
    loaded = Session(done.chunk_table).bind_sandbox(FilesBackend().lazy())
    for scope in ("run", "workspace", "whole"):
        with pytest.raises(BackendError, match="of which its record tells nothing, as one that"):
            loaded.files.diff(scope=scope)
    later = worked(loaded, writing("z", "1"))
    assert later.files.changes() == (created("z", b"1"),)
    with pytest.raises(BackendError, match="of which its record tells nothing"):
        later.files.gaps(scope="whole")
    copy = worked(loaded.fork(workspace="copy"), writing("y", "1"))
    assert copy.files.changes(scope="workspace") == (created("y", b"1"),)


def test_what_somebody_else_did_to_a_copy_is_not_left_out_unsaid(tmp_path: Path) -> None:
    done = worked(placed().fork(workspace="copy"), writing("a", "1")).synchronize()
    write(done, {"b": "2"})
    with pytest.raises(ValueError, match="somebody else worked in the workspace"):
        done.files.apply_to(tmp_path)
    assert done.files.apply_to(tmp_path, gaps="ignore") == ["a"]
