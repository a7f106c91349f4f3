"""The lineage of sessions is recorded, walked over and exported."""

from __future__ import annotations

import contextvars
import json
import weakref
from collections.abc import Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.backend import BackendSandbox
from rath.llm import Provider
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session import run_session_compress, select_session
from rath.session.graph import (
    LineageJournal,
    LineageKind,
    export_journal_jsonl,
    export_jsonl,
    export_jsonl_string,
    lineage_journal_tracking,
    session_to_jsonl_row,
)
from rath.session.graph.export import cumulative_usage_to_jsonable
from rath.session.graph.kind import LineageConsistencyError
from rath.session.graph.recording import (
    LineageRecorder,
    lineage_journal_optional,
    session_graph_mode_override,
)
from rath.session.graph.traverse import (
    FrozenLineageView,
    ancestors_bfs,
    descendants_dfs_preorder,
    edge_pairs,
    lineage_view_dataclass,
    validate_acyclic,
)
from rath.session.session import Session
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.api import lineage_extras_to_jsonable
from tests.support.sessions import run
from tests.support.waiting import wait_until_let_go


def scripted(*turns: Turn) -> Provider:
    return ScriptedClient(turns).provider


@dataclass(frozen=True)
class Exported:
    id: UUID
    parent_session_ids: tuple[UUID, ...] = ()
    lineage_operator: str = "Session.merge"
    lineage_kind: LineageKind = LineageKind.OP_MERGE
    lineage_extras: tuple[tuple[str, Any], ...] = ()
    chunk_table: Sized = (1, 2)
    cumulative_usage: RathLLMTokenUsage | None = None


USAGE = RathLLMTokenUsage(1, 2, 3)


def test_row_has_the_documented_keys_in_order() -> None:
    parents = (UUID(int=1), UUID(int=2))
    extras = (("a", 1),)
    session = Exported(UUID(int=3), parents, lineage_extras=extras, cumulative_usage=USAGE)
    assert list(session_to_jsonl_row(session).items()) == [
        ("id", str(UUID(int=3))),
        ("parent_session_ids", [str(UUID(int=1)), str(UUID(int=2))]),
        ("lineage_operator", "Session.merge"),
        ("lineage_kind", "op_merge"),
        ("lineage_extras", [["a", 1]]),
        ("chunk_count", 2),
        ("cumulative_usage", {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}),
    ]


@given(
    st.lists(
        st.tuples(st.text(), st.none() | st.integers() | st.text(st.characters()) | st.floats())
    )
)
def test_export_is_always_lines_of_json_in_utf8(extras: list[tuple[str, Any]]) -> None:
    sessions = [Exported(uuid4(), lineage_extras=tuple(extras)) for _ in range(2)]
    data = export_jsonl_string(sessions).encode()
    lines = data.split(b"\n")
    assert lines.pop() == b""
    assert [json.loads(line)["id"] for line in lines] == [str(s.id) for s in sessions]


@pytest.mark.parametrize(
    "value", [UUID(int=1), {1}, float("nan"), object], ids=["uuid", "set", "nan", "class"]
)
def test_extra_that_is_not_json_becomes_its_text(value: object) -> None:
    assert lineage_extras_to_jsonable((("k", value),)) == [["k", str(value)]]


def test_journal_is_exported_in_its_order(tmp_path: Path) -> None:
    with lineage_journal_tracking() as journal:
        root = Session.create("user", "naïve 世界")
        other = Session.create("user", "other")
        child = root.merge(other)
        failed = run([tool_call("missing", {}), RuntimeError("no")]).id
    *rows, last = exported(journal, tmp_path)
    export_jsonl([root, other, child], tmp_path / "a" / "b.jsonl")
    text = (tmp_path / "a" / "b.jsonl").read_bytes().decode()
    assert text == export_jsonl_string([root, other, child])
    assert rows == [json.loads(line) for line in text.splitlines()]
    assert rows[2]["lineage_kind"] == "op_merge"
    assert (last["id"], last["chunk_count"]) == (str(failed), 3)
    assert last["cumulative_usage"] is not None


def exported(journal: LineageJournal, directory: Path) -> list[dict[str, Any]]:
    export_journal_jsonl(journal, directory / "out.jsonl", skip_unknown=False)
    return [json.loads(line) for line in (directory / "out.jsonl").read_text().splitlines()]


def test_journal_holds_sessions_that_were_collected_since(tmp_path: Path) -> None:
    sandboxes: list[weakref.ref[BackendSandbox]] = []

    def visit() -> list[UUID]:
        """Make sessions of every kind, and keep none of them."""
        root = Session.create("user", "hi").to("local", spec=str(tmp_path))
        out = run(["an answer"], user=root).synchronize()
        branch = out.fork().merge(root.detach())
        short = run_session_compress(
            branch, Session.create("system", "Be short."), agent_provider=scripted("short")
        )
        sandboxes.append(weakref.ref(root.require_sandbox()))
        return [root.id, out.id, branch.id, short.id]

    with lineage_journal_tracking() as journal:
        made = visit()
    wait_until_let_go(lambda: sandboxes[0]() is None, "the journal holds no sandbox")
    rows = exported(journal, tmp_path)
    assert [row["id"] for row in rows] == [str(each) for each in journal.visit_order]
    display = {row["id"]: row for row in rows}
    root, out, branch, short = (display[str(each)] for each in made)
    assert [row["chunk_count"] for row in (root, out, branch, short)] == [1, 2, 2, 1]
    assert (out["lineage_operator"], branch["lineage_kind"]) == ("run_session_loop", "op_merge")
    assert short["parent_session_ids"][0] == branch["id"]
    assert short["cumulative_usage"]["total_tokens"] > out["cumulative_usage"]["total_tokens"] > 0


