"""The operations of sessions and of all that they came from, with what each of them left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from uuid import UUID

from rath.session.body import Body
from rath.session.branching import with_late
from rath.session.chunk import ChunkRow, RowId
from rath.session.file_changes.history import inner_operations
from rath.session.graph.provenance import Edge, Provenance
from rath.session.outcome import Completed, Outcome
from rath.session.record import Change, Entry, ModelCall, Operation
from rath.session.resume.open_calls import open_calls
from rath.session.session import Session


@dataclass(frozen=True, slots=True)
class Node:
    """A session as its record tells it."""

    id: UUID
    body: Body
    """With late entries."""

    provenance: Provenance
    has_failed: bool = False
    """Whether its run ended with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """One operation, and what it left."""

    operation: Operation
    entries: tuple[Entry, ...]
    """From the operation to the last entry of it; what happened inside stands between."""

    at: int
    """Its index in the record in which it was found."""

    node: Node
    """The session that it made or served, else the one in whose record it was found."""

    rows: Mapping[RowId, ChunkRow] = field(repr=False)
    """All rows of the history."""

    @property
    def own(self) -> Iterator[Entry]:
        """The entries that belong to it itself, in order."""
        return (entry for entry in self.entries if entry.operation == self.operation.operation)

    @property
    def calls(self) -> tuple[ModelCall, ...]:
        """Its model calls."""
        return tuple(entry for entry in self.own if isinstance(entry, ModelCall))

    @property
    def answers_changed(self) -> Mapping[RowId, Sequence[Change]]:
        """What hooks had made of its answers, by their rows."""
        found: dict[RowId, list[Change]] = {}
        for entry in self.own:
            if isinstance(entry, Change) and entry.what == "answer":
                for row in entry.rows:
                    found.setdefault(row, []).append(entry)
        return found

    @property
    def is_found(self) -> bool:
        """Whether the session that it made or served is there, and not only what it left."""
        return self.operation.session == self.node.id

    @property
    def outcome(self) -> Outcome | None:
        """How it ended, None where it failed, or made no session, or that is not known."""
        is_known = self.is_found and not self.node.has_failed
        return self.node.body.outcome if is_known and not self.is_beginning else None

    @property
    def is_beginning(self) -> bool:
        """Whether more came of it: what one of its tool calls made knows it up to that call."""
        body = self.node.body
        return body.outcome == Completed() and bool(open_calls(body, self.node.id))

    @property
    def parents(self) -> tuple[UUID, ...]:
        """The sessions that it was made of; for one that serves a session, that one."""
        if self.operation.kind in ("select", "check"):
            return (self.operation.session,)
        return self.node.provenance.parent_ids if self.is_found else ()


@dataclass(frozen=True, slots=True)
class History:
    """What sessions and those that they came from say together; each session stands once."""

    nodes: tuple[Node, ...]
    """Parents stand before what was made of them."""

    runs: tuple[RecordedRun, ...]
    """In the order of the records; what happened inside tool calls is left out."""


def history_of(*sessions: Session) -> History:
    """Return the history of sessions; waits for their runs. O(rows and entries), each once.

    A run that failed counts with what it had written.
    """
    nodes = tuple(_nodes(_ended(session) for session in sessions))
    rows: dict[RowId, ChunkRow] = {}
    runs: list[RecordedRun] = []
    known: set[UUID] = set()
    by_id = {node.id: node for node in nodes}
    for node in nodes:
        above = [by_id[edge.id] for edge in node.provenance.parents if edge.id in by_id]
        table, record = node.body.table, node.body.record
        n_rows = max((table.common_prefix(each.body.table) for each in above), default=0)
        rows.update((row.id, row) for row in table.since(n_rows) if row.id is not None)
        shared = max((record.common_prefix(each.body.record) for each in above), default=0)
        since = enumerate(record.since(shared), start=shared)
        new = [(at, entry) for at, entry in since if entry.id not in known]
        known.update(entry.id for _, entry in new)
        runs += _runs(new, node, rows)
    found = {run.operation.operation: by_id.get(run.operation.session, run.node) for run in runs}
    return History(nodes, tuple(_at(run, found[run.operation.operation]) for run in runs))


def _runs(
    numbered: list[tuple[int, Entry]], node: Node, rows: Mapping[RowId, ChunkRow]
) -> Iterator[RecordedRun]:
    """Yield the operations among entries that stand next to each other in a record."""
    entries = [entry for _, entry in numbered]
    inner = inner_operations(entries)
    last = {entry.operation: at for at, entry in enumerate(entries)}
    for index, (at, entry) in enumerate(numbered):
        if isinstance(entry, Operation) and entry.operation not in inner:
            part = tuple(entries[index : last[entry.operation] + 1])
            yield RecordedRun(operation=entry, entries=part, at=at, node=node, rows=rows)


def _at(run: RecordedRun, node: Node) -> RecordedRun:
    """Return a run with the session that it made, where that is in the history."""
    return run if run.node is node else replace(run, node=node)


def _ended(session: Session) -> Node:
    cell = session.body
    with suppress(Exception):  # whoever reads the session gets its error; here counts what it wrote
        session.synchronize()
    body = Body(session.partial_table) if cell.latest is None else session.inherited(cell.latest)
    left = body.unfinished
    # One that was loaded has no error, but its log tells of it.
    told = left is not None and left.failure is not None and left.failure.how == "failed"
    return Node(session.id, body, session.provenance, told or cell.error() is not None)


def _nodes(roots: Iterable[Node]) -> Iterator[Node]:
    """Yield nodes and all that they came from, each once, parents first; no recursion."""
    todo: list[tuple[Node, bool]] = [(root, False) for root in roots][::-1]
    known: set[UUID] = set()
    while todo:
        node, is_open = todo.pop()
        if is_open:
            yield node
            continue
        if node.id in known:
            continue
        known.add(node.id)
        todo.append((node, True))
        above = [_of_edge(edge) for edge in node.provenance.parents]
        todo += [(each, False) for each in reversed(above) if each is not None]


def _of_edge(edge: Edge) -> Node | None:
    body: object = None if edge.body is None else edge.body.latest
    if not isinstance(body, Body):
        return None
    return Node(edge.id, with_late(edge.late, body), edge.provenance or Provenance())
