"""Live sessions written to a store, line by line, as tests of the reading side need them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rath.session import Session
from rath.session.events import Finished, Header, Row
from rath.session.log.format import Encoder
from rath.session.persistence.store import SessionStore
from tests.support.api import Event, RangeSource, count_in_ranges, entry_parts, row_parts


def header_for(session: Session, *sources: Session, at: datetime | None = None) -> Header:
    """Return the header of a session that begins with what `sources` hold."""
    body = session.core.body.result()
    lineage = session.lineage
    return Header(
        session=session.id,
        created_at=at or datetime.now(UTC),
        operator=session.lineage_operator,
        kind=session.lineage_kind,
        parents=session.parent_session_ids,
        extras=session.provenance.extras,
        sandbox_backend=session.sandbox_backend,
        sandbox_spec=session.sandbox_spec,
        rows=row_parts(
            body.table.vector, [RangeSource(each.id, each.chunk_table.vector) for each in sources]
        ),
        entries=entry_parts(body.record, [RangeSource(each.id, each.record) for each in sources]),
        given=body.given,
        lineage=None
        if lineage is None
        else (
            lineage.producer_user_session_id,
            lineage.producer_system_session_id,
            lineage.operator,
        ),
    )


def lines_for(session: Session, *sources: Session, at: datetime | None = None) -> list[Event]:
    """Return all lines of a session that has ended, perhaps at another time than now."""
    body, header = session.core.body.result(), header_for(session, *sources, at=at)
    n_rows, n_entries = count_in_ranges(header.rows), count_in_ranges(header.entries)
    rows = enumerate(body.table.since(n_rows), start=n_rows)
    late = session.record.since(len(body.record))
    return [
        header,
        *(entry for entry in body.record.since(n_entries)),
        *(Row(index, row) for index, row in rows),
        Finished(
            closed_at=at or datetime.now(UTC),
            n_rows=len(body.table),
            n_entries=len(body.record),
            usage=body.usage(),
            outcome=body.outcome,
        ),
        *(entry for entry in late),
    ]


def write(
    store: SessionStore, session: Session, *sources: Session, at: datetime | None = None
) -> None:
    """Store a session that has ended; `sources` are those that hold what it begins with."""
    write_lines(store, lines_for(session, *sources, at=at))


def write_lines(store: SessionStore, lines: Sequence[Event], *, is_finished: bool = True) -> None:
    """Write these lines as a log, each as a group."""
    header = lines[0]
    assert isinstance(header, Header)
    encoder, log = Encoder(header.session), store.create(header.session)
    for line in lines:
        batch = encoder.add(line)
        log.append(batch.data, blobs=batch.blobs)
    if is_finished:
        log.finish()
    else:
        log.abandon()