def test_journal_shows_what_came_to_a_session_that_is_alive(tmp_path: Path) -> None:
    with lineage_journal_tracking() as journal:
        branch = Session.create("user", "hi").fork()
    select_session(branch, Session.create("system", "Route."), "a", agent_provider=scripted("0"))
    usage = exported(journal, tmp_path)[-1]["cumulative_usage"]
    assert usage is not None
    assert usage == cumulative_usage_to_jsonable(branch)


def test_journal_of_sessions_that_are_gone_is_empty_or_an_error(tmp_path: Path) -> None:
    journal = LineageJournal([uuid4()])
    export_journal_jsonl(journal, tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == ""
    with pytest.raises(KeyError, match=str(journal.visit_order[0])):
        export_journal_jsonl(journal, tmp_path / "out.jsonl", skip_unknown=False)


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
def test_walks_find_all_that_is_reachable_once(graph: dict[UUID, Node]) -> None:
    validate_acyclic(graph)
    for start in graph:
        above, below = ancestors_bfs(graph, start), descendants_dfs_preorder(graph, start)
        assert sorted(above) == sorted(reachable(graph, start))
        assert sorted(below) == sorted(node for node in graph if start in reachable(graph, node))
    pairs = [(parent, child) for child in graph for parent in graph[child].parent_session_ids]
    assert list(edge_pairs(graph)) == pairs


def test_walks_go_in_the_documented_order() -> None:
    graph = graph_of((), (0,), (), (1, 2), (3,))
    assert [*map(number, ancestors_bfs(graph, UUID(int=4)))] == [3, 1, 2, 0]
    graph = graph_of((), (0,), (0,), (1,), (1,), (2,), (2,))
    assert [*map(number, descendants_dfs_preorder(graph, UUID(int=0)))] == [2, 5, 6, 1, 3, 4]


@given(acyclic_graphs(), st.data())
def test_edge_back_to_a_descendant_is_found(graph: dict[UUID, Node], data: st.DataObject) -> None:
    child = data.draw(st.sampled_from(sorted(graph)))
    root = data.draw(st.sampled_from(sorted({child, *reachable(graph, child)})))
    cyclic = {**graph, root: Node(root, (*graph[root].parent_session_ids, child))}
    with pytest.raises(LineageConsistencyError, match="cycle"):
        validate_acyclic(cyclic)


def test_an_unknown_start_or_a_missing_parent_is_an_error_that_names_it() -> None:
    for walk in (ancestors_bfs, descendants_dfs_preorder):
        with pytest.raises(LineageConsistencyError, match="not in the mapping"):
            walk({}, uuid4())
    graph = graph_of((7,))
    with pytest.raises(LineageConsistencyError, match=str(UUID(int=7))):
        ancestors_bfs(graph, UUID(int=0))
    with pytest.raises(LineageConsistencyError, match=str(UUID(int=7))):
        validate_acyclic(graph)


def stamp(session: object) -> None:
    LineageRecorder.stamp_new_session(
        session,
        parent_session_ids=(UUID(int=1),),
        lineage_operator="op",
        lineage_kind=LineageKind.OP_FORK,
        lineage_extras=(("a", 1),),
    )


def test_a_journal_has_what_is_stamped_in_its_context_while_the_graph_mode_is_on() -> None:
    assert lineage_journal_optional() is None
    mine = LineageJournal([UUID(int=5)])
    carriers = [Session.from_user_message("a") for _ in range(4)]
    with lineage_journal_tracking() as outer:
        stamp(carriers[0])
        with lineage_journal_tracking(journal=mine) as inner:
            assert lineage_journal_optional() is inner is mine
            context = contextvars.copy_context()
            stamp(carriers[1])
            with session_graph_mode_override(False):
                stamp(carriers[2])
    context.run(stamp, carriers[3])
    assert lineage_journal_optional() is None
    assert outer.visit_order == [carriers[0].id]
    assert mine.append(UUID(int=6)) is mine
    ids = [carriers[1].id, carriers[3].id]
    assert mine.visit_order == [UUID(int=5), *ids, UUID(int=6)]
    stamps = [(each.lineage_operator, each.parent_session_ids) for each in carriers]
    expected = ("op", (UUID(int=1),))
    assert stamps == [expected, expected, ("implicit", ()), expected]


def test_session_made_by_hand_takes_its_stamp() -> None:
    session = Session.from_user_message("a")
    stamp(session)
    assert lineage_view_dataclass(session) == FrozenLineageView(
        session.id, (UUID(int=1),), "op", "op_fork", (("a", 1),)
    )


@pytest.mark.parametrize("enabled", [True, False], ids=["on", "off"])
def test_stamping_something_else_is_a_type_error(enabled: bool) -> None:
    with session_graph_mode_override(enabled), pytest.raises(TypeError, match="expected a Session"):
        stamp("session")
    with pytest.raises(TypeError, match="carries no lineage"):
        lineage_view_dataclass("session")
