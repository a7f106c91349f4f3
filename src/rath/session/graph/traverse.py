"""Walk the graph of sessions that a mapping holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from rath._core.dataclasses import dataclass
from rath.errors import LineageConsistencyError

__all__ = [
    "FrozenLineageView",
    "ancestors_bfs",
    "descendants_dfs_preorder",
    "edge_pairs",
    "lineage_view_dataclass",
    "validate_acyclic",
]


class GraphNode(Protocol):
    """A session, as far as a walk needs to know it."""

    @property
    def id(self) -> UUID:
        """Identity of the session."""
        ...

    @property
    def parent_session_ids(self) -> tuple[UUID, ...]:
        """The sessions it was made from."""
        ...


@runtime_checkable
class LineageCarrier(GraphNode, Protocol):
    """A session, as far as its lineage goes."""

    @property
    def lineage_operator(self) -> str:
        """Name of the operation that made it."""
        ...

    @property
    def lineage_kind(self) -> str:
        """Kind of that operation."""
        ...

    @property
    def lineage_extras(self) -> tuple[tuple[str, Any], ...]:
        """Named facts about it."""
        ...


@dataclass(frozen=True, slots=True)
class FrozenLineageView:
    """The lineage of one session, cut loose from it."""

    session_id: UUID
    parent_session_ids: tuple[UUID, ...]
    lineage_operator: str
    lineage_kind_str: str
    lineage_extras: tuple[tuple[str, object], ...]


def lineage_view_dataclass(carrier: object) -> FrozenLineageView:
    """Return the lineage of a session as a value of its own; never waits for a run.

    Raises:
        TypeError: `carrier` is not a Session.
    """
    if not isinstance(carrier, LineageCarrier):
        raise TypeError(
            f"a value of type {type(carrier).__name__} carries no lineage; expected a Session"
        )
    return FrozenLineageView(
        session_id=carrier.id,
        parent_session_ids=carrier.parent_session_ids,
        lineage_operator=carrier.lineage_operator,
        lineage_kind_str=getattr(carrier.lineage_kind, "value", carrier.lineage_kind),
        lineage_extras=carrier.lineage_extras,
    )


def ancestors_bfs(by_id: Mapping[UUID, GraphNode], start_id: UUID) -> tuple[UUID, ...]:
    """Return all ancestors of a session, nearest first, without the session itself.

    Raises:
        LineageConsistencyError: `start_id` or a parent on the way is not in `by_id`.
    """
    if start_id not in by_id:
        raise _unknown(start_id)
    ancestors: dict[UUID, None] = {}
    queue = deque([start_id])
    while queue:
        child_id = queue.popleft()
        for parent_id in by_id[child_id].parent_session_ids:
            if parent_id not in by_id:
                raise _missing_parent(parent_id, child_id)
            if parent_id not in ancestors and parent_id != start_id:
                ancestors[parent_id] = None
                queue.append(parent_id)
    return tuple(ancestors)


def descendants_dfs_preorder(by_id: Mapping[UUID, GraphNode], root_id: UUID) -> tuple[UUID, ...]:
    """Return all descendants of a session once each, a child before its own children.

    The direct children of the root come last first, children further down in the order of
    `by_id`: programs rely on this order.

    Raises:
        LineageConsistencyError: `root_id` is not in `by_id`.
    """
    if root_id not in by_id:
        raise _unknown(root_id)
    children: dict[UUID, list[UUID]] = {}
    for parent_id, child_id in edge_pairs(by_id):
        children.setdefault(parent_id, []).append(child_id)
    descendants: dict[UUID, None] = {}
    stack = list(children.get(root_id, ()))
    while stack:
        node_id = stack.pop()
        if node_id not in descendants and node_id != root_id:
            descendants[node_id] = None
            stack.extend(reversed(children.get(node_id, ())))
    return tuple(descendants)


def validate_acyclic(by_id: Mapping[UUID, GraphNode]) -> None:
    """Check that every parent is there and that no session is its own ancestor.

    Raises:
        LineageConsistencyError: A parent is missing, or there is a cycle; names one session of it.
    """
    for parent_id, child_id in edge_pairs(by_id):
        if parent_id not in by_id:
            raise _missing_parent(parent_id, child_id)
    try:
        TopologicalSorter({id: node.parent_session_ids for id, node in by_id.items()}).prepare()
    except CycleError as exc:
        raise LineageConsistencyError(
            f"session {exc.args[1][0]} is on a cycle of the lineage graph; a session can only come "
            "from older ones"
        ) from None


def edge_pairs(by_id: Mapping[UUID, GraphNode]) -> Iterator[tuple[UUID, UUID]]:
    """Yield (parent id, child id) for every parent of every session, in the order of `by_id`."""
    for child_id, node in by_id.items():
        for parent_id in node.parent_session_ids:
            yield parent_id, child_id


def _unknown(session_id: UUID) -> LineageConsistencyError:
    return LineageConsistencyError(
        f"session {session_id} is not in the mapping; pass one that holds it and its ancestors"
    )


def _missing_parent(parent_id: UUID, child_id: UUID) -> LineageConsistencyError:
    return LineageConsistencyError(
        f"session {child_id} names the parent {parent_id}, which is not in the mapping; pass one "
        "that holds all ancestors"
    )
