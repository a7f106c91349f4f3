"""What was stored is read back as it was, also while a program goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from rath import autosave
from rath.flow import Workflow
from rath.session import Session, run_session_compress
from rath.session.loading import load
from rath.session.outcome import Completed, NeedsApproval
from rath.session.persistence.store import FileStore, StoredLog
from rath.session.record import Operation
from rath.testing import ScriptedClient, tool_call
from tests.support.api import Entry, sharing_effects
from tests.support.images import picture
from tests.support.journal_store import JournalStore
from tests.support.session_files import created, operation, placed, tool_run, worked, writing
from tests.support.sessions import FunctionTool, run
from tests.support.waiting_program import WaitingTeam, allow, problems


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


def reports(entry: Entry) -> dict[str, Any]:
    """Return an entry with all of its fields, those included that count in no comparison."""
    reply = structs.asdict(entry)
    if isinstance(entry, Operation):
        place = entry.place
        reply["place"] = place, place.run, place.root, place.trace
        reply["theirs"] = None if entry.theirs is None else list(entry.theirs)
    return reply


def require_same(live: Session, loaded: Session) -> None:
    assert loaded.id == live.id
    assert [(row, row.id) for row in loaded.chunk_table] == [
        (row, row.id) for row in live.chunk_table
    ]
    assert [reports(entry) for entry in loaded.record] == [reports(entry) for entry in live.record]
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
def test_any_sessions_come_back(tmp_path_factory: pytest.TempPathFactory, todo: list[Step]) -> None:
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


def test_an_effect_of_calls_inside_one_another_is_counted_once(tmp_path: Path) -> None:
    def ask(session: Session, _: object) -> Any:
        return worked(session, writing("a", "1"), writing("b", "2")).text()

    def pass_on(session: Session, _: object) -> Any:
        return worked(session, tool_call("ask"), tools=[FunctionTool("ask", ask)]).text()

    tools = [FunctionTool("pass_on", pass_on)]
    live = worked(placed(), tool_call("pass_on"), writing("a", "3"), tools=tools).synchronize()
    live.save(store=FileStore(tmp_path))
    loaded = Session.load(live.id, store=FileStore(tmp_path))
    require_same(live, loaded)
    mine, theirs = (
        [(each.call.id, each.effect.path) for each in session.files.effects()]
        for session in (live, loaded)
    )
    assert mine == theirs
    runs = [tool_run(created("a", b"1"), call_id=name) for name in ("one", "two")]
    neighbour: Any = sharing_effects([structs.replace(e, operation=SHARED) for e in runs])
    assert neighbour[0].file_effects[0] is not neighbour[1].file_effects[0]


SHARED = UUID(int=1)


"""The operation of calls that were made beside each other."""


class WatchedStore(JournalStore):
    """A store in which something happens just before a log is read."""

    def __init__(self) -> None:
        super().__init__()
        self.before_read: Callable[[UUID], None] = lambda _: None

    def read(self, session: UUID) -> StoredLog | None:
        self.before_read(session)
        return super().read(session)


class ForkAndMerge(Workflow):
    """A session with two ways to what waits: by a fork, and directly."""

    def __init__(self) -> None:
        super().__init__()
        self.team = WaitingTeam()

    def forward(self, session: Session) -> Session:
        asked = self.team.boss(session)
        return asked.fork().merge(asked)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedStore]:
    made = WatchedStore()
    monkeypatch.setenv("OPENRATH_STORE", made.url)
    with autosave():
        yield made


def goes_on_before_the_fork_is_read(store: WatchedStore) -> UUID:
    """Have a program wait, and go on to its end as soon as a reader comes to the fork."""
    out = ForkAndMerge()(Session.from_user_message("go")).synchronize()
    assert isinstance(out.outcome, NeedsApproval)
    out.save(store=store)  # waits until all are stored
    allow(out, store)
    fork, boss = out.parent_session_ids
    read: list[UUID] = []

    def go_on(session: UUID) -> None:
        read.append(session)
        if session == fork:
            assert boss in read, "read before, as it was when it waited"
            store.before_read = lambda _: None
            done = ForkAndMerge().resume(Session.load(out.id, store=store), store=store)
            done.synchronize().save(store=store)

    store.before_read = go_on
    return out.id


def test_what_grows_between_two_reads_is_read_again(store: WatchedStore) -> None:
    session = goes_on_before_the_fork_is_read(store)
    loaded = Session.load(session, store=store)
    assert (loaded.outcome, loaded.text()) == (Completed(), "boss is done")


def test_what_grows_while_it_is_checked_is_no_damage(store: WatchedStore) -> None:
    session = goes_on_before_the_fork_is_read(store)
    assert problems(store, session) == []
