"""Content that is made of the content of other sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from rath._async.lazy import Deferred
from rath._core.text import short_id
from rath.session.body import Body
from rath.session.chunk import ChunkTable


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
