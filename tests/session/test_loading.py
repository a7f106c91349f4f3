"""A session that is read back: how its run stands, and what it came from."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from rath import autosave
from rath._core.blobs import Blob
from rath.errors import PersistenceError, SessionDamaged
from rath.llm.chat_response import tool_call_part
from rath.session import (
    ChunkTable,
    RowId,
    Session,
    assistant_turn_chunk,
    load_session,
    save_many,
    tool_feedback_chunk,
    user_text_chunk,
)
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
from rath.session.outcome import Cancelled, Completed, NeedsDecision, RoundLimit
from rath.session.persistence.store import FileStore, default_store
from rath.session.record import Decision, Operation, ToolRun
from tests.support.api import Event, chained, open_logs_of
from tests.support.images import picture
from tests.support.session_files import operation, tool_run
from tests.support.sessions import run
from tests.support.store_lines import lines_for, write, write_lines
from tests.support.waiting import PATIENCE

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


def result(call: int = 0, call_id: str = "a", reply: str | None = "1") -> PendingResult:
    shown = None if reply is None else tool_feedback_chunk(call_id, "f", reply)
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


UNKNOWN, KNOWN = NeedsDecision(SESSION, ("a",)), NeedsDecision(SESSION, ())


NOTHING: dict[str, Any] = {"intents": (), "results": (), "decided": (), "partial_text": ""}


OPEN = {"intents": (intent(),)}


CANCELLED, FAILED = Failed("cancelled", "", AT), Failed("failed", "ProviderError: no", AT)


RESULT, DECISION = result(), decision()


ENTRY: dict[str, Any] = {"operation": OPERATION.operation}


HALF = [PartialText(OPERATION.operation, text) for text in ("ha", "lf")]


@pytest.mark.parametrize(
    ("lines", "outcome", "left"),
    [
        ([], KNOWN, NOTHING),
        ([intent(), intent(1, "b", "idempotent")], UNKNOWN, {}),
        ([intent(1, "b"), RESULT], NeedsDecision(SESSION, ("b",)), {"results": (RESULT,)}),
        ([intent(), RESULT], KNOWN, {}),
        ([intent(), RESULT, RoundEnd(1, (RESULT.run.id,))], KNOWN, NOTHING),
        ([intent(), DECISION], KNOWN, {}),
        ([intent(), decision(call_id="b")], UNKNOWN, OPEN),
        ([intent(), decision(tool="g")], UNKNOWN, OPEN),
        ([intent(), decision(call=1)], UNKNOWN, OPEN),
        ([intent(), decision(rows=(RowId(SESSION, 9),))], UNKNOWN, OPEN),
        ([intent(), DECISION, intent()], UNKNOWN, OPEN),
        ([intent(), intent(1), DECISION], NeedsDecision(SESSION, ("a", "b")), {"decided": ()}),
        ([intent(), tool_run(**ENTRY, status="interrupted")], UNKNOWN, OPEN),
        ([intent(), tool_run(rows=(RowId(SESSION, 2),))], UNKNOWN, OPEN),
        ([intent(), Row(2, tool_feedback_chunk("a", "f", "1")),
          tool_run(**ENTRY, rows=(RowId(SESSION, 2),))], KNOWN, NOTHING),
        (HALF, KNOWN, {"partial_text": "half"}),
        ([*HALF, Row(2, user_text_chunk("whole"))], KNOWN, NOTHING),
        ([intent(), CANCELLED], Cancelled(SESSION), {**OPEN, "failure": CANCELLED}),
        ([FAILED], KNOWN, {"failure": FAILED}),
        ([CANCELLED, Reopened(AT)], KNOWN, {**NOTHING, "failure": None}),
        ([trailer(2, 1), tool_run(), Reopened(AT), Row(2, user_text_chunk("x"))], KNOWN, NOTHING),
    ],
)  # fmt: skip
def test_how_a_run_stands_that_was_cut_off(
    store: FileStore, lines: list[Event], outcome: object, left: dict[str, Any]
) -> None:
    loaded = cut_off(store, *lines)
    assert (loaded.session.outcome, loaded.is_finished) == (outcome, False)
    assert loaded.session.core.body.result().unfinished == loaded.unfinished
    assert {name: getattr(loaded.unfinished, name) for name in left} == left


def test_results_become_rows_in_the_order_of_their_calls(store: FileStore) -> None:
    second, gone = result(1, "b", "2"), result(0, "a", None)
    session = cut_off(store, second, gone, RoundEnd(1, (gone.run.id, second.run.id))).session
    (row,) = session.chunk_table.since(2)
    assert (row.payload["content"], row.id) == ("2", RowId(SESSION, 2))
    assert session.evidence_of(row) is session.record[-1]
    runs = [(entry.call_id, entry.rows) for entry in session.record.since(1)]
    assert runs == [("a", ()), ("b", (RowId(SESSION, 2),))]


def test_decision_after_the_end_changes_how_it_stands(store: FileStore) -> None:
    waiting = replace(trailer(2, 1), outcome=NeedsDecision(SESSION, ("a",)))
    write_lines(store, [*BEGUN, waiting, OutcomeChange(RoundLimit(3))])
    loaded = load(store, SESSION)
    assert loaded.session.outcome == RoundLimit(3)
    assert (loaded.is_finished, loaded.unfinished) == (True, None)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (Row(3, user_text_chunk("x")), ":5: row 3 stands where row 2 is expected"),
        (trailer(3, 1), "counts 3 rows and 1 entries, and there are 2 and 1"),
        (trailer(2, 4), "counts 2 rows and 4 entries, and there are 2 and 1"),
        (RoundEnd(1, (uuid4(),)), ":5: the round of row 1 names result"),
    ],
    ids=["row", "rows", "entries", "result"],
)
def test_lines_that_contradict_are_damage(store: FileStore, line: Event, words: str) -> None:
    with pytest.raises(SessionDamaged, match=words):
        cut_off(store, line, tool_run())
    loaded = load(store, SESSION, recover=True)
    n_entries = 2 if isinstance(line, Finished) else 1  # what follows an end came late
    assert (len(loaded.session.chunk_table), len(loaded.session.record)) == (2, n_entries)
    assert loaded.problem is not None


# What it came from.


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
    remaining = replace(header, parents=(mine.id, uuid4()))
    write_lines(store, [remaining, *rest])
    entry = load(store, merged.id).session.record[-1]
    assert isinstance(entry, Operation)
    assert entry.theirs is None


@pytest.mark.parametrize(
    ("field", "count", "problem"),
    [
        ("n_ours", -1, "had -1 entries, and 2 stand before it"),
        ("n_ours", 9, "had 9 entries, and 2 stand before it"),
        ("n_theirs", -1, "second parent .* had -1 entries"),
    ],
)
def test_impossible_merge_is_damage(store: FileStore, field: str, count: int, problem: str) -> None:
    first, second = Session.from_user_message("a").fork(), Session.from_user_message("b").fork()
    merged = first.merge(second)
    for session in (first, second):
        write(store, session)
    write(store, merged, first, second)
    path = store.path(merged.id)
    bare = [line[: line.rindex(b',"sum"')] + b"}" for line in path.read_bytes().splitlines()]
    old, new = f'"{field}":1'.encode(), f'"{field}":{count}'.encode()
    forged = [line.replace(old, new) for line in bare]
    assert forged != bare
    path.write_bytes(chained(forged, "", is_compact=True)[0])
    with pytest.raises(SessionDamaged, match=problem):
        load(store, merged.id)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stop": 2}, "which has only 1"),
        ({"digest": "0" * 64}, "these are not what they were"),
    ],
    ids=["too long", "another digest"],
)
def test_range_that_does_not_fit_names_both(
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


# Where it is.


def test_log_of_another_session_is_refused(store: FileStore) -> None:
    write_lines(store, [HEADER, trailer(0, 0)])
    other = uuid4()
    store.path(SESSION).rename(store.path(other))
    with pytest.raises(SessionDamaged, match=f"is the log of session {SESSION}"):
        load(store, other)
    assert load_file(store.path(other), store).session.id == SESSION


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


@pytest.fixture
def saved() -> Session:
    """A run whose parent is stored too."""
    session = run(["hi"], user=Session.from_user_message("go")).synchronize()
    session.save()
    return session


def test_one_session_is_no_list_to_save() -> None:
    with pytest.raises(TypeError, match=r"write session\.save\(\)"):
        save_many(Session.create("empty"))  # type: ignore[arg-type]  # the point


def test_parents_are_loaded_from_next_to_the_file(saved: Session, tmp_path: Path) -> None:
    path = FileStore().path(saved.id)
    for name in (path, str(path)):
        assert Session.load(name).provenance.parents[0].n_rows == 1
    copy = tmp_path / "copy.jsonl"
    shutil.copy(path, copy)
    with pytest.raises(SessionDamaged, match="which is not there"):
        Session.load(copy)
    assert Session.load(copy, store=FileStore()).record == saved.record
    assert len(Session.load(copy, recover=True).chunk_table) == 0


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PersistenceError, match="not found"):
        Session.load(uuid4())
    with pytest.raises(PersistenceError, match="not found"):
        Session.load(tmp_path / "none.jsonl")
    with pytest.raises(PersistenceError, match="cannot be read"):
        Session.load(tmp_path)


def test_what_is_made_of_a_loaded_session_is_stored_by_what_is_new(saved: Session) -> None:
    store = FileStore()
    first = run(["more"], user=Session.load(saved.id)).synchronize()
    first.save()
    second = Session.load(first.id).fork().merge(Session.load(saved.id))
    second.save()
    read = load_session(second.id).loaded
    assert read is not None
    assert sum(part.stop - part.start for part in read.header.rows) == len(second.chunk_table)
    assert store.path(second.id).stat().st_size < 3000
    again = Session.load(second.id)
    assert (again.chunk_table, again.record) == (second.chunk_table, second.record)


def test_resumable_pair_has_the_record_and_counts_its_calls_once(saved: Session) -> None:
    user, _ = load_session(saved.id).to_resumable_pair()
    assert user.id != saved.id
    assert user.record == saved.record
    assert user.merge(saved).cumulative_usage == saved.cumulative_usage


def test_images_in_the_rows_of_an_agent_have_their_bytes(store: FileStore) -> None:
    shown = user_text_chunk("like this", images=[picture(b"cat")])
    session = run(["hi"], agent=Session(ChunkTable([shown]))).synchronize()
    session.save(store=store)
    began = load(store, session.id).session.record[0]
    assert isinstance(began, Operation)
    assert began.head[0].images[0].blob.data == picture(b"cat")


def test_a_session_that_waits_for_its_log_is_loaded_when_that_is_there() -> None:
    is_free = threading.Event()
    before = open_logs_of(default_store()).lane.put(is_free.wait)
    with autosave():
        fork = Session.from_user_message("hi").fork()
    with ThreadPoolExecutor(1) as threads:
        loading = threads.submit(Session.load, fork.id)
        with pytest.raises(TimeoutError):
            loading.result(0.1)
        is_free.set()
        assert loading.result(PATIENCE).id == fork.id
    assert before.done()
