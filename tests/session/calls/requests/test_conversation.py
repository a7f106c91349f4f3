"""Who is asked, in which order, with which rows, and how fallbacks answer, also over HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.runtime import runtime
from rath.errors import (
    ProviderProtocolError,
    ProviderServerError,
    QuotaExceededError,
)
from rath.llm import (
    Exchange,
    Provider,
    RathLLMChatRequest,
    RathLLMChatResponse,
    RathLLMStreamDelta,
    chat_client_for,
    open_draft,
    register_chat_client,
)
from rath.session import (
    RowId,
    Session,
    run_session_compress,
    select_session,
)
from rath.session.calls.requests import ModelCallContext, call_model
from rath.session.outcome import Cancelled
from rath.session.record import ModelCall
from rath.testing import ScriptedClient
from tests.support import chat_replies
from tests.support.api import MANY_ROWS
from tests.support.chat_replies import Cut, Reply
from tests.support.chat_server import ChatServer
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.rendering import rerender_call
from tests.support.sessions import AGENT, FunctionTool, echo, entries_of, run
from tests.support.waiting import PATIENCE

ECHO = FunctionTool("echo", echo)


Messages = Sequence[Mapping[str, Any]]


def down(_: Messages) -> Says:
    raise ProviderServerError("it is down", status=503)


def says(text: str) -> Callable[[Messages], Says]:
    return lambda _: Says(text)


def chain(*vendors: OfflineVendor) -> Provider:
    """The provider of the first, with the others as its fallbacks; nobody tries twice."""
    first, *others = (replace(vendor.provider, retry_max_attempts=1) for vendor in vendors)
    return replace(first, fallbacks=others)


def model_calls(session: Session) -> list[ModelCall]:
    return [entry for entry in session.partial_record if isinstance(entry, ModelCall)]


def name_of(vendor: OfflineVendor) -> str:
    provider = vendor.provider
    return f"{provider.provider_kind} {vendor.endpoint} {provider.model}"


# ---- for any failures


class Fates:
    """Vendors that work together on one run; who is down in which round is drawn beforehand."""

    def __init__(self, rounds: Sequence[Sequence[bool]]) -> None:
        self._rounds = rounds
        self.asked: list[list[int]] = [[]]
        """For each round who was asked, in order."""

        self.vendors = [OfflineVendor(self._answer(index)) for index in range(len(rounds[0]))]

    def _answer(self, index: int) -> Callable[[Messages], Says]:
        def answer(_: Messages) -> Says:
            number = len(self.asked) - 1
            self.asked[-1].append(index)
            if self._rounds[number][index]:
                return down(())
            self.asked.append([])
            is_last = number == len(self._rounds) - 1
            return Says("done") if is_last else Says(calls=("echo",))

        return answer

    def expected(self) -> list[list[int]]:
        """Begin with who answered last, go on in order, ask each once, stop when all failed."""
        n, last, expected = len(self.vendors), 0, list[list[int]]()
        for fates in self._rounds:
            order = [(last + step) % n for step in range(n)]
            up = [index for index in order if not fates[index]]
            expected.append(order[: order.index(up[0]) + 1] if up else order)
            if not up:
                return expected
            last = up[0]
        return [*expected, []]


fates = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1, max_size=6)
)


@given(rounds=fates)
def test_each_call_begins_with_who_answered_last_and_its_entries_say_after_whom_they_came(
    rounds: list[list[bool]],
) -> None:
    drawn = Fates(rounds)
    out = run([], ECHO, agent_provider=chain(*drawn.vendors))
    if any(all(down) for down in rounds):
        with pytest.raises(ProviderServerError, match="it is down"):
            out.synchronize()
    else:
        assert out.text() == "done"
    assert drawn.asked == drawn.expected()
    models = [vendor.provider.model for vendor in drawn.vendors]
    names = [name_of(vendor) for vendor in drawn.vendors]
    expected: list[tuple[str | None, str, str | None]] = []
    displaced: str | None = None
    for order, fate in zip(drawn.expected(), rounds, strict=False):
        before = [displaced, *(names[index] for index in order)]
        for index, earlier in zip(order, before, strict=False):
            expected.append((models[index], "failed" if fate[index] else "done", earlier))
        # Once the first choice answers again there is nothing to tell.
        displaced = before[len(order) - 1] if order[-1] else None
    found = [
        (call.evidence.requested_model, call.status, call.evidence.fallback_from)
        for call in model_calls(out)
    ]
    assert found == expected


@given(rounds=fates)
def test_what_each_was_asked_can_be_rendered_again_and_no_row_is_encoded_twice(
    rounds: list[list[bool]],
) -> None:
    drawn = Fates([[*fate[:-1], False] for fate in rounds])
    provider = chain(*drawn.vendors)
    out = run([], ECHO, agent_provider=provider).synchronize()
    for vendor in drawn.vendors:
        longest = max((len(messages) for messages in vendor.requests), default=0)
        assert vendor.n_encoded == longest
    asked = {one.model: one for one in (provider, *provider.fallbacks)}
    for call in model_calls(out):
        assert call.seen is not None
        one = asked[call.evidence.requested_model]
        body = rerender_call(out, call, client=chat_client_for(one), provider=one)
        assert hashlib.sha256(body).hexdigest() == call.seen.request_digest


# ---- which errors


def test_an_answer_without_choices_is_noted_and_refused() -> None:
    notes: list[ModelCall] = []
    draft = open_draft(ScriptedClient(["x"]), RathLLMChatRequest(messages=(), model="m"))
    evidence = runtime().run(draft.asend, label="a test").evidence

    async def send(**_: object) -> Exchange:
        empty = RathLLMChatResponse(id="", choices=(), created=0, model="m")
        return Exchange(empty, evidence)

    empty: Any = SimpleNamespace(asend=send, facts=draft.facts, digest=draft.digest)
    call = ModelCallContext(
        operation=uuid4(), purpose="turn", head_digest="h", n_rows=3, row=RowId(UUID(int=1), 3)
    )
    with pytest.raises(ProviderProtocolError, match="holds no choices"):
        runtime().run(lambda: call_model(empty, call, notes.append), label="a test")
    assert [entry.status for entry in notes] == ["done"]


def test_a_run_that_is_cancelled_asks_nobody_else() -> None:
    started = threading.Event()

    class Endless:
        provider = Provider(model="m", provider_kind="endless first")

        async def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
            started.set()
            await asyncio.Event().wait()
            raise AssertionError

    register_chat_client("endless first", lambda _: Endless())  # type: ignore[arg-type,return-value]  # its methods are coroutines
    second = OfflineVendor(says("never"))
    provider = replace(Endless.provider, fallbacks=[second.provider])
    out = run([], agent_provider=provider)
    assert started.wait(PATIENCE)
    assert out.cancel().outcome == Cancelled(out.id)
    assert [call.status for call in model_calls(out)] == ["cancelled"]
    assert second.requests == []


# ---- long sessions


def test_one_that_was_left_long_ago_catches_up() -> None:
    rounds = [[True, False]] * MANY_ROWS + [[False, True]]
    # The second answers until it fails in the last round, and the first is asked again then.
    drawn = Fates(rounds)
    out = run([], ECHO, agent_provider=chain(*drawn.vendors), max_tool_rounds=len(rounds))
    assert out.text() == "done"
    first, second = drawn.vendors
    assert len(first.requests) == 2
    assert first.requests[-1] == second.requests[-1]


DOWN = chat_replies.status_error(500, "it is down")


SPENT = chat_replies.status_error(429, "no money", code="insufficient_quota")


@pytest.fixture
def one() -> Iterator[ChatServer]:
    with ChatServer() as server:
        yield server


@pytest.fixture
def two() -> Iterator[ChatServer]:
    with ChatServer() as server:
        yield server


def provider_of(server: ChatServer, kind: str = "openai", **more: Any) -> Provider:
    """A provider that does not try twice."""
    made = Provider(provider_kind=kind, model="m", api_key="key-of-it", base_url=server.base_url)
    return replace(made, retry_max_attempts=1, **more)


def over_http(one: ChatServer, two: ChatServer, **more: Any) -> Provider:
    return provider_of(one, fallbacks=[provider_of(two)], **more)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (DOWN, "ProviderServerError"),
        (chat_replies.status_error(503, "busy"), "ProviderServerError"),
        (chat_replies.status_error(529, "overloaded"), "ProviderServerError"),
        (chat_replies.status_error(429, "slow down"), "RateLimitError"),
        (SPENT, "QuotaExceededError"),
        (chat_replies.status_error(402, "pay first"), "QuotaExceededError"),
        (chat_replies.status_error(408, "too slow"), "ProviderStatusError"),
        (chat_replies.dropped(), "ProviderConnectionError"),
    ],
    ids=["500", "503", "529", "429", "429 quota", "402", "408", "dropped"],
)
def test_another_endpoint_answers_where_one_fails(
    one: ChatServer, two: ChatServer, reply: Reply, error: str
) -> None:
    one.queue(reply)
    two.queue(chat_replies.completion("from two"))
    out = run([], agent_provider=over_http(one, two))
    assert out.text() == "from two"
    failed, answered = model_calls(out)
    assert (failed.status, failed.rows, failed.evidence.fallback_from) == ("failed", (), None)
    assert (failed.evidence.error or "").startswith(f"{error}: ")
    assert len(failed.evidence.attempts) == 1
    assert answered.evidence.fallback_from == f"openai {one.base_url}/chat/completions m"
    assert answered.evidence.endpoint == f"{two.base_url}/chat/completions"


@pytest.mark.parametrize(
    "reply",
    [
        chat_replies.status_error(400, "bad request"),
        chat_replies.status_error(401, "bad key"),
        chat_replies.status_error(413, "too long"),
    ],
    ids=["400", "401", "413"],
)
def test_a_mistake_is_not_hidden_by_a_fallback(
    one: ChatServer, two: ChatServer, reply: Reply
) -> None:
    one.queue(reply)
    with pytest.raises(RuntimeError, match="answered with status 4"):
        run([], agent_provider=over_http(one, two)).text()
    assert two.requests == []


def test_the_error_of_the_last_names_the_first(one: ChatServer, two: ChatServer) -> None:
    one.queue(SPENT)
    two.queue(DOWN)
    out = run([], agent_provider=over_http(one, two))
    with pytest.raises(ProviderServerError, match="it is down") as caught:
        out.text()
    before = caught.value.__notes__[0]
    assert f"before it, openai {one.base_url}/chat/completions m failed with" in before
    assert QuotaExceededError.__name__ in before
    assert "key-of-it" not in "".join(caught.value.__notes__)
    assert [call.status for call in model_calls(out)] == ["failed", "failed"]


# ---- streamed


def test_text_of_a_failed_stream_is_streamed_and_no_part_of_the_answer(
    one: ChatServer, two: ChatServer
) -> None:
    heard: list[RathLLMStreamDelta] = []
    one.queue(chat_replies.event_stream(chat_replies.text_chunk("half a "), Cut()))
    two.queue(chat_replies.text_stream("from ", "two", counts=(1, 2)))
    out = run([], agent_provider=over_http(one, two), on_event=heard.append)
    assert out.text() == "from two"
    assert [delta.content_delta for delta in heard if delta.content_delta] == [
        "half a ", "from ", "two",
    ]  # fmt: skip
    failed, answered = model_calls(out)
    assert failed.evidence.partial_text == "half a "
    assert answered.evidence.parameters["stream"] is True


# ---- compress, select, persist


def test_compress_and_select_fall_back(one: ChatServer, two: ChatServer) -> None:
    provider, user = over_http(one, two), Session.from_user_message("a story")
    one.queue(DOWN, SPENT)
    two.queue(chat_replies.completion("short"), chat_replies.completion("0"))
    short = run_session_compress(user, AGENT, agent_provider=provider)
    assert short.text() == "short"
    assert select_session(short, AGENT, "a", "b", agent_provider=provider) == (0, "a")
    record = entries_of(short, ModelCall)
    assert [(call.purpose, call.status) for call in record] == [
        ("compress", "failed"), ("compress", "done"), ("select", "failed"), ("select", "done"),
    ]  # fmt: skip


# ---- across vendors
