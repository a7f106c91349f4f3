from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

from msgspec.structs import replace

from rath._core.blobs import Blob
from rath.session import Session
from rath.session.events import Intent, PendingResult
from rath.session.persistence.store import default_store
from rath.session.record import ToolRun
from rath.session.view.page import MAX_NOW, Feed, doing_now
from tests.session.view.page.conftest import SlowRun
from tests.support.api import Unfinished
from tests.support.sessions import run

AT = datetime(2026, 11, 22, 12, 30, tzinfo=UTC)
INTENT = Intent(
    operation=uuid4(), row=1, call=0, call_id="a", tool="edit", effects="idempotent", at=AT
)
RUN = ToolRun(
    operation=uuid4(),
    call_id="b",
    tool="read",
    origin="built-in",
    schema_digest=None,
    effects_declared="read_only",
    arguments=None,
    sandbox=None,
    status="done",
    error_kind=None,
    exit_code=None,
    signal=None,
    duration_ms=1.0,
    shown=Blob.from_bytes(b""),
    full=None,
    file_effects=(),
)


def test_nothing_is_done_by_a_run_that_is_over() -> None:
    assert doing_now(None) == ()


def test_what_a_run_does_is_told_in_order() -> None:
    left = Unfinished(
        intents=(INTENT, replace(INTENT, call=1, tool="shell")),
        results=(PendingResult(row=1, call=2, run=RUN, shown=None),),
        partial_text="x" * MAX_NOW + "the end",
    )
    done, *tools, text = doing_now(left)
    assert done == ("done", "read")
    assert tools == [
        ("runs", "edit, since 12:30:00 UTC"),
        ("runs", "shell, since 12:30:00 UTC"),
    ]
    assert text == ("writes", ("x" * MAX_NOW + "the end")[-MAX_NOW:])


def test_a_feed_tells_of_a_run_until_it_is_over(slow_run: SlowRun) -> None:
    feed = Feed(default_store(), slow_run.session.id)
    first = feed.read()
    assert (first.state, first.is_over) == ("running", False)
    slow_run.may_go_on.set()
    slow_run.session.synchronize()
    *_, last = feed.changes()
    assert (last.state, last.is_over) == ("completed", True)
    body = next(node.body for node in last.nodes if node.id == slow_run.session.id)
    assert body is not None
    assert body.table == slow_run.session.chunk_table


def test_a_second_session_stands_beside_the_one_that_is_followed() -> None:
    one, two = (run([text], persist=True).synchronize() for text in ("one", "two"))
    snapshot = Feed(default_store(), one.id, compare=two.id).read()
    assert [head.id for head in snapshot.heads] == [one.id, two.id]


def test_a_run_that_ended_between_two_looks_is_told_once_more() -> None:
    session: Session = run(["one"], persist=True).synchronize()
    feed = Feed(default_store(), session.id)
    assert [snapshot.is_over for snapshot in feed.changes()] == [True]
