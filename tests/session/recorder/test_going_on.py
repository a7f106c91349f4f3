"""A run that goes on is written in the log in which it was begun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace

from rath.errors import PersistenceError
from rath.session import Session
from rath.session.chunk import tool_feedback_chunk
from rath.session.events import Intent, PendingResult, Reopened
from rath.session.log.verify import verify
from rath.session.outcome import Completed, NeedsDecision
from rath.session.persistence.store import FileStore, SessionLog
from rath.session.record import ToolRun
from rath.testing import tool_call
from tests.support.api import RecordingPlan, own_operation, partial_beside, read_log
from tests.support.cut_off import NOON
from tests.support.cut_off import cut_off as cut_short
from tests.support.sessions import FunctionTool, run


def echo(_: Session, arguments: object) -> object:
    return arguments


ECHO = FunctionTool("echo", echo)
CALLS = tool_call("echo", {"n": 1}, tool_call("echo", {"n": 2}))


def cut_off(**options: Any) -> Session:
    """Return a run that failed after a round of tools."""
    out = run([CALLS, ValueError("the model broke")], ECHO, **options)
    with pytest.raises(ValueError, match="the model broke"):
        out.synchronize()
    return out


def kinds_of(path: Path) -> list[str]:
    return [json.loads(line).get("event", "header") for line in path.read_bytes().splitlines()]


def assert_is(loaded: Session, live: Session) -> None:
    assert loaded.chunk_table == live.chunk_table
    assert list(loaded.record) == list(live.record)
    assert loaded.outcome == live.outcome == Completed()


def test_it_goes_on_in_the_same_log() -> None:
    first = cut_off(persist=True)
    waiting = Session.load(first.id)
    assert waiting.outcome == NeedsDecision(first.id, ())
    out = run([tool_call("echo"), "done"], ECHO, user=waiting).synchronize()
    assert out.id == first.id
    kinds = kinds_of(FileStore().path(out.id))
    assert [kind for kind in kinds if kind in ("failed", "reopened", "finished")] == [
        "failed",
        "reopened",
        "finished",
    ]
    assert_is(Session.load(out.id), out)
    assert verify(FileStore(), out.id).problems == ()


def test_it_goes_on_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    cut_off(persist_path=path)
    waiting = Session.load(partial_beside(path))
    out = run(["done"], ECHO, user=waiting).synchronize()
    assert [file.name for file in tmp_path.iterdir()] == ["run.jsonl"]
    assert_is(Session.load(path), out)


def test_it_is_written_whole_where_its_log_is_gone() -> None:
    first = cut_off(persist=True)
    waiting = Session.load(first.id)
    FileStore().delete(first.id)
    out = run(["done"], ECHO, user=waiting, persist=True).synchronize()
    assert_is(Session.load(out.id), out)


def test_a_torn_line_is_cut_off_before_it_goes_on() -> None:
    first = cut_off(persist=True)
    partial = partial_beside(FileStore().path(first.id))
    with partial.open("ab") as file:
        file.write(b'{"event":"row","ind')
    out = run(["done"], ECHO, user=Session.load(first.id)).synchronize()
    assert_is(Session.load(out.id), out)


def test_a_log_that_grew_since_it_was_read_is_not_gone_on_with() -> None:
    first = cut_off(persist=True)
    waiting = Session.load(first.id)
    other = run(["done"], ECHO, user=Session.load(first.id)).synchronize()
    late = run(["never"], ECHO, user=waiting)
    with pytest.raises(PersistenceError, match="somebody else has gone on with it"):
        late.synchronize()
    assert_is(Session.load(first.id), other)


def asked() -> Session:
    """Return a run as it was loaded that was cut off before its calls were begun."""
    whole = run([CALLS, "done"], ECHO).synchronize()
    cut_short(whole, 0).save()
    return Session.load(whole.id)


def gone_on_with(session: Session, *lines: Intent | PendingResult) -> None:
    """Add lines to a log as another process does, which is killed then."""
    store = FileStore()
    written = read_log(store, session.id)
    log = store.reopen(session.id, written.reader.n_good)
    encoder = written.reader.encoder()
    log.append(encoder.add(Reopened(NOON), *lines).data)
    log.abandon()


def intent_of(session: Session, call: int, *, minute: int = 0) -> Intent:
    operation = own_operation(session.record, session.id)
    assert operation is not None
    each = session.open_calls[call]
    return Intent(
        operation=operation.operation,
        row=each.row,
        call=call,
        call_id=each.call.id,
        tool="echo",
        effects="non_idempotent",
        at=NOON.replace(minute=minute),
    )


def result_of(session: Session, call: int) -> PendingResult:
    made = run([tool_call("echo"), "done"], ECHO).record
    each = structs.replace(next(entry for entry in made if isinstance(entry, ToolRun)), rows=())
    return PendingResult(
        row=session.open_calls[call].row, call=call, run=each, shown=tool_feedback_chunk("", "", "")
    )


@pytest.mark.parametrize("make", [intent_of, result_of], ids=["begun", "done"])
def test_a_call_that_somebody_else_made_since_is_not_made_again(make: Any) -> None:
    waiting = asked()
    gone_on_with(waiting, make(waiting, 1))
    late = run(["never"], FunctionTool("echo", pytest.fail), user=waiting)
    with pytest.raises(PersistenceError, match="somebody else has gone on with it"):
        late.synchronize()


def test_a_decision_does_not_hold_for_a_call_that_somebody_else_made_since() -> None:
    first = asked()
    gone_on_with(first, intent_of(first, 0))
    waiting = Session.load(first.id)
    waiting.decide(waiting.open_calls[0], "retry")
    gone_on_with(first, intent_of(first, 0, minute=1))
    late = run(["never"], FunctionTool("echo", pytest.fail), user=waiting)
    with pytest.raises(PersistenceError, match="somebody else has gone on with it"):
        late.synchronize()


def test_a_call_that_was_begun_more_than_once_goes_on_from_the_last_time() -> None:
    first = asked()
    for minute in range(3):
        gone_on_with(first, replace(intent_of(first, 0, minute=minute), effects="idempotent"))
    repeatable = FunctionTool("echo", echo)
    repeatable.effects = "idempotent"
    out = run(["done"], repeatable, user=Session.load(first.id)).synchronize()
    assert_is(Session.load(out.id), out)


def test_what_is_made_anew_keeps_what_was_there_aside() -> None:
    first = cut_off(persist=True)
    store = FileStore()
    before = partial_beside(store.path(first.id)).read_bytes()
    log = RecordingPlan(store=store).begin(store, first.id)
    assert isinstance(log, SessionLog)
    log.append(b"{}\n")
    log.abandon()
    partial = partial_beside(store.path(first.id))
    assert partial.read_bytes() == b"{}\n"
    assert partial.with_name(f"{partial.name}.1").read_bytes() == before


def test_what_is_finished_is_not_made_anew() -> None:
    out = run(["done"], persist=True).synchronize()
    store = FileStore()
    with pytest.raises(PersistenceError, match="is there already"):
        RecordingPlan(store=store).begin(store, out.id)
