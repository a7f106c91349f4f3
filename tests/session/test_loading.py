"""A session that is read back: how its run stands, and what it came from."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from rath._core.blobs import Blob
from rath.errors import PersistenceError, SessionDamaged
from rath.llm.chat_response import RathLLMTokenUsage, add_usage
from rath.llm.fold import tool_call_part
from rath.session import RowId, Session, assistant_turn_chunk, tool_feedback_chunk, user_text_chunk
from rath.session.chunk import ChunkTable
from rath.session.events import (
    Failed,
    Finished,
    Header,
    Intent,
    OutcomeChange,
    PartialText,
    PendingResult,
    Reopened,
    RoundEnd,
    Row,
)
from rath.session.graph.kind import LineageKind
from rath.session.loading import load, load_file
from rath.session.log.format import Encoder
from rath.session.log.reader import read_lines
from rath.session.outcome import Cancelled, Completed, NeedsDecision, RoundLimit
from rath.session.persistence.store import FileStore
from rath.session.record import Decision, Operation, ToolRun
from rath.testing import tool_call
from tests.support.api import (
    Event,
    GivenUsage,
    LogSource,
    ParsedLog,
    build,
    chained,
    closure,
    parse_log,
)
from tests.support.images import picture
from tests.support.session_files import operation, tool_run
from tests.support.sessions import FunctionTool, run
from tests.support.stored_lines import header_for, lines_for, write, write_lines

AT = datetime(2026, 1, 2, tzinfo=UTC)
SESSION = UUID(int=7)
OPERATION = operation(SESSION)
HEADER = Header(
    session=SESSION,
    created_at=AT,
    operator="run_session_loop",
    kind=LineageKind.OP_SESSION_LOOP,
)
TURN = assistant_turn_chunk(
    tool_calls=(tool_call_part("a", "f", "{}"), tool_call_part("b", "g", "{}"))
)
BEGUN: list[Event] = [
    HEADER,
    OPERATION,
    Row(0, user_text_chunk("go")),
    Row(1, TURN),
]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "sessions")


def intent(call: int = 0, call_id: str = "a", effects: str = "non_idempotent") -> Intent:
    return Intent(
        operation=OPERATION.operation,
        row=1,
        call=call,
        call_id=call_id,
        tool="f",
        effects=effects,
        at=AT,
    )


def result(call: int = 0, call_id: str = "a", said: str | None = "1") -> PendingResult:
    shown = None if said is None else tool_feedback_chunk(call_id, "f", said)
    made = tool_run(operation=OPERATION.operation, call_id=call_id)
    return PendingResult(row=1, call=call, run=made, shown=shown)


def decision(**more: Any) -> Decision:
    fields: dict[str, Any] = {
        "operation": OPERATION.operation,
        "interrupt": uuid4(),
        "choice": "retry",
        "by": "me",
        "call_id": "a",
        "arguments": {},
        "tool": "f",
        "call": 0,
        "rows": (RowId(SESSION, 1),),
    }
    return Decision(**(fields | more))


def trailer(n_rows: int, n_entries: int) -> Finished:
    return Finished(
        closed_at=AT, n_rows=n_rows, n_entries=n_entries, usage=None, outcome=Completed()
    )


def cut_off(store: FileStore, *more: Event) -> Any:
    """Return what is loaded of a run that wrote these lines and was then cut off."""
    write_lines(store, [*BEGUN, *more], is_finished=False)
    return load(store, SESSION)


# How a run stands.


def test_run_that_was_cut_off_waits_and_nothing_needs_to_be_decided(store: FileStore) -> None:
    loaded = cut_off(store)
    assert loaded.session.outcome == NeedsDecision(SESSION, ())
    assert (loaded.is_finished, len(loaded.session.chunk_table)) == (False, 2)


def test_call_with_unknown_outcome_has_to_be_decided(store: FileStore) -> None:
    loaded = cut_off(store, intent(), intent(1, "b", "idempotent"))
    assert loaded.session.outcome == NeedsDecision(SESSION, ("a",))
    assert loaded.unfinished.intents == (intent(), intent(1, "b", "idempotent"))
    assert loaded.session.body.result().unfinished == loaded.unfinished


@pytest.mark.parametrize(
    "after",
    [
        pytest.param([result()], id="result"),
        pytest.param([decision()], id="decision"),
        pytest.param([result(), RoundEnd(1, ())], id="round"),
    ],
)
def test_what_is_known_or_decided_needs_no_decision(store: FileStore, after: list[Event]) -> None:
    assert cut_off(store, intent(), *after).session.outcome == NeedsDecision(SESSION, ())


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"call_id": "b"}, id="another call"),
        pytest.param({"tool": "g"}, id="another tool"),
        pytest.param({"call": 1}, id="another place"),
        pytest.param({"rows": (RowId(SESSION, 9),)}, id="another turn"),
    ],
)
def test_decision_about_another_call_leaves_this_one_open(
    store: FileStore, other: dict[str, Any]
) -> None:
    loaded = cut_off(store, intent(), decision(**other))
    assert loaded.session.outcome == NeedsDecision(SESSION, ("a",))


def test_decision_is_used_up_when_the_call_is_begun_again(store: FileStore) -> None:
    loaded = cut_off(store, intent(), decision(), intent())
    assert loaded.session.outcome == NeedsDecision(SESSION, ("a",))
    assert len(loaded.unfinished.intents) == 1


def test_decision_on_one_of_two_calls_of_one_id_leaves_the_other_open(store: FileStore) -> None:
    loaded = cut_off(store, intent(), intent(1), decision())
    assert loaded.unfinished.decided == ()
    assert loaded.unfinished.unknown_calls == ("a", "a")


def test_entry_of_a_call_ends_it(store: FileStore) -> None:
    done = tool_run(operation=OPERATION.operation, rows=(RowId(SESSION, 2),))
    row = Row(2, tool_feedback_chunk("a", "f", "1"))
    loaded = cut_off(store, intent(), row, done)
    assert loaded.unfinished.intents == ()


def test_call_that_was_cut_off_is_still_open(store: FileStore) -> None:
    gone = tool_run(operation=OPERATION.operation, status="interrupted")
    assert cut_off(store, intent(), gone).unfinished.intents == (intent(),)


def test_call_of_a_run_inside_the_call_ends_only_its_own(store: FileStore) -> None:
    inside = tool_run(operation=uuid4(), rows=(RowId(uuid4(), 2),))
    assert cut_off(store, intent(), inside).unfinished.intents == (intent(),)


def test_results_are_kept_for_the_round_that_was_not_done(store: FileStore) -> None:
    loaded = cut_off(store, intent(), intent(1, "b"), result(1, "b"))
    (left,) = loaded.unfinished.results
    assert (left.call, left.run.call_id, left.shown.payload["content"]) == (1, "b", "1")
    assert loaded.session.outcome == NeedsDecision(SESSION, ("a",))
    assert len(loaded.session.chunk_table) == 2


def test_round_makes_rows_and_entries_of_results_in_call_order(store: FileStore) -> None:
    second, first = result(1, "b", "2"), result(0, "a", "1")
    loaded = cut_off(store, second, first, RoundEnd(1, (first.run.id, second.run.id)))
    session, unfinished = loaded.session, loaded.unfinished
    assert [row.payload["content"] for row in session.chunk_table.since(2)] == ["1", "2"]
    assert [row.id for row in session.chunk_table.since(2)] == [
        RowId(SESSION, 2),
        RowId(SESSION, 3),
    ]
    runs = [entry for entry in session.record if isinstance(entry, ToolRun)]
    assert [(each.call_id, each.rows) for each in runs] == [
        ("a", (RowId(SESSION, 2),)),
        ("b", (RowId(SESSION, 3),)),
    ]
    assert (unfinished.intents, unfinished.results) == ((), ())
    assert session.evidence_of(session.chunk_table[3]) is runs[1]


def test_result_without_a_row_becomes_an_entry_only(store: FileStore) -> None:
    gone, there = result(0, "a", None), result(1, "b")
    loaded = cut_off(store, gone, there, RoundEnd(1, (gone.run.id, there.run.id)))
    assert len(loaded.session.chunk_table) == 3
    assert [each.rows for each in loaded.session.record.since(1)] == [(), (RowId(SESSION, 2),)]


def test_round_with_a_result_that_is_nowhere_is_damage(store: FileStore) -> None:
    with pytest.raises(SessionDamaged, match=r":5: the round of row 1 names result"):
        cut_off(store, RoundEnd(1, (uuid4(),)))


def test_text_of_a_broken_stream_is_kept_until_its_row_is_there(store: FileStore) -> None:
    said = [PartialText(OPERATION.operation, text) for text in ("ha", "lf")]
    assert cut_off(store, *said).unfinished.partial_text == "half"


def test_row_takes_the_place_of_what_was_streamed(store: FileStore) -> None:
    row = Row(2, user_text_chunk("whole"))
    assert (
        cut_off(store, PartialText(OPERATION.operation, "half"), row).unfinished.partial_text == ""
    )


def test_cancelled_run_is_cancelled(store: FileStore) -> None:
    loaded = cut_off(store, intent(), Failed("cancelled", "", AT))
    assert loaded.session.outcome == Cancelled(SESSION)
    assert loaded.unfinished.intents == (intent(),)


def test_failed_run_waits_and_says_why_it_failed(store: FileStore) -> None:
    loaded = cut_off(store, Failed("failed", "ProviderError: no", AT))
    assert loaded.session.outcome == NeedsDecision(SESSION, ())
    assert loaded.unfinished.failure.error == "ProviderError: no"


def test_run_that_goes_on_has_its_failure_behind_it(store: FileStore) -> None:
    loaded = cut_off(store, Failed("cancelled", "", AT), Reopened(AT))
    assert loaded.session.outcome == NeedsDecision(SESSION, ())
    assert loaded.unfinished.failure is None


def test_run_that_ended_and_goes_on_has_not_ended(store: FileStore) -> None:
    late = tool_run()
    more: list[Event] = [trailer(2, 1), late, Reopened(AT), Row(2, user_text_chunk("more"))]
    loaded = cut_off(store, *more)
    assert loaded.session.outcome == NeedsDecision(SESSION, ())
    assert (len(loaded.session.chunk_table), len(loaded.session.record)) == (3, 2)


def test_decision_after_the_end_changes_how_it_stands(store: FileStore) -> None:
    waiting = replace(trailer(2, 1), outcome=NeedsDecision(SESSION, ("a",)))
    write_lines(store, [*BEGUN, waiting, OutcomeChange(RoundLimit(3))])
    loaded = load(store, SESSION)
    assert loaded.session.outcome == RoundLimit(3)
    assert (loaded.is_finished, loaded.unfinished) == (True, None)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([Row(3, user_text_chunk("x"))], ":5: row 3 stands where row 2 is expected"),
        ([trailer(3, 1)], "counts 3 rows and 1 entries, and there are 2 and 1"),
        ([trailer(2, 4)], "counts 2 rows and 4 entries, and there are 2 and 1"),
    ],
    ids=["row", "rows", "entries"],
)
def test_counts_that_do_not_fit_are_damage(
    store: FileStore, lines: list[Event], words: str
) -> None:
    with pytest.raises(SessionDamaged, match=words):
        cut_off(store, *lines)


def test_what_contradicts_itself_is_left_out_when_asked_for(store: FileStore) -> None:
    lines = [*BEGUN, Row(7, user_text_chunk("x")), tool_run()]
    write_lines(store, lines, is_finished=False)
    loaded = load(store, SESSION, recover=True)
    assert (len(loaded.session.chunk_table), len(loaded.session.record)) == (2, 1)
    assert loaded.problem is not None
    assert loaded.problem.line == 5


def test_images_in_the_rows_of_an_agent_have_their_bytes(store: FileStore) -> None:
    shown = user_text_chunk("like this", images=[picture(b"cat")])
    session = run(["hi"], agent=Session(ChunkTable([shown]))).synchronize()
    session.save(store=store)
    began = load(store, session.id).session.record[0]
    assert isinstance(began, Operation)
    assert began.head[0].images[0].blob.data == picture(b"cat")


# What it came from.


def test_session_comes_back_with_all_it_was_given(store: FileStore) -> None:
    user = Session.from_user_message("go").to("local")
    session = run(["hi"], user=user).fork()
    lineage = (uuid4(), uuid4(), "run_session_loop")
    usage = RathLLMTokenUsage(1, 2, 3)
    lines = lines_for(session)
    header = replace(
        header_for(session),
        lineage=lineage,
        given=(GivenUsage(uuid4(), usage),),
        extras=(("a", 1),),
    )
    write_lines(store, [header, *lines[1:]])
    loaded = load(store, str(session.id)).session
    assert loaded.lineage is not None
    assert loaded.lineage.producer_user_session_id == lineage[0]
    assert loaded.lineage_extras == (("a", 1),)
    assert (loaded.lineage_operator, loaded.lineage_kind) == ("Session.fork", LineageKind.OP_FORK)
    assert loaded.cumulative_usage == add_usage(session.cumulative_usage, usage)
    assert (loaded.sandbox_backend, loaded.sandbox) == ("local", None)


def test_child_stands_on_the_rows_and_entries_of_its_parent(store: FileStore) -> None:
    parent = run(["hi"], user=Session.from_user_message("go")).synchronize()
    child = parent.fork()
    write(store, parent)
    write(store, child, parent)
    loaded = load(store, child.id)
    (edge,) = loaded.session.provenance.parents
    assert edge.body is not None
    body = edge.body.result()
    assert loaded.session.chunk_table.vector.common_prefix(body.table.vector) == 2
    assert loaded.session.record.common_prefix(body.record) == len(parent.record)
    assert loaded.header.rows[0].session == parent.id
    assert (edge.n_rows, edge.late) == (2, None)


def test_late_entries_belong_to_the_record_and_to_later_children_only(store: FileStore) -> None:
    parent = Session.from_user_message("go")
    early = parent.fork()
    parent.add_entry(operation(kind="check"))
    late = parent.fork()
    write(store, parent)
    for child in (early, late):
        write(store, child, parent)
    loaded = {each.id: load(store, each.id).session for each in (parent, early, late)}
    assert loaded[parent.id].record == parent.record
    assert loaded[early.id].record == early.record
    assert loaded[late.id].record == late.record
    lates = [loaded[each.id].provenance.parents[0].late for each in (early, late)]
    assert lates == [None, parent.record]


def test_child_made_inside_a_call_knew_the_rows_so_far(store: FileStore) -> None:
    children: list[Session] = []

    def fork(session: Session, _: object) -> str:
        children.append(session.fork())
        return "ok"

    tool = FunctionTool("f", fork)
    parent = run([tool_call("f", {}), "done"], tool).synchronize()
    (child,) = children
    write(store, parent)
    write(store, child, parent)
    (edge,) = load(store, child.id).session.provenance.parents
    assert (edge.n_rows, len(parent.chunk_table)) == (2, 4)


def test_merge_knows_the_record_of_its_second_parent(store: FileStore) -> None:
    root = run(["hi"]).synchronize()
    mine, theirs = root.fork(), root.fork()
    merged = mine.merge(theirs)
    write(store, root)
    write(store, mine, root)
    write(store, theirs, root)
    write(store, merged, mine, theirs)
    (entry,) = load(store, merged.id).session.record.since(len(merged.record) - 1)
    assert isinstance(entry, Operation)
    assert entry.theirs == theirs.record


def test_merge_whose_second_parent_is_gone_does_not_say_what_that_had(store: FileStore) -> None:
    root = run(["hi"]).synchronize()
    mine, theirs = root.fork(), root.fork()
    merged = mine.merge(theirs)
    for session in (root, mine, theirs):
        write(store, session, *([] if session is root else [root]))
    write(store, merged, mine, theirs)
    header, *rest = lines_for(merged, mine, theirs)
    assert isinstance(header, Header)
    assert store.delete(merged.id)
    kept = replace(header, parents=(mine.id, uuid4()))
    write_lines(store, [kept, *rest])
    entry = load(store, merged.id).session.record[-1]
    assert isinstance(entry, Operation)
    assert entry.theirs is None


def test_second_parent_that_has_less_than_it_had_is_damage(store: FileStore) -> None:
    mine, theirs = Session.from_user_message("a"), Session.from_user_message("b")
    first, second = mine.fork(), theirs.fork()
    merged = first.merge(second)
    for session in (mine, theirs):
        write(store, session)
    write(store, first, mine)
    header, *rest = lines_for(merged, first, second)
    write_lines(store, [header, *rest])
    # The log of the second parent, without the entry that it had.
    cut_short = replace(header_for(second, theirs), rows=())
    write_lines(store, [cut_short], is_finished=False)
    with pytest.raises(SessionDamaged, match=str(second.id)):
        load(store, merged.id)


def test_number_of_entries_that_nobody_can_have_is_damage(store: FileStore) -> None:
    first, second = Session.from_user_message("a").fork(), Session.from_user_message("b").fork()
    merged = first.merge(second)
    for session in (first, second):
        write(store, session)
    write(store, merged, first, second)
    path = store.path(merged.id)
    bare = [line[: line.rindex(b',"sum"')] + b"}" for line in path.read_bytes().splitlines()]
    forged = [line.replace(b'"n_theirs":1', b'"n_theirs":-1') for line in bare]
    assert forged != bare
    path.write_bytes(chained(forged, "", is_compact=True)[0])
    with pytest.raises(SessionDamaged, match=f"second parent {second.id} had -1 entries"):
        load(store, merged.id)


@pytest.mark.parametrize("count", [-1, 9])
def test_merge_that_began_with_more_than_there_was_is_damage(store: FileStore, count: int) -> None:
    first, second = Session.from_user_message("a").fork(), Session.from_user_message("b").fork()
    merged = first.merge(second)
    for session in (first, second):
        write(store, session)
    write(store, merged, first, second)
    path = store.path(merged.id)
    bare = [line[: line.rindex(b',"sum"')] + b"}" for line in path.read_bytes().splitlines()]
    forged = [line.replace(b'"n_ours":1', b'"n_ours":%d' % count) for line in bare]
    assert forged != bare
    path.write_bytes(chained(forged, "", is_compact=True)[0])
    with pytest.raises(SessionDamaged, match=f"had {count} entries, and 2 stand before it"):
        load(store, merged.id)


def test_parent_that_is_gone_is_known_by_its_id(store: FileStore) -> None:
    parent = Session.from_user_message("go")
    child = parent.fork()
    write(store, child)
    (edge,) = load(store, child.id).session.provenance.parents
    assert (edge.id, edge.body, edge.provenance) == (parent.id, None, None)


def test_parent_that_is_gone_with_what_the_session_begins_with_is_an_error(
    store: FileStore,
) -> None:
    parent = Session.from_user_message("go")
    child = parent.fork()
    write(store, child, parent)
    with pytest.raises(SessionDamaged, match=f"rows 0 to 1 of session {parent.id}, which is not"):
        load(store, child.id)
    loaded = load(store, child.id, recover=True)
    assert (len(loaded.session.chunk_table), loaded.session.outcome) == (
        0,
        NeedsDecision(child.id, ()),
    )
    assert isinstance(loaded.problem, SessionDamaged)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stop": 2}, "which has only 1"),
        ({"digest": "0" * 64}, "these are not what they were"),
    ],
    ids=["too long", "another digest"],
)
def test_range_that_does_not_fit_is_damage_and_names_both_sessions(
    store: FileStore, change: dict[str, Any], words: str
) -> None:
    parent = Session.from_user_message("go")
    child = parent.fork()
    write(store, parent)
    header, *rest = lines_for(child, parent)
    assert isinstance(header, Header)
    write_lines(store, [replace(header, rows=(replace(header.rows[0], **change),)), *rest])
    with pytest.raises(SessionDamaged, match=words) as caught:
        load(store, child.id)
    assert str(parent.id) in str(caught.value)
    assert str(child.id) in str(caught.value)


def test_damage_in_a_parent_says_who_came_from_it(store: FileStore) -> None:
    parent = Session.from_user_message("go")
    child = parent.fork()
    write(store, parent)
    write(store, child, parent)
    path = store.path(parent.id)
    path.write_bytes(path.read_bytes().replace(b"go", b"no"))
    with pytest.raises(SessionDamaged, match=f"{parent.id}.jsonl:2") as caught:
        load(store, child.id)
    assert str(child.id) in "".join(caught.value.__notes__)
    loaded = load(store, child.id, recover=True)
    assert len(loaded.session.chunk_table) == 0


def test_session_that_builds_on_itself_is_damage(store: FileStore) -> None:
    one, two = UUID(int=1), UUID(int=2)
    for session, parent in ((one, two), (two, one)):
        header = replace(HEADER, session=session, parents=(parent,))
        write_lines(store, [header], is_finished=False)
    with pytest.raises(SessionDamaged, match="builds on itself"):
        load(store, one)


def test_thousands_of_ancestors_are_no_depth() -> None:
    """Without files: what is tested is that nothing recurses."""

    def content(number: int) -> ParsedLog:
        parents = (UUID(int=number - 1),) if number > 1 else ()
        header = replace(HEADER, session=UUID(int=number), parents=parents)
        data = Encoder(header.session).add(header).data
        return parse_log(read_lines(data, "log"), lambda row: row)

    contents = closure(content(3_000), lambda session: content(session.int))
    assert len(contents) == 3_000
    built = build(contents)[UUID(int=3_000)]
    assert built.provenance.parent_ids == (UUID(int=2_999),)


def test_what_was_built_before_is_built_on(store: FileStore) -> None:
    root = run(["hi"]).synchronize()
    child = root.fork()
    grandchild = child.fork()
    grandchild.save(store=store)
    asked: list[UUID] = []
    source = LogSource(store)

    def find(session: UUID) -> ParsedLog | None:
        asked.append(session)
        return source.find(session)

    def content(session: Session) -> ParsedLog:
        found = source.find(session.id)
        assert found is not None
        return found

    first = build(closure(content(child), find))
    asked.clear()
    both = build(closure(content(grandchild), find, known=first), known=first)
    assert asked == []
    assert both[root.id] is first[root.id]
    mine, theirs = (both[each.id].rows.items for each in (child, grandchild))
    assert mine.common_prefix(theirs) == len(root.chunk_table)


# Where it is.


def test_session_that_is_not_there_is_named(store: FileStore) -> None:
    with pytest.raises(PersistenceError, match=f"{SESSION} not found in"):
        load(store, SESSION)


def test_log_of_another_session_is_refused(store: FileStore) -> None:
    write_lines(store, [HEADER, trailer(0, 0)])
    other = uuid4()
    store.path(SESSION).rename(store.path(other))
    with pytest.raises(SessionDamaged, match=f"is the log of session {SESSION}"):
        load(store, other)
    assert load_file(store.path(other), store).session.id == SESSION


def test_log_is_gone_on_with_where_it_was_read_up_to(store: FileStore) -> None:
    loaded = cut_off(store)
    path = store.path(SESSION).with_name(f"{SESSION}.jsonl.__partial__")
    with path.open("ab") as file:
        file.write(b'{"event":"ro')
    loaded = load(store, SESSION)
    assert loaded.n_torn == 12
    log = store.reopen(SESSION, loaded.size)
    batch = loaded.reader.encoder().add(Row(2, user_text_chunk("more")))
    log.append(batch.data)
    log.abandon()
    again = load(store, SESSION)
    assert (len(again.session.chunk_table), again.n_torn) == (3, 0)
    assert again.sum == again.reader.sum != loaded.sum


def test_contents_are_read_when_somebody_wants_them(store: FileStore) -> None:
    blob = Blob.from_bytes(b"x" * 1000)
    write_lines(store, [*BEGUN, tool_run(shown=blob, full=blob)], is_finished=False)
    asked: list[str] = []

    class Watched(FileStore):
        def blob(self, digest: str) -> bytes | None:
            asked.append(digest)
            return super().blob(digest)

    watched = Watched(store.directory)
    entry = load(watched, SESSION).session.record[1]
    assert asked == []
    assert isinstance(entry, ToolRun)
    assert entry.full is not None
    assert (entry.shown.data, entry.full.data) == (blob.data, blob.data)
    assert asked == [blob.digest]
