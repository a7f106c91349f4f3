"""The base of a session: identity, content, and where it came from."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Self
from uuid import UUID, uuid4

from rath._async.deferred import Deferred
from rath._core.lazy_imports import lazy_function
from rath.errors import PersistenceError
from rath.llm.provider import Provider
from rath.session.bindings import Bindings, Placement
from rath.session.body import Body
from rath.session.chunk import ChunkTable
from rath.session.graph.legacy import SessionLineage
from rath.session.graph.recording import Edge, Provenance
from rath.session.open_calls import OpenCall, current_outcome, open_calls
from rath.session.outcome import Outcome
from rath.session.record import Entry, Record

_add_late = lazy_function("rath.session.loading", "add_late")
_late_lock = threading.Lock()
"""Guards the few instructions in which late record entries are added."""


class SessionBase(Bindings):
    """A session without its operations: what they read, and late entries they add."""

    __slots__ = ("_cell", "_id", "_late", "_lineage", "_provenance")

    @classmethod
    def from_body(
        cls,
        body: Deferred[Body],
        provenance: Provenance,
        *,
        id: UUID | None = None,
        placement: Placement | None = None,
        provider: Provider | None = None,
        lineage: SessionLineage | None = None,
    ) -> Self:
        """Return a session over content that is there or still being made."""
        session = cls.__new__(cls)
        content = (body, provenance, placement or Placement(), provider, lineage)
        session._set(id or uuid4(), *content)  # noqa: SLF001  # a constructor of the same class
        return session

    def _set(
        self,
        id: UUID,
        cell: Deferred[Body],
        provenance: Provenance,
        placement: Placement,
        provider: Provider | None,
        lineage: SessionLineage | None = None,
    ) -> None:
        self._id = id
        self._cell = cell
        self._provenance = provenance
        self._late: Record | None = None
        self._lineage = lineage
        Bindings.__init__(self, placement, provider)

    @property
    def id(self) -> UUID:
        """Identity of the session, and of its file."""
        return self._id

    @property
    def provenance(self) -> Provenance:
        """Operation and parents that this session came from."""
        return self._provenance

    @property
    def lineage(self) -> SessionLineage | None:
        """The documented DTO: user and agent session of the run that made this one, or None."""
        return self._lineage

    @property
    def body(self) -> Deferred[Body]:
        """The content cell, for code that awaits it on the runtime."""
        return self._cell

    def taking_over(self, late: Record | None) -> Self:
        """Take over late entries that were added to the same content before; returns itself."""
        self._late = late
        return self

    def as_parent(self) -> Edge:
        """Return the edge by which a derived session knows this one."""
        place = self._placement.whereabouts
        return Edge(self.id, self._cell, self._provenance, self._late, place)

    def inherited(self, body: Body) -> Body:
        """Return `body`, this session's content, with the late entries that came since."""
        return with_late(self._late, body)

    def inheritor(self) -> Callable[[Body], Body]:
        """Return `inherited` as it is now, without holding this session."""
        return _as_it_is if self._late is None else partial(with_late, self._late)

    @property
    def chunk_table(self) -> ChunkTable:
        """The rows; waits for the run that makes them."""
        return self._cell.result().table

    @property
    def record(self) -> Record:
        """The typed entries in order; waits for the run."""
        record = self._cell.result().record
        return record if self._late is None else self._late

    @property
    def outcome(self) -> Outcome:
        """How the run ended, or what it waits for by now; waits for it."""
        body = self._cell.result()
        return current_outcome(body.outcome, body, self.id, self._late)

    @property
    def open_calls(self) -> tuple[OpenCall, ...]:
        """The calls of the last turn that have no result, and what is known of each; waits."""
        return open_calls(self.body.result(), self.id, late=self.record)

    def synchronize(self) -> Self:
        """Wait for the run, raise its error if it failed, and return this session."""
        self._cell.result()
        return self

    @property
    def is_pending(self) -> bool:
        """Whether the run that makes this session is still going."""
        return not self._cell.done()

    @property
    def partial_table(self) -> ChunkTable:
        """The rows so far, also of a failed or cancelled run; never waits, never raises."""
        body = self._cell.latest
        return ChunkTable() if body is None else body.table

    @property
    def partial_record(self) -> Record:
        """The record so far, also of a failed run; never waits, never raises."""
        body = self._cell.latest
        return Body(ChunkTable()).record if body is None else body.record

    def add_entry(self, entry: Entry) -> None:
        """Add a late entry to the record: a verdict, a decision, a selection; waits for the run.

        Rows are never touched; what is derived later inherits the entry.
        """
        self.add_entries(entry)

    def add_entries(self, *entries: Entry) -> None:
        """Add late entries to the record, next to each other; waits for the run.

        Where the session is stored they are added there too, and forced to disk.

        Raises:
            PersistenceError: A log of it cannot be written, or somebody else has changed it; then
                nothing is added.
        """
        body = self._cell.result()
        with _late_lock:
            before = self._late
            self._late = (body.record if before is None else before).extend(entries)
            late = self._late
        try:
            _add_late(self._cell, late)
        except PersistenceError:
            with _late_lock:
                newest = self._late
                if newest is late:
                    self._late = before
            if newest is late:
                raise
            # Another thread has added more since, and may have written ours with it.
            _add_late(self._cell, newest)


def _as_it_is(body: Body) -> Body:
    return body


def with_late(late: Record | None, body: Body) -> Body:
    """Return a session's content with the record that late entries have made longer."""
    return body if late is None else replace(body, record=late)
