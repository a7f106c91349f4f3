"""What is left open, told of records that say little."""

from __future__ import annotations

import asyncio
import threading
from uuid import uuid4

import pytest

from rath._async.lazy import Deferred
from rath._core.vector import Vector
from rath.errors import PersistenceError
from rath.flow import Agent
from rath.session import ChunkTable, Session, assistant_turn_chunk
from rath.session.graph.recording import Provenance
from rath.session.log.verify import verify
from rath.session.operation import Place
from rath.session.outcome import Completed
from rath.session.record import ModelCall, Operation
from rath.testing import ScriptedClient, tool_call
from tests.support.api import (
    Body,
    Entry,
    StoredSource,
    find_selection,
    find_verdict,
    last_interrupt,
    open_calls,
    program_of,
    resuming_from,
)
from tests.support.evidence import evidence
from tests.support.journal_store import JournalStore
from tests.support.sessions import AsyncFunctionTool, run
from tests.support.waiting import PATIENCE


def test_a_record_without_a_word_waits_for_nothing() -> None:
    assert last_interrupt(Vector(), uuid4()) is None


def test_a_turn_without_its_call_in_the_record_has_open_calls() -> None:
    session = uuid4()
    row = assistant_turn_chunk(tool_calls=tool_call("f", {}, id="a").tool_calls)
    body = Body(ChunkTable().born_in(session, [row]))
    assert [(each.call.id, each.state) for each in open_calls(body, session)] == [("a", "asked")]


def operation(kind: str, place: Place) -> Operation:
    made = uuid4()
    return Operation(operation=made, kind=kind, place=place, session=made)  # type: ignore[arg-type]  # one of the kinds


def test_what_was_begun_and_not_answered_is_made_again() -> None:
    run_id = uuid4()
    place = Place("x", 0, run_id, uuid4())
    select, check = operation("select", place), operation("check", place)
    silent = ModelCall(
        operation=select.operation, purpose="select", status="failed", seen=None,
        evidence=evidence(None, model="m"),
    )  # fmt: skip
    record = Vector[Entry]([operation("select", place), select, silent, check])
    body = Session.from_user_message("go").body.result()
    program = program_of(Session.from_user_message("go"))
    with resuming_from(program):
        assert find_selection(place, record, (body, body), "?") is None
        assert find_verdict(place, record, name="a", judge="b") is None


def test_what_was_dropped_is_not_found() -> None:
    session = Session.from_user_message("go")
    program = program_of(session)
    program.drop(session.id)
    assert program.find(session.id) is None


def test_a_tool_call_of_a_session_that_is_nowhere_has_no_place() -> None:
    out = run(["one"]).synchronize()
    (first, *rest) = out.record
    assert isinstance(first, Operation)
    place = Place("x.call 1.0", 0, uuid4(), uuid4(), uuid4())
    inside = Operation(
        operation=first.operation, kind="loop", place=place, session=out.id, head=first.head
    )
    body = Body(out.chunk_table, Vector[Entry]([inside, *rest]))
    session = Session.from_body(Deferred.of(body), Provenance(), id=out.id)
    with pytest.raises(ValueError, match="was made by no workflow"):
        program_of(session).place()


def agent(*turns: str) -> Agent:
    return Agent("one", ScriptedClient(turns).provider, system_tools=False)


def test_a_store_without_the_beginning_is_named() -> None:
    store = JournalStore()
    made = agent("one")(Session.from_user_message("go")).synchronize()
    alone = Session.from_body(made.body, Provenance(), id=made.id)
    with pytest.raises(PersistenceError, match=f"is not in {store.where}"):
        agent().resume(alone, store=store)


def stored_run() -> tuple[JournalStore, Session]:
    store = JournalStore()
    made = agent("one")(Session.from_user_message("go")).synchronize()
    made.save(store=store)
    return store, made


def test_a_log_that_lacks_only_its_name_is_finished_when_it_is_served() -> None:
    store, made = stored_run()
    n_events = next(
        at
        for at, event in enumerate(store.events)
        if (event.kind, event.session) == ("finish", made.id)
    )
    cut = store.after(n_events)
    found = StoredSource(cut).find(made.id)
    assert found is not None
    assert found.body.result().outcome == Completed()
    assert made.id in cut.finished


def test_a_log_that_somebody_writes_is_served_as_it_is() -> None:
    store, made = stored_run()
    store.finished.discard(made.id)
    store.writers.add(made.id)
    assert StoredSource(store).find(made.id) is not None
    assert made.id not in store.finished


def test_a_log_that_was_cut_off_in_its_first_line_says_nothing() -> None:
    store, made = stored_run()
    first = next(event for event in store.events if event.session == made.id)
    torn = JournalStore([first._replace(data=first.data[:20])])
    assert StoredSource(torn).find(made.id) is None


def test_a_call_that_was_cut_off_before_it_began_is_only_asked() -> None:
    inside = threading.Event()

    async def wait(*_: object) -> None:
        inside.set()
        await asyncio.Event().wait()

    script = [tool_call("w", {"key": "same"}, tool_call("w", {"key": "same"}, id="b"), id="a")]
    out = run(script, AsyncFunctionTool("w", wait))
    assert inside.wait(PATIENCE)
    out.cancel().synchronize()
    assert [(each.call.id, each.state) for each in out.open_calls] == [
        ("a", "begun"),
        ("b", "asked"),
    ]


def test_a_leaf_whose_log_lacks_only_its_name_can_be_stored_again() -> None:
    store = JournalStore()
    leaf = Session.from_user_message("go")
    leaf.save(store=store)
    cut = store.after(len(store.events) - 1)
    again = Session(leaf.chunk_table, id=leaf.id)
    again.save(store=cut)
    assert leaf.id in cut.finished
    assert verify(cut, leaf.id).is_sound
