"""Chat clients that others bring."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from typing import Any

import pytest

from rath._async.runtime import runtime
from rath.errors import (
    ProviderError,
    ProviderProtocolError,
    RateLimitError,
)
from rath.llm import (
    Provider,
    RathLLMChatRequest,
    RathLLMChatResponse,
    RathLLMMessage,
    RathLLMStreamDelta,
    evidence_of,
    open_draft,
)
from rath.llm.base import require_streaming
from rath.llm.chat_response import RathLLMAssistantMessage, RathLLMChatChoice
from rath.llm.errors import may_fall_back
from rath.llm.openai import RathOpenAIChatClient
from tests.support.asking import HELLO, KEY, WEATHER, ask, exchange, send


def answer(text: str) -> RathLLMChatResponse:
    message = RathLLMAssistantMessage(content=text)
    return RathLLMChatResponse("r-1", (RathLLMChatChoice(0, "stop", message),), 0, "m-1")


def words(*texts: str) -> list[RathLLMStreamDelta]:
    return [RathLLMStreamDelta(content_delta=text) for text in texts]


class Foreign:
    """Answers with what it was asked last."""

    provider = Provider(model="own", provider_kind="theirs", base_url="http://u:p@h/v1?k=s")

    def __init__(self) -> None:
        self.requests: list[RathLLMChatRequest] = []
        self.threads: list[str] = []

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        self.requests.append(req)
        self.threads.append(threading.current_thread().name)
        return answer(req.messages[-1].content or "")

    def complete_stream(self, req: RathLLMChatRequest) -> Iterator[RathLLMStreamDelta]:
        self.requests.append(req)
        self.threads.append(threading.current_thread().name)
        yield from words("a", "b", "c")


class AsyncForeign:
    provider = Provider(model="own")

    async def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        await asyncio.sleep(0)
        return answer(threading.current_thread().name)

    async def complete_stream(self, req: RathLLMChatRequest) -> AsyncIterator[RathLLMStreamDelta]:
        for delta in words("a", "b"):
            await asyncio.sleep(0)
            yield delta


class Failing(Foreign):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        raise self.error

    def complete_stream(self, req: RathLLMChatRequest) -> Iterator[RathLLMStreamDelta]:
        yield from words("par")
        raise self.error


def test_each_call_gets_the_complete_request() -> None:
    client = Foreign()
    draft = open_draft(client, RathLLMChatRequest(messages=HELLO, model="m", temperature=0.5))
    send(draft)
    more = (RathLLMMessage("assistant", "x"), RathLLMMessage("user", "y"))
    draft.append(more)
    assert send(draft).response.primary_choice.message.content == "y"
    assert [request.messages for request in client.requests] == [HELLO, HELLO + more]
    assert client.requests[1].temperature == 0.5


def test_it_runs_on_a_worker_thread() -> None:
    client = Foreign()
    exchange(client)
    exchange(client, on_delta=lambda _: None)
    assert all(name.startswith("rath-worker") for name in client.threads)


def test_its_evidence_tells_what_is_known() -> None:
    evidence = exchange(Foreign(), ask(model=None)).evidence
    assert (evidence.provider_kind, evidence.adapter) == (
        "theirs",
        f"{Foreign.__module__}:Foreign",
    )
    assert (evidence.requested_model, evidence.served_model) == ("own", "m-1")
    assert evidence.endpoint == "http://h/v1"
    assert evidence.response_id == "r-1"


def test_its_digest_is_that_of_a_canonical_body() -> None:
    request = RathLLMChatRequest(
        messages=HELLO, model="m", tools=(WEATHER,), extra_create_args={"odd": object}
    )
    draft = open_draft(Foreign(), request)
    assert draft.digest == sha256(draft.body()).hexdigest()
    assert send(draft).evidence.request_digest == draft.digest


def test_a_plain_iterator_is_streamed() -> None:
    deltas: list[RathLLMStreamDelta] = []
    answered = exchange(Foreign(), on_delta=deltas.append)
    assert deltas == words("a", "b", "c")
    assert answered.response.primary_choice.message.content == "abc"
    assert answered.response.model == "m"


def test_many_deltas_keep_their_order() -> None:
    class Chatty(Foreign):
        def complete_stream(self, req: RathLLMChatRequest) -> Iterator[RathLLMStreamDelta]:
            yield from words(*(str(number) for number in range(3000)))

    deltas: list[RathLLMStreamDelta] = []
    exchange(Chatty(), on_delta=deltas.append)
    assert deltas == words(*(str(number) for number in range(3000)))


def test_a_coroutine_client_runs_on_the_user_loop() -> None:
    response = exchange(AsyncForeign()).response  # type: ignore[arg-type]  # `async def` is welcome
    assert response.primary_choice.message.content == "rath-user"


def test_an_async_generator_is_streamed() -> None:
    deltas: list[RathLLMStreamDelta] = []
    exchange(AsyncForeign(), on_delta=deltas.append)  # type: ignore[arg-type]  # as above
    assert deltas == words("a", "b")


def test_a_coroutine_may_return_the_iterator() -> None:
    class Returning:
        provider = Provider()
        complete = AsyncForeign().complete

        async def complete_stream(self, req: RathLLMChatRequest) -> Any:
            return iter(words("a"))

    deltas: list[RathLLMStreamDelta] = []
    exchange(Returning(), on_delta=deltas.append)  # type: ignore[arg-type]  # as above
    assert deltas == words("a")


class OwnError(Exception):
    """What only a client of the program raises."""

    def __init__(self, code: int, *, more: str) -> None:
        super().__init__(f"{code}: {more}")
        self.code = code


OWN_ERRORS: list[tuple[Exception, bool]] = [
    (OwnError(7, more="odd"), False),
    (KeyError("k"), False),
    (ValueError("unclear"), False),
    (FileNotFoundError("no such file"), False),
    (OSError("unclear"), False),
    (TimeoutError("late"), True),
    (OSError(errno.ETIMEDOUT, "late"), True),
    (ConnectionError("gone"), True),
    (ConnectionRefusedError("no"), True),
    (BrokenPipeError("no"), True),
    (socket.gaierror(socket.EAI_NONAME, "no such host"), True),
    (OSError(errno.EHOSTUNREACH, "no route"), True),
    (asyncio.IncompleteReadError(b"", 1), True),
]


@pytest.mark.parametrize(("error", "is_network"), OWN_ERRORS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_its_own_errors_stay_what_they_are(
    error: Exception, is_network: bool, is_streamed: bool
) -> None:
    draft = open_draft(Failing(error), ask(), streaming=is_streamed)
    with pytest.raises(type(error)) as caught:
        send(draft, on_delta=(lambda _: None) if is_streamed else None)
    # asyncio hands on a timeout as a new one.
    assert (type(caught.value), caught.value.args) == (type(error), error.args)
    assert may_fall_back(caught.value) == is_network
    evidence = draft.last_evidence()
    assert evidence is not None
    assert evidence.status == "failed"
    assert type(error).__name__ in (evidence.error or "")
    assert evidence.partial_text == ("par" if is_streamed else "")


def test_what_an_event_loop_must_not_see_becomes_an_error_of_rath() -> None:
    with pytest.raises(ProviderError, match="SystemExit") as caught:
        exchange(Failing(SystemExit(3)))
    assert isinstance(caught.value.__cause__, SystemExit)


def test_a_key_in_the_words_of_its_error_is_hidden() -> None:
    class Telling(Failing):
        provider = Provider(model="own", api_key=KEY)

    with pytest.raises(ValueError, match=r"^bad key \*\*\*$"):
        exchange(Telling(ValueError(f"bad key {KEY}")))
    nested = OwnError(1, more="x")
    nested.__cause__ = OSError(1, f"header {KEY}")
    with pytest.raises(ProviderError, match="OwnError") as caught:
        exchange(Telling(nested))
    assert caught.value.__cause__ is None


def test_an_error_of_rath_stays_itself() -> None:
    error = RateLimitError("slow", status=429)
    with pytest.raises(RateLimitError) as caught:
        exchange(Failing(error))
    assert caught.value is error
    assert evidence_of(error) is not None


@pytest.mark.parametrize("wrong", [None, "text", RathLLMChatResponse("", (), 0, "")])
def test_what_is_no_response_is_refused(wrong: Any) -> None:
    class Wrong(Foreign):
        def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
            assert wrong != 0
            response: RathLLMChatResponse = wrong
            return response

    with pytest.raises(ProviderProtocolError, match="expected a RathLLMChatResponse"):
        exchange(Wrong())


def test_cancelling_ends_the_iterator() -> None:
    closed = threading.Event()

    class Endless(Foreign):
        def complete_stream(self, req: RathLLMChatRequest) -> Iterator[RathLLMStreamDelta]:
            try:
                while True:
                    yield words("a")[0]
            finally:
                closed.set()

    draft = open_draft(Endless(), ask())

    async def cancelled() -> None:
        arrived = asyncio.Event()
        call = asyncio.ensure_future(draft.asend(on_delta=lambda _: arrived.set()))
        await arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    runtime().run(cancelled, label="a test call")
    assert closed.wait(50)
    evidence = draft.last_evidence()
    assert evidence is not None
    assert evidence.status == "cancelled"


def test_a_client_that_cannot_stream_is_refused_early() -> None:
    class Plain:
        provider = Provider()

        def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
            return answer("x")

    with pytest.raises(TypeError, match="complete_stream"):
        require_streaming(Plain())
    require_streaming(Foreign())


def test_a_subclass_of_ours_that_answers_by_itself_is_asked() -> None:
    class Own(RathOpenAIChatClient):
        def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
            return answer("by itself")

    client = Own(Provider(api_key="k", base_url="http://127.0.0.1:9/v1", model="m"))
    assert exchange(client).response.primary_choice.message.content == "by itself"
