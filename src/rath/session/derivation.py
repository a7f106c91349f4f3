"""Content that is made of the content of other sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

from rath._async.lazy import Deferred
from rath._core.text import short_id
from rath.session.body import Body, suspension
from rath.session.chunk import ChunkTable
from rath.session.outcome import Completed
from rath.session.record import Operation

Inheritor = Callable[[Body], Body]
"""Returns the content of a parent with the late entries that came to it."""


def derived(
    cells: tuple[Deferred[Body], ...],
    derive: Callable[..., Body],
    owner: UUID,
    operation: str,
    *,
    after: tuple[Deferred[Any], ...] = (),
) -> Deferred[Body]:
    """Return what `derive` makes of the inputs: at once when they are there, else when they are.

    Args:
        cells: The inputs.
        derive: Makes the content of them.
        owner: The session that is made.
        operation: What makes it, for messages.
        after: What must be there before, and is no input.
    """
    if all(cell.done() and cell.error() is None for cell in (*after, *cells)):
        return Deferred.of(derive(*(cell.result() for cell in cells)))

    async def wait_and_derive(_: Deferred[Body]) -> Body:
        for cell in after:
            await cell
        return derive(*[await cell for cell in cells])

    return Deferred.start(
        wait_and_derive,
        owner=owner,
        label=f"session {short_id(owner)} ({operation})",
        inputs=(*after, *cells),
        on_cancel=lambda latest: latest or cancelled_body(owner, cells),
    )


def cancelled_body(session: UUID, inputs: tuple[Deferred[Body], ...]) -> Body:
    """Return what a run that was cancelled before it began leaves: the rows of its input."""
    from_input = inputs[0].latest if inputs else None
    return (from_input or Body(ChunkTable())).cancelled(session)


def branched(inherited: Inheritor, entry: Operation, body: Body) -> Body:
    """Return the content of a parent, and the operation that branched from it."""
    return inherited(body).with_entries(entry)


def delegated(rows: ChunkTable, inherited: Inheritor, entry: Operation, body: Body) -> Body:
    """Return new rows with the record of a parent; what that one waits for is passed on."""
    outcome = suspension(body) or Completed()
    return replace(inherited(body), table=rows, outcome=outcome).with_entries(entry)


def merged(mine: Inheritor, others: Inheritor, entry: Operation, ours: Body, theirs: Body) -> Body:
    """Return the content of two parents; the entry says what of the record was whose."""
    first, second = mine(ours), others(theirs)
    entry = replace(entry, n_ours=len(first.record), theirs=second.record)
    return first.merged(second).with_entries(entry)
