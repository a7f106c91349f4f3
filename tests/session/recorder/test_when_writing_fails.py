"""What is written of a run that streams, and of one that cannot be written."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from rath._async.deferred import Deferred
from rath.errors import PersistenceError
from rath.llm import Provider
from rath.llm.chat_response import RathLLMAssistantMessage, RathLLMStreamDelta
from rath.llm.registry import chat_client_for
from rath.session import ChunkTable, Session, load_session
from rath.session.outcome import Completed
from rath.session.persistence.store import FileStore, stores
from rath.session.record import ModelCall
from rath.testing import ScriptedClient, tool_call
from rath.testing.store import FakeSessionStore
from tests.support.api import (
    CLOCK_READERS,
    WRITE_CHARS,
    Body,
    ProviderCandidate,
    RunLog,
    load_prices,
    prices_module,
)
from tests.support.sessions import FunctionTool, entries_of, run


def echo(_: Session, arguments: object) -> object:
    return arguments


ECHO = FunctionTool("echo", echo)


_numbers = count()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> FakeSessionStore:
    """A default store in memory."""
    store, scheme = FakeSessionStore(), f"failing{next(_numbers)}"
    stores.register(scheme, lambda _: store)
    monkeypatch.setenv("OPENRATH_STORE", f"{scheme}://x")
    return store


def assert_is_beginning(store: FakeSessionStore, live: Session) -> None:
    """Check that what is stored of a session is a prefix of what it had made."""
    if store.read(live.id) is None:
        return
    loaded = Session.load(live.id, store=store)
    n_rows, n_entries = len(loaded.chunk_table), len(loaded.record)
    assert loaded.chunk_table == live.partial_table.prefix(n_rows)
    assert list(loaded.record) == list(live.partial_record.prefix(n_entries))
    assert loaded.outcome != Completed()


@pytest.mark.parametrize("fail_at", range(1, 14))
@pytest.mark.parametrize("durability", ["turn", "none"])
def test_any_failed_write_fails_a_run(
    failing: FakeSessionStore, fail_at: int, durability: str
) -> None:
    failing.fail_at = fail_at
    calls = tool_call("echo", "", tool_call("echo"))
    out = run([calls, tool_call("echo"), "done"], ECHO, persist=True, durability=durability)
    with suppress(PersistenceError):
        out.synchronize()
    error = out.core.body.error()
    if error is None:
        assert failing.n_writes < fail_at
        assert list(Session.load(out.id, store=failing).record) == list(out.record)
        return
    assert isinstance(error, PersistenceError)
    assert "No space left" in str(error)
    assert "in the run of session" in "".join(error.__notes__)
    assert_is_beginning(failing, out)


def test_no_call_is_made_whose_intent_could_not_be_written(failing: FakeSessionStore) -> None:
    made: list[int] = []
    tool = FunctionTool("f", lambda *_: made.append(1))

    def fail_from_now(_: object) -> RathLLMAssistantMessage:
        failing.fail_at = failing.n_writes + 1
        return tool_call("f")

    out = run([fail_from_now, "never"], tool, persist=True)
    with pytest.raises(PersistenceError):
        out.synchronize()
    assert made == []


def test_a_clock_that_jumps_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    ticks = count()

    class Jumping(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]  # one clock
            tick = next(ticks)
            return start + timedelta(days=-400 * tick if tick % 2 else 9000)

    for module in CLOCK_READERS:
        monkeypatch.setattr(module, "datetime", Jumping)
    first = run([tool_call("echo"), "one"], ECHO, persist=True)
    out = run([tool_call("echo"), "two"], ECHO, user=first, persist=True).synchronize()
    loaded = Session.load(out.id)
    assert list(loaded.record) == list(out.record)
    assert loaded.chunk_table == out.chunk_table
    assert load_session(first.id).closed


def reply(text: str | None) -> RathLLMStreamDelta:
    return RathLLMStreamDelta(content_delta=text)


def test_a_stream_of_a_run_is_written_while_it_goes_on() -> None:
    long = [reply("a" * WRITE_CHARS), reply("b" * WRITE_CHARS)]
    end = RathLLMStreamDelta(finish_reason="stop")

    def hear(_: RathLLMStreamDelta) -> None:
        return None

    out = run([[*long, end]], on_event=hear, persist=True).synchronize()
    lines = FileStore().path(out.id).read_bytes().splitlines()
    texts = [one["text"] for one in map(json.loads, lines) if one.get("event") == "partial"]
    assert texts == ["a" * WRITE_CHARS, "b" * WRITE_CHARS]
    assert Session.load(out.id).chunk_table == out.chunk_table


def test_prices_are_loaded_for_models_that_are_sold(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[object] = []

    class Workers:
        def start_in_worker(self, job: object) -> None:
            jobs.append(job)
            assert callable(job)
            job()

    monkeypatch.setattr(prices_module, "runtime", Workers)
    monkeypatch.delitem(sys.modules, "rath.llm.price_list", raising=False)
    provider = Provider(model="gpt-5-mini", api_key="x", base_url="https://api.openai.com/v1")
    load_prices([ProviderCandidate(chat_client_for(provider), provider)])
    assert "rath.llm.price_list" in sys.modules
    load_prices([ProviderCandidate(chat_client_for(provider), provider)])
    scripted = ScriptedClient([])
    load_prices([ProviderCandidate(scripted, scripted.provider)])
    assert len(jobs) == 1


def test_what_an_abandoned_call_notes_after_the_end_is_no_part_of_the_run() -> None:
    inner = run(["hello"]).synchronize()
    (call,) = entries_of(inner, ModelCall)
    log = RunLog(inner.id, Deferred(inner.id, ()), None)
    log.start(Body(ChunkTable()))

    async def finish() -> None:
        async with log:
            log.take(call, None)
            log.end(Completed())

    asyncio.run(finish())
    log.take(inner.record[0], None)
    assert list(log.body.record) == [call]
