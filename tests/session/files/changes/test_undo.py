"""What a sequence of effects comes to, and undoing a tool call in a branch."""

from __future__ import annotations

import pytest
from msgspec import structs

from rath._async.deferred import Deferred
from rath._core.blobs import Blob
from rath._core.vector import Vector
from rath.backend.effects import FileEffect, note_effect, note_gap
from rath.errors import BackendError
from rath.session import Session
from rath.session.files.changes import net_changes
from rath.session.graph import LineageKind
from rath.session.graph.recording import Provenance
from rath.session.record import Operation, ToolRun
from rath.testing import ScriptedClient, tool_call
from tests.support.api import Body
from tests.support.session_files import (
    FILE,
    changed,
    created,
    files_of,
    moved,
    placed,
    removed,
    running,
    tool_run,
    with_record,
    worked,
    write,
    writing,
)
from tests.support.sessions import FunctionTool, entries_of, run


def test_an_undo_says_where_it_came_from() -> None:
    done = worked(placed(), writing("a", "1", id="w"))
    undone = done.undo("w")
    (call,) = entries_of(done, ToolRun)
    made = undone.record[-1]
    assert isinstance(made, Operation)
    assert (made.kind, made.workspace, made.undone) == ("fork", "undo", call.id)
    assert (undone.lineage_operator, undone.lineage_kind) == ("Session.undo", LineageKind.OP_FORK)
    assert undone.parent_session_ids == (done.id,)
    assert undone.lineage_extras == (("call", "w"),)
    assert undone.cumulative_usage == done.cumulative_usage


def test_a_call_may_be_named_by_its_entry() -> None:
    done = worked(placed(), writing("a", "1"), writing("b", "1"))
    calls = entries_of(done, ToolRun)
    assert files_of(done.undo(calls[1])) == {"a": b"1"}


def test_a_later_call_of_a_turn_leaves_the_results_before_it() -> None:
    turn = writing("a", "1", writing("b", "2", id="second"), writing("c", "3"), id="first")
    done = worked(placed(), turn)
    undone = done.undo("second")
    assert files_of(undone) == {"a": b"1"}
    assert undone.chunk_table.rows == done.chunk_table.rows[:3]
    client = ScriptedClient(["again"])
    again = run([], user=undone, agent_provider=client.provider)
    assert again.text() == "again"
    bodies = [str(message.content) for message in client.requests[0].messages]
    assert sum("interrupted" in body for body in bodies) == 2


def test_the_call_of_the_last_run_is_meant_where_ids_repeat() -> None:
    first = worked(placed(), writing("a", "1", id="same"))
    second = worked(first, writing("a", "2", id="same"))
    assert files_of(second.undo("same")) == {"a": b"1"}
    third = worked(second, writing("a", "3", id="same"), writing("a", "4", id="same"))
    with pytest.raises(ValueError, match="2 calls have the id 'same'; give the ToolRun"):
        third.undo("same")


def test_an_undo_can_be_undone_no_more_but_what_was_before_can() -> None:
    done = worked(placed(), writing("a", "1", id="one"), writing("a", "2", id="two"))
    undone = done.undo("two")
    with pytest.raises(ValueError, match="'two' is not behind the files of this session"):
        undone.undo("two")
    assert files_of(undone.undo("one")) == {}


def test_a_mode_and_a_name_are_brought_back_too() -> None:
    blob = Blob.from_bytes(b"1")
    large = Blob(blob.digest, blob.size)

    def chmod(session: Session, _: object) -> None:
        native = session.require_sandbox().native
        native.put("a", b"1", 0o755)
        note_effect(
            FileEffect("a", "changed", large, large, before_mode=0o100644, after_mode=0o100755)
        )

    tool = FunctionTool("chmod", chmod)
    done = worked(placed({"a": "1"}), tool_call("chmod", id="c"), running("mv a b"), tools=[tool])
    undone = done.undo("c")
    sandbox = undone.require_sandbox()
    assert (sandbox.native.files, sandbox.native.mode("a")) == ({"a": b"1"}, 0o100644)


