"""Export as JSON Lines."""

from __future__ import annotations

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
from rath.session.manager import session_registry
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


def test_row_has_the_documented_keys_in_order() -> None:
    parents = (UUID(int=1), UUID(int=2))
    extras = (("a", 1),)
    usage = RathLLMTokenUsage(1, 2, 3)
    session = Exported(UUID(int=3), parents, lineage_extras=extras, cumulative_usage=usage)
    assert list(session_to_jsonl_row(session).items()) == [
        ("id", str(UUID(int=3))),
        ("parent_session_ids", [str(UUID(int=1)), str(UUID(int=2))]),
        ("lineage_operator", "Session.merge"),
        ("lineage_kind", "op_merge"),
        ("lineage_extras", [["a", 1]]),
        ("chunk_count", 2),
        ("cumulative_usage", {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}),
    ]


def test_usage_that_is_unknown_is_null() -> None:
    assert session_to_jsonl_row(Exported(uuid4()))["cumulative_usage"] is None


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


def test_characters_are_written_as_they_are() -> None:
    assert "naïve 世界" in export_jsonl_string([Exported(uuid4(), lineage_operator="naïve 世界")])


def test_no_sessions_give_an_empty_text() -> None:
    assert export_jsonl_string([]) == ""


def test_file_has_the_text_and_its_directories_are_made(tmp_path: Path) -> None:
    session = Exported(uuid4())
    export_jsonl([session], tmp_path / "a" / "b.jsonl")
    assert (tmp_path / "a" / "b.jsonl").read_bytes().decode() == export_jsonl_string([session])


def test_journal_is_exported_in_its_order(tmp_path: Path) -> None:
    with lineage_journal_tracking() as journal:
        root = Session.create("user", "naïve")
        other = Session.create("user", "other")
        child = root.merge(other)
    export_journal_jsonl(journal, tmp_path / "out.jsonl")
    text = (tmp_path / "out.jsonl").read_bytes().decode()
    assert text == export_jsonl_string([root, other, child])
    assert json.loads(text.splitlines()[2])["lineage_kind"] == "op_merge"


def test_an_id_that_was_added_by_hand_is_looked_for_in_the_registry(tmp_path: Path) -> None:
    session = Session.create("user", "hi")
    session_registry().register(session)
    assert exported(LineageJournal([session.id]), tmp_path) == [session_to_jsonl_row(session)]


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
    shown = {row["id"]: row for row in rows}
    root, out, branch, short = (shown[str(each)] for each in made)
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


def test_journal_shows_a_failed_session_as_far_as_it_came(tmp_path: Path) -> None:
    with lineage_journal_tracking() as journal:
        failed = run([tool_call("missing", {}), RuntimeError("no")]).id
    (row,) = exported(journal, tmp_path)
    assert (row["id"], row["chunk_count"]) == (str(failed), 3)
    assert row["cumulative_usage"] is not None


def test_journal_of_sessions_that_are_gone_is_empty_or_an_error(tmp_path: Path) -> None:
    journal = LineageJournal([uuid4()])
    export_journal_jsonl(journal, tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == ""
    with pytest.raises(KeyError, match=str(journal.visit_order[0])):
        export_journal_jsonl(journal, tmp_path / "out.jsonl", skip_unknown=False)
