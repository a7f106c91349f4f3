"""What was stored and is read back equals what it was, whatever the sessions are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from rath.llm.prices import Cost
from rath.session import Session, run_session_compress
from rath.session.graph import ancestors_bfs
from rath.session.loading import load
from rath.session.persistence.store import FileStore
from rath.session.record import ModelCall, Operation, ToolRun
from rath.testing import ScriptedClient, tool_call
from tests.support.api import Entry
from tests.support.images import picture
from tests.support.session_files import operation, placed, worked, writing
from tests.support.sessions import FunctionTool, run


def look(_: Session, arguments: Mapping[str, Any]) -> object:
    return {"said": dict(arguments)}


def ask(session: Session, _: object) -> str | None:
    return run(["sub"], user=session.fork()).text()


TOOL, SUB_AGENT = FunctionTool("look", look), FunctionTool("ask", ask)

Step = tuple[str, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["fork", "detach", "merge", "merge", "compress", "late", "loop", "tools", "sub-agent"]
        ),
        st.integers(0, 20),
        st.integers(0, 20),
    ),
    min_size=1,
    max_size=9,
)


def grown(todo: list[Step]) -> list[Session]:
    """Return sessions that are made of one another, each when those before it were done."""
    made = [
        Session.from_user_message("go", images=[picture(b"cat")]),
        Session.from_user_message("another"),
    ]
    for step, one, other in todo:
        first, second = made[one % len(made)], made[other % len(made)]
        new = MADE[step](first, second)
        made.append(new.synchronize())
    return made


def with_late(first: Session, _: Session) -> Session:
    first.add_entry(operation(kind="check"))
    return first.fork()


def with_sub_agent(first: Session, _: Session) -> Session:
    return run([tool_call("ask", {}), "done"], SUB_AGENT, user=first)


def compressed(first: Session, _: Session) -> Session:
    client = ScriptedClient(["what was said"])
    agent = Session.from_agent_prompt("Be brief.")
    return run_session_compress(first, agent, agent_provider=client.provider)


MADE: dict[str, Callable[[Session, Session], Session]] = {
    "fork": lambda first, _: first.fork(),
    "detach": lambda first, _: first.detach(),
    "merge": lambda first, second: first.merge(second),
    "compress": compressed,
    "late": with_late,
    "loop": lambda first, _: run(["said"], user=first),
    "tools": lambda first, _: run(
        [tool_call("look", {"at": "x"}), tool_call("look", {}, tool_call("look", {"y": 1})), "ok"],
        TOOL,
        user=first,
    ),
    "sub-agent": with_sub_agent,
}


def told(entry: Entry) -> dict[str, Any]:
    """Return an entry with all of its fields, those included that count in no comparison."""
    said = structs.asdict(entry)
    if isinstance(entry, Operation):
        place = entry.place
        said["place"] = place, place.run, place.root, place.trace
        said["theirs"] = None if entry.theirs is None else list(entry.theirs)
    return said


def require_same(live: Session, loaded: Session) -> None:
    assert loaded.id == live.id
    assert [(row, row.id) for row in loaded.chunk_table] == [
        (row, row.id) for row in live.chunk_table
    ]
    assert [told(entry) for entry in loaded.record] == [told(entry) for entry in live.record]
    assert loaded.outcome == live.outcome
    assert loaded.cumulative_usage == live.cumulative_usage
    assert loaded.lineage == live.lineage
    assert loaded.lineage_extras == live.lineage_extras
    assert (loaded.lineage_operator, loaded.lineage_kind) == (
        live.lineage_operator,
        live.lineage_kind,
    )
    assert loaded.text() == live.text()
    for mine, theirs in zip(loaded.provenance.parents, live.provenance.parents, strict=True):
        assert (mine.id, mine.n_rows) == (theirs.id, theirs.n_rows)


def ancestors(session: Session) -> set[tuple[UUID, str]]:
    """Return ids and operators of all that a session came from."""
    found: set[tuple[UUID, str]] = set()
    todo = list(session.provenance.parents)
    while todo:
        edge = todo.pop()
        above = edge.provenance
        name = (edge.id, "" if above is None else above.operator)
        if name not in found:
            found.add(name)
            todo += () if above is None else above.parents
    return found


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None
)
@given(todo=steps)
def test_any_sessions_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, todo: list[Step]
) -> None:
    store = FileStore(tmp_path_factory.mktemp("sessions"))
    made = grown(todo)
    for session in made:
        session.save(store=store)
    again = [load(store, session.id).session for session in made]
    for live, loaded in zip(made, again, strict=True):
        require_same(live, loaded)
        assert ancestors(loaded) == ancestors(live)
    # What is made of them afterwards is what it would have been.
    live, loaded = made[-1].merge(made[0]), again[-1].merge(again[0])
    assert loaded.chunk_table == live.chunk_table
    assert [entry.id for entry in loaded.record.since(0)][:-1] == [
        entry.id for entry in live.record
    ][:-1]
    assert loaded.cumulative_usage == live.cumulative_usage


def test_laws_hold_between_sessions_of_one_closure(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    root = run(["hi"], user=Session.from_user_message("go")).synchronize()
    one, other = root.fork(), root.fork()
    merged = run(["a"], user=one).merge(run(["b"], user=other)).synchronize()
    merged.save(store=store)
    loaded = load(store, merged.id).session
    first, second = loaded.provenance.parents
    assert first.body is not None
    assert second.body is not None
    mine, theirs = first.body.result(), second.body.result()
    # Not by the names of rows: the memory itself is shared.
    assert mine.table.vector.common_prefix(theirs.table.vector) == 2
    assert mine.merged(theirs).table == loaded.chunk_table
    assert len(mine.merged(mine).table) == len(mine.table)


def test_undo_comes_back_with_all_of_its_parent(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    start = placed({"a": b"1"})
    live = worked(start, writing("a", "2", id="w")).synchronize()
    undone = live.undo("w")
    undone.save(store=store)
    loaded = load(store, undone.id).session
    require_same(undone, loaded)
    (edge,) = loaded.provenance.parents
    assert (edge.n_rows, len(loaded.chunk_table)) == (len(live.chunk_table), 1)
    effects = [entry.file_effects for entry in live.record if isinstance(entry, ToolRun)]
    (parent,) = [load(store, live.id).session]
    found = [entry.file_effects for entry in parent.record if isinstance(entry, ToolRun)]
    assert found == effects
    assert found[0][0].after is not None
    assert found[0][0].after.data == b"2"


def test_images_come_back_with_their_bytes(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    session = run(["a cat"], user=Session.from_user_message("what?", images=[picture(b"cat")]))
    session.save(store=store)
    (image,) = load(store, session.id).session.chunk_table[0].images
    assert image.blob.data == picture(b"cat")


def test_a_call_keeps_the_price_of_its_day(tmp_path: Path) -> None:
    session = run(["hi"]).synchronize()
    session.save(store=FileStore(tmp_path))
    loaded = load(FileStore(tmp_path), session.id).session
    costs: list[Cost | None] = [
        entry.evidence.cost for entry in loaded.record if isinstance(entry, ModelCall)
    ]
    assert costs == [None]
    assert loaded.cumulative_cost == session.cumulative_cost


def test_ancestors_by_id_are_those_of_the_live_graph(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    made = grown([("loop", 0, 0), ("fork", 2, 0), ("fork", 2, 0), ("merge", 3, 4)])
    for session in made:
        session.save(store=store)
    stored = {session: load(store, session).session for session in store.stamps()}
    live = {session.id: session for session in made}
    found = ancestors_bfs(stored, made[-1].id)
    assert set(ancestors_bfs({**stored, **live}, made[-1].id)) == set(found)
    assert {made[0].id, made[2].id, made[3].id, made[4].id} <= set(found)