def test_an_unknown_call_is_refused_with_the_nearest_one() -> None:
    done = worked(placed(), writing("a", "1", id="write_1"))
    with pytest.raises(ValueError, match=r"no call 'write_2'\. Did you mean 'write_1'\? Known: 'w"):
        done.undo("write_2")
    with pytest.raises(ValueError, match=r"holds no call 'other'\. Known: none"):
        placed().undo(tool_run(call_id="other"))


@pytest.mark.parametrize("gap", ["noted", "abandoned", "interrupted"])
def test_a_call_whose_changes_may_not_be_known_is_refused_unless_they_are_ignored(gap: str) -> None:
    def leave_out(session: Session, _: object) -> None:
        note_gap("too many files")

    done = worked(
        placed(), writing("a", "1", id="w"), tool_call("f"), tools=[FunctionTool("f", leave_out)]
    )
    if gap != "noted":
        done = worked(placed(), writing("a", "1", id="w"))
        done.add_entry(tool_run(status=gap))
    with pytest.raises(ValueError, match="cannot be undone for sure, since not all is known of"):
        done.undo("w")
    assert files_of(done.undo("w", gaps="ignore")) == {}


def test_a_change_that_a_call_next_to_it_may_have_made_is_not_undone_unasked() -> None:
    def both(session: Session, _: object) -> None:
        session.require_sandbox().native.put("a", b"1")
        note_effect(created("a", b"1", attribution="ambiguous"))

    turn = tool_call("f", "{}", tool_call("f", id="second"), id="first")
    done = worked(placed(), turn, tools=[FunctionTool("f", both)])
    with pytest.raises(ValueError, match="a call beside it may have changed 'a' instead"):
        done.undo("second")
    assert files_of(done.undo("second", gaps="ignore")) == {}
    assert files_of(done.undo("first")) == {}


def test_contents_that_were_not_recorded_cannot_be_undone() -> None:
    def change(session: Session, _: object) -> None:
        note_effect(FileEffect("big", "changed", Blob("0" * 64, 9), Blob("1" * 64, 9)))
        note_effect(FileEffect("b", "deleted", Blob("2" * 64, 9), None))

    done = worked(placed(), tool_call("f", id="c"), tools=[FunctionTool("f", change)])
    with pytest.raises(ValueError, match="contents before were not kept of 'b', 'big'"):
        done.undo("c")


def test_files_that_somebody_else_changed_since_stop_the_undo() -> None:
    done = worked(
        placed({"x": "0", "gone": "1"}),
        writing("x", "1", id="w"), writing("y", "1"), running("mv x z"), running("rm gone"),
    )  # fmt: skip
    done.synchronize()
    write(done, {"y": "mine", "gone": "mine", "x": "mine", "z/dir": "mine"})
    undone = done.undo("w")
    with pytest.raises(BackendError, match="somebody else changed 'gone', 'x', 'y'; put these"):
        undone.require_sandbox()


def test_a_call_inside_another_one_is_undone_with_that() -> None:
    def sub_agent(session: Session, _: object) -> str | None:
        return worked(session, writing("a", "1", id="inner")).text()

    tools = [FunctionTool("sub", sub_agent)]
    done = worked(placed(), tool_call("sub", id="outer"), writing("b", "1"), tools=tools)
    with pytest.raises(ValueError, match="'inner' has no row in this session: it ran inside"):
        done.undo("inner")
    assert files_of(done.undo("outer")) == {}


def test_a_call_before_a_merge_of_files_is_refused() -> None:
    base = placed({"a": "0"})
    one = worked(base.fork(workspace="copy"), writing("a", "1", id="w"))
    other = worked(base.fork(workspace="copy"), writing("b", "1", id="v"))
    merged = one.merge(other, files="three-way")
    with pytest.raises(ValueError, match="it ran in another sandbox, before a three"):
        merged.undo("w")
    remaining = one.merge(other, files="ours")
    assert files_of(remaining.undo("w")) == {"a": b"0"}
    with pytest.raises(ValueError, match="in a session that was merged into this one"):
        remaining.undo("v")


