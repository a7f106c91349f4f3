"""Every model call leaves an entry, whatever becomes of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest

from rath._async.runtime import runtime
from rath.errors import ProviderProtocolError
from rath.llm import Provider, RathLLMChatRequest, RathLLMChatResponse, register_chat_client
from rath.llm.draft import ChatDraft, open_draft
from rath.llm.exchange import CallEvidence, Exchange
from rath.session import RowId
from rath.session.calls.requests import Call, call_model
from rath.session.outcome import Cancelled
from rath.session.record import ModelCall
from rath.testing import ScriptedClient
from tests.support.sessions import run
from tests.support.waiting import PATIENCE

T = TypeVar("T")

CALL = Call(operation=uuid4(), purpose="turn", head_digest="h", n_rows=3, row=RowId(UUID(int=1), 3))


class Draft:
    """A draft that does what the test says in place of a call."""

    def __init__(self, send: Callable[[], Awaitable[Exchange]], evidence: CallEvidence | None):
        client = ScriptedClient(["x"])
        self._inner: ChatDraft = open_draft(client, RathLLMChatRequest(messages=(), model="m"))
        self._send = send
        self._evidence = evidence
        self.facts = self._inner.facts
        self.digest = self._inner.digest

    def append(self, messages: Sequence[Any]) -> None:
        self._inner.append(messages)

    def body(self) -> bytes:
        return self._inner.body()

    async def asend(self, *, on_delta: Any = None) -> Exchange:
        return await self._send()

    def last_evidence(self) -> CallEvidence | None:
        return self._evidence


def on_runtime(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return runtime().run(make, label="a test")


def real_exchange() -> Exchange:
    draft = open_draft(ScriptedClient(["x"]), RathLLMChatRequest(messages=(), model="m"))
    return on_runtime(draft.asend)


def test_a_call_that_was_answered_names_the_row_that_it_made() -> None:
    notes: list[ModelCall] = []
    exchange = real_exchange()

    async def send() -> Exchange:
        return exchange

    assert on_runtime(lambda: call_model(Draft(send, None), CALL, notes.append)) is exchange
    (entry,) = notes
    assert (entry.status, entry.rows, entry.evidence) == ("done", (CALL.row,), exchange.evidence)
    assert entry.seen is not None
    assert entry.seen.n_rows == 3


def test_an_answer_without_choices_is_noted_and_refused() -> None:
    notes: list[ModelCall] = []
    empty = RathLLMChatResponse(id="", choices=(), created=0, model="m")

    async def send() -> Exchange:
        return Exchange(empty, real.evidence)

    real = real_exchange()
    with pytest.raises(ProviderProtocolError, match="holds no choices"):
        on_runtime(lambda: call_model(Draft(send, None), CALL, notes.append))
    assert [entry.status for entry in notes] == ["done"]


def test_a_call_that_failed_makes_no_row() -> None:
    notes: list[ModelCall] = []
    evidence = real_exchange().evidence

    async def send() -> Exchange:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        on_runtime(lambda: call_model(Draft(send, evidence), CALL, notes.append))
    (entry,) = notes
    assert (entry.status, entry.evidence.status, entry.rows) == ("failed", "failed", ())


def test_what_fails_before_anything_is_sent_leaves_no_entry() -> None:
    notes: list[ModelCall] = []

    async def send() -> Exchange:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        on_runtime(lambda: call_model(Draft(send, None), CALL, notes.append))
    assert notes == []


def test_a_run_that_is_cancelled_in_a_model_call_keeps_an_entry_of_it() -> None:
    begun, ended = threading.Event(), threading.Event()

    class Endless:
        provider = Provider(model="m", provider_kind="endless")

        async def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError

    register_chat_client("endless", lambda _: Endless())  # type: ignore[arg-type,return-value]  # its methods are coroutines
    out = run([], agent_provider=Endless.provider)
    begun.wait(PATIENCE)
    assert out.cancel().outcome == Cancelled(out.id)
    assert ended.wait(PATIENCE)
    (call,) = [entry for entry in out.record if isinstance(entry, ModelCall)]
    assert (call.status, call.rows) == ("cancelled", ())


def test_the_entry_of_a_failed_call_is_read_from_the_failed_session() -> None:
    failed = run([ValueError("boom")])
    with pytest.raises(ValueError, match="boom"):
        failed.text()
    (call,) = [entry for entry in failed.partial_record if isinstance(entry, ModelCall)]
    assert call.status == "failed"
    assert "boom" in (call.evidence.error or "")
