"""Walks over the lineage graph."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.session.graph.kind import LineageConsistencyError, LineageKind
from rath.session.graph.traverse import (
    FrozenLineageView,
    ancestors_bfs,
    descendants_dfs_preorder,
    edge_pairs,
    lineage_view_dataclass,
    validate_acyclic,
)


@dataclass(frozen=True)
class Node:
    id: UUID
    parent_session_ids: tuple[UUID, ...] = ()
    lineage_operator: str = "op"
    lineage_kind: LineageKind = LineageKind.OP_MERGE
    lineage_extras: tuple[tuple[str, object], ...] = (("a", 1),)


def number(node_id: UUID) -> int:
    return node_id.int


def graph_of(*parents: tuple[int, ...]) -> dict[UUID, Node]:
    """Node n, counted from 0, has the parents at place n of the arguments."""
    return {
        UUID(int=n): Node(UUID(int=n), tuple(UUID(int=p) for p in of_n))
        for n, of_n in enumerate(parents)
    }


@st.composite
def acyclic_graphs(draw: st.DrawFn) -> dict[UUID, Node]:
    size = draw(st.integers(min_value=1, max_value=12))
    older = [st.lists(st.integers(0, n - 1), max_size=3) if n else st.just([]) for n in range(size)]
    return graph_of(*[tuple(draw(parents)) for parents in older])


def reachable(graph: dict[UUID, Node], start: UUID) -> set[UUID]:
    """All ancestors, by the definition."""
    parents = set(graph[start].parent_session_ids)
    return parents.union(*(reachable(graph, parent) for parent in parents))


@given(acyclic_graphs())
def test_ancestors_are_exactly_those_reachable_once_each(graph: dict[UUID, Node]) -> None:
    for start in graph:
        found = ancestors_bfs(graph, start)
        assert set(found) == reachable(graph, start)
        assert len(set(found)) == len(found)


@given(acyclic_graphs())
def test_descendants_are_the_inverse_of_ancestors(graph: dict[UUID, Node]) -> None:
    for root in graph:
        found = descendants_dfs_preorder(graph, root)
        assert set(found) == {node for node in graph if root in reachable(graph, node)}
        assert len(set(found)) == len(found)


@given(acyclic_graphs())
def test_acyclic_graph_is_valid(graph: dict[UUID, Node]) -> None:
    validate_acyclic(graph)


@given(acyclic_graphs(), st.data())
def test_edge_back_to_a_descendant_is_found(graph: dict[UUID, Node], data: st.DataObject) -> None:
    child = data.draw(st.sampled_from(sorted(graph)))
    root = data.draw(st.sampled_from(sorted({child, *reachable(graph, child)})))
    cyclic = {**graph, root: Node(root, (*graph[root].parent_session_ids, child))}
    with pytest.raises(LineageConsistencyError, match="cycle"):
        validate_acyclic(cyclic)


@given(acyclic_graphs())
def test_edges_are_all_parent_child_pairs(graph: dict[UUID, Node]) -> None:
    assert list(edge_pairs(graph)) == [
        (parent, child) for child, node in graph.items() for parent in node.parent_session_ids
    ]


def test_ancestors_come_nearest_first() -> None:
    graph = graph_of((), (0,), (), (1, 2), (3,))
    assert [*map(number, ancestors_bfs(graph, UUID(int=4)))] == [3, 1, 2, 0]


def test_descendants_come_in_the_documented_order() -> None:
    graph = graph_of((), (0,), (0,), (1,), (1,), (2,), (2,))
    found = descendants_dfs_preorder(graph, UUID(int=0))
    assert [*map(number, found)] == [2, 5, 6, 1, 3, 4]


def test_walks_of_a_very_long_chain_end() -> None:
    size = 5_000
    graph = graph_of((), *[(n,) for n in range(size)])
    validate_acyclic(graph)
    assert len(ancestors_bfs(graph, UUID(int=size))) == size
    assert len(descendants_dfs_preorder(graph, UUID(int=0))) == size


def test_walks_of_a_cycle_end() -> None:
    graph = graph_of((1,), (0,))
    assert [*map(number, ancestors_bfs(graph, UUID(int=0)))] == [1]
    assert [*map(number, descendants_dfs_preorder(graph, UUID(int=0)))] == [1]


@pytest.mark.parametrize("walk", [ancestors_bfs, descendants_dfs_preorder])
def test_unknown_start_is_an_error(walk: object) -> None:
    assert callable(walk)
    with pytest.raises(LineageConsistencyError, match="not in the mapping"):
        walk({}, uuid4())


@pytest.mark.parametrize("missing", [7, 8])
def test_missing_parent_is_an_error_that_names_it(missing: int) -> None:
    graph = graph_of((missing,))
    with pytest.raises(LineageConsistencyError, match=str(UUID(int=missing))):
        ancestors_bfs(graph, UUID(int=0))
    with pytest.raises(LineageConsistencyError, match=str(UUID(int=missing))):
        validate_acyclic(graph)


def test_consistency_error_is_a_value_error() -> None:
    assert issubclass(LineageConsistencyError, ValueError)


def test_view_copies_the_lineage() -> None:
    node = Node(uuid4(), (UUID(int=1),))
    assert lineage_view_dataclass(node) == FrozenLineageView(
        node.id, (UUID(int=1),), "op", "op_merge", (("a", 1),)
    )


def test_view_of_something_else_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="carries no lineage"):
        lineage_view_dataclass("session")