@pytest.mark.parametrize("status", ["done", "interrupted"])
def test_a_call_without_rows_here_is_refused(status: str) -> None:
    done = with_record(tool_run(changed("a", b"", b"1"), call_id="c", status=status))
    with pytest.raises(ValueError, match="'c' has no row in this session"):
        done.undo("c", gaps="ignore")


def test_a_check_cannot_be_undone_and_says_why() -> None:
    session = placed()
    verdict = session.check("tests", "true")
    with pytest.raises(ValueError, match="is the command of a check, which has no row to go back"):
        session.undo(f"check_{verdict.id}")


def test_what_a_call_did_that_was_cut_off_can_be_undone() -> None:
    turn = writing("a", "1", writing("b", "2", id="second"), writing("c", "3", id="third"), id="w")
    done = worked(placed(), turn)
    calls = entries_of(done, ToolRun)
    rows = done.chunk_table
    cut = [structs.replace(call, status="interrupted", rows=()) for call in calls]
    for n_kept, which in ((1, 0), (3, 1), (4, 2)):
        record = [*done.record.prefix(2), *calls[:which], *cut[which:]]
        body = Body(rows.prefix(2 + which), Vector(record))
        stopped = Session.from_body(Deferred.of(body), Provenance(), id=done.id)
        stopped.bind_sandbox(done.require_sandbox())
        undone = stopped.undo(cut[which], gaps="ignore")
        assert len(undone.chunk_table) == n_kept
        assert files_of(undone) == dict([("a", b"1"), ("b", b"2")][:which])


@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        pytest.param([created("a", b"1"), removed({"a": b"1"}, "a")], [], id="come and gone"),
        pytest.param([changed("a", b"1", b"2"), changed("a", b"2", b"1")], [], id="there and back"),
        pytest.param(
            [removed({"a": b"1"}, "a"), created("a", b"2")], [changed("a", b"1", b"2")], id="anew"
        ),
        pytest.param(
            [moved({"a": b"1"}, "a", "b"), moved({"b": b"1"}, "b", "c")],
            [moved({"a": b"1"}, "a", "c")],
            id="renamed twice",
        ),
        pytest.param(
            [moved({"a": b"1"}, "a", "b"), moved({"b": b"1"}, "b", "a")], [], id="renamed back"
        ),
        pytest.param(
            [moved({"a": b"1"}, "a", "b"), created("a", b"2")],
            [changed("a", b"1", b"2"), created("b", b"1")],
            id="another one in its place",
        ),
        pytest.param(
            [removed({"b": b"2"}, "b"), moved({"a": b"1"}, "a", "b")],
            [removed({"a": b"1"}, "a"), changed("b", b"2", b"1")],
            id="over another one",
        ),
        pytest.param(
            [removed({"a": b"1"}, "a"), changed("a", b"2", b"3")],
            [changed("a", b"1", b"3")],
            id="back unseen",
        ),
        pytest.param(
            [created("a", b"1"), created("a", b"2")], [created("a", b"2")], id="created twice"
        ),
        pytest.param(
            [created("b", b"2"), moved({"a": b"1"}, "a", "b")],
            [moved({"a": b"1"}, "a", "b")],
            id="over a new one",
        ),
    ],
)
def test_what_effects_come_to(effects: list[FileEffect], expected: list[FileEffect]) -> None:
    assert list(net_changes(effects)) == expected


def test_a_change_is_as_sure_as_the_least_sure_effect_behind_it() -> None:
    effects = [
        changed("a", b"1", b"2", attribution="ambiguous"),
        changed("a", b"2", b"3"),
        removed({"b": b"1"}, "b"),
        created("b", b"2", attribution="window"),
    ]
    assert [effect.attribution for effect in net_changes(effects)] == ["ambiguous", "window"]


def test_another_mode_is_a_change_where_both_are_known() -> None:
    one = Blob.from_bytes(b"1")
    script = FileEffect("a", "changed", one, one, before_mode=FILE, after_mode=FILE | 0o111)
    unknown = FileEffect("b", "changed", one, one, after_mode=FILE | 0o111)
    assert net_changes([script, unknown]) == (script,)
