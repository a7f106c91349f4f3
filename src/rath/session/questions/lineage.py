"""A session and all that it came from, each once, with what is known of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from uuid import UUID

from rath.session.body import Body
from rath.session.branching import with_late
from rath.session.chunk import ChunkRow, ChunkTable, RowId
from rath.session.content import AssistantTurn, ToolFeedback
from rath.session.graph.provenance import Edge, Provenance
from rath.session.outcome import Outcome
from rath.session.record import Operation, Record
from rath.session.session import Session

RUNS = frozenset({"run_session_loop", "run_session_compress"})
"""Operators that make rows."""

DERIVATIONS = frozenset({"Session.fork", "Session.detach", "Session.merge", "Session.undo"})
"""Operators that only pass rows on."""

BRANCHES = DERIVATIONS | {"Session.delegate", "Session.replay"}
"""Operators that note an operation of kind fork, detach, merge or delegate."""

_MAKERS = frozenset({"loop", "compress", "fork", "detach", "merge", "delegate"})
"""Kinds of operations that make a session."""


@dataclass(frozen=True, slots=True)
class Node:
    """One session of a lineage."""

    id: UUID
    body: Body | None
    """Its content with late entries; None for a parent that is known by its id alone."""

    provenance: Provenance | None

    @property
    def table(self) -> ChunkTable:
        """Its rows; none where they are not known."""
        return ChunkTable() if self.body is None else self.body.table

    @property
    def outcome(self) -> Outcome | None:
        """How its run ended, where that is known."""
        return None if self.body is None else self.body.outcome

    @property
    def operator(self) -> str:
        """Name of the operation that made it, "" where it is not known."""
        return "" if self.provenance is None else self.provenance.operator

    @property
    def parents(self) -> tuple[UUID, ...]:
        """Ids of the sessions that it was made of."""
        return () if self.provenance is None else self.provenance.parent_ids


@dataclass(frozen=True, slots=True)
class Birth:
    """A row, and a session in which it stands; the one in which it was born, if that is known."""

    row: ChunkRow
    session: UUID
    index: int
    turn: int | None
    """Which answer of a model it is or follows, counted from 1 over the lineage."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a session came from, parents before children, itself last."""

    session: UUID
    nodes: Mapping[UUID, Node]
    record: Record
    births: Mapping[RowId, Birth]
    operations: Mapping[UUID, Operation]
    """By run id."""

    made_by: Mapping[UUID, Operation] = field(repr=False)
    """The operation that made a session, by the session's id."""

    @property
    def own(self) -> Node:
        """The session itself."""
        return self.nodes[self.session]

    @property
    def n_turns(self) -> int:
        """How many answers of models its rows hold."""
        return max((birth.turn or 0 for birth in self.births.values()), default=0)

    def is_of_run(self, row: RowId) -> bool:
        """Tell whether a row must have come from a run, and not from somebody's own hand.

        A row of a session that nothing is known of counts as one of a run: somebody made it.
        """
        made = self.made_by.get(row.session)
        if made is not None:
            return made.kind in ("loop", "compress")
        node = self.nodes.get(row.session)
        return node is None or node.operator in RUNS | DERIVATIONS


def lineage_of(session: Session) -> Lineage:
    """Return what a session came from; O(rows and entries of all of them). Waits for the run."""
    record = session.record
    body = with_late(record, session.synchronize().body.result())
    nodes = {node.id: node for node in _walk(session.id, body, session.provenance)}
    operations = [entry for entry in record if isinstance(entry, Operation)]
    made_by = {entry.session: entry for entry in operations if entry.kind in _MAKERS}
    compressed = {node.id for node in nodes.values() if node.operator == "run_session_compress"}
    compressed |= {made for made, entry in made_by.items() if entry.kind == "compress"}
    return Lineage(
        session=session.id,
        nodes=nodes,
        record=record,
        births=_births(nodes, compressed),
        operations={entry.operation: entry for entry in operations},
        made_by=made_by,
    )


def _walk(session: UUID, body: Body, provenance: Provenance) -> Iterator[Node]:
    """Yield a session after all its ancestors; without recursion, since chains are long."""
    todo: list[tuple[Node, bool]] = [(Node(session, body, provenance), False)]
    known: set[UUID] = set()
    while todo:
        node, is_visited = todo.pop()
        if is_visited:
            yield node
            continue
        if node.id in known:
            continue
        known.add(node.id)
        todo.append((node, True))
        parents = () if node.provenance is None else node.provenance.parents
        todo += [(_node_of(edge), False) for edge in reversed(parents)]


def _node_of(edge: Edge) -> Node:
    body: object = None if edge.body is None else edge.body.latest
    if not isinstance(body, Body):
        return Node(edge.id, None, edge.provenance)
    return Node(edge.id, with_late(edge.late, body), edge.provenance)


def _births(nodes: Mapping[UUID, Node], compressed: AbstractSet[UUID]) -> dict[RowId, Birth]:
    """Return where each row stands first; turns are counted as they come."""
    births: dict[RowId, Birth] = {}
    n_turns = 0
    for node in nodes.values():
        above = (nodes[parent].table for parent in node.parents if parent in nodes)
        shared = max((node.table.common_prefix(table) for table in above), default=0)
        turn = _turn_at(node.table, shared, births)
        for index, row in enumerate(node.table.since(shared), start=shared):
            if row.id is None:
                continue
            known = births.get(row.id)
            if known is not None:
                turn = known.turn
                continue
            if isinstance(row.content, AssistantTurn) or _is_summary(row.id, compressed):
                n_turns += 1
                turn = n_turns
            elif not isinstance(row.content, ToolFeedback):
                turn = None
            births[row.id] = Birth(row, node.id, index, turn)
    return births


def _turn_at(table: ChunkTable, index: int, births: Mapping[RowId, Birth]) -> int | None:
    row_id = table[index - 1].id if index else None
    return births[row_id].turn if row_id is not None and row_id in births else None


def _is_summary(row: RowId, compressed: AbstractSet[UUID]) -> bool:
    return row.index == 0 and row.session in compressed
