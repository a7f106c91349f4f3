"""Calls through the real LiteLLM to a test server, over two of its routes."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from rath.errors import (
    AuthenticationError,
    InvalidRequestError,
    ModelNotFoundError,
    ProviderConnectionError,
    ProviderError,
    ProviderProtocolError,
    ProviderServerError,
    ProviderTimeout,
    RateLimitError,
    StreamInterrupted,
)
from rath.llm import (
    Provider,
    RathLLMChatRequest,
    RathLLMStreamDelta,
    evidence_of,
)
from rath.llm import litellm as adapter
from rath.llm.litellm import RathLiteLLMChatClient
from tests.support import anthropic_replies, chat_replies
from tests.support.asking import HELLO, KEY, WEATHER, NoSleep, ask, exchange
from tests.support.chat_replies import Cut, Gate, Reply, StreamItem, held
from tests.support.chat_server import ChatServer
from tests.support.dialects import ANTHROPIC, OPENAI, Dialect
from tests.support.litellm import ANTHROPIC_MODEL, OPENAI_MODEL, litellm_client, needs_litellm

# The first call of a process imports the library, which takes seconds.
pytestmark = [
    needs_litellm,
    pytest.mark.timeout(90),
    # The library ignores this one itself, with a filter that pytest takes away after each test.
    pytest.mark.filterwarnings("ignore:Accessing the:DeprecationWarning"),
]

N_TRIES = 4


@dataclass(frozen=True)
class Route:
    """One vendor behind LiteLLM."""

    model: str
    dialect: Dialect

    @property
    def streamed(self) -> Reply:
        """The whole answer as a stream."""
        return self.dialect.stream(*self.dialect.begin, *self.dialect.rest)

    def begin(self, *rest: StreamItem) -> Reply:
        """The beginning of a stream, and what follows it."""
        return self.dialect.stream(*self.dialect.begin, *rest)


ROUTES = {"openai": Route(OPENAI_MODEL, OPENAI), "anthropic": Route(ANTHROPIC_MODEL, ANTHROPIC)}

ASKED = ask(model=None)


def ignore(_: RathLLMStreamDelta) -> None:
    pass


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(models=["n", "o"]) as running:
        yield running


@pytest.fixture(params=ROUTES)
def route(request: pytest.FixtureRequest) -> Route:
    return ROUTES[request.param]


OnDelta = Callable[[RathLLMStreamDelta], None] | None


@pytest.fixture(params=[None, ignore], ids=["whole", "streamed"])
def on_delta(request: pytest.FixtureRequest) -> OnDelta:
    found: OnDelta = request.param
    return found


def failed(server: ChatServer, route: Route, on_delta: OnDelta = None) -> ProviderError:
    """The error of a call that is not tried again."""
    client = litellm_client(server, route.model, provider=Provider(retry_max_attempts=1))
    with pytest.raises(ProviderError) as caught:
        exchange(client, ASKED, on_delta)
    return caught.value


# ---------------------------------------------------------------- answers


def test_an_answer_and_its_evidence(server: ChatServer, route: Route, on_delta: OnDelta) -> None:
    server.queue(route.dialect.answer if on_delta is None else route.streamed)
    answered = exchange(litellm_client(server, route.model), ASKED, on_delta)
    evidence = answered.evidence
    assert answered.response.primary_choice.message.content == "whole"
    assert (evidence.provider_kind, evidence.sdk, evidence.status) == ("litellm", "litellm", "done")
    assert evidence.sdk_version is not None
    assert evidence.requested_model == route.model
    assert evidence.credential is not None
    assert evidence.credential.startswith("call ")
    (request,) = server.requests
    assert request.path == f"/v1{route.dialect.path}"
    assert KEY in str(request.headers)


def test_tools_and_sampling_reach_the_vendor(server: ChatServer) -> None:
    server.queue(anthropic_replies.message(anthropic_replies.tool_use("weather", {"city": "Ulm"})))
    request = RathLLMChatRequest(
        messages=HELLO, tools=(WEATHER,), temperature=0.5, max_tokens=9, stop=["x"], seed=7
    )
    answered = exchange(litellm_client(server, ANTHROPIC_MODEL), request)
    calls = answered.response.primary_choice.message.tool_calls
    assert calls is not None
    assert (calls[0].function.name, calls[0].function.arguments_parsed) == (
        "weather",
        {"city": "Ulm"},
    )
    sent = server.requests[0].json()
    assert (sent["max_tokens"], sent["temperature"], sent["stop_sequences"]) == (9, 0.5, ["x"])
    assert sent["tools"][0]["name"] == "weather"
    assert "seed" not in sent


# ---------------------------------------------------------------- statuses


@pytest.mark.parametrize(
    ("status", "kind", "n_requests"),
    [
        (400, InvalidRequestError, 1),
        (401, AuthenticationError, 1),
        (403, AuthenticationError, 1),
        (404, ModelNotFoundError, 1),
        (408, ProviderError, N_TRIES),
        (413, InvalidRequestError, 1),
        (422, InvalidRequestError, 1),
        (429, RateLimitError, N_TRIES),
        (500, ProviderServerError, N_TRIES),
        (503, ProviderServerError, N_TRIES),
        (529, ProviderServerError, N_TRIES),
    ],
)
def test_a_status(
    server: ChatServer,
    route: Route,
    on_delta: OnDelta,
    status: int,
    kind: type[ProviderError],
    n_requests: int,
) -> None:
    server.queue(*[route.dialect.error(status, "because")] * N_TRIES)
    with pytest.raises(kind, match="because") as caught:
        exchange(litellm_client(server, route.model), ASKED, on_delta)
    assert caught.value.status == status
    assert len(server.calls) == n_requests


def test_retry_after_is_obeyed_and_no_one_else_retries(
    server: ChatServer, route: Route, on_delta: OnDelta
) -> None:
    server.queue(route.dialect.error(429, "slow", headers={"retry-after": "7"}), route.streamed
                 if on_delta else route.dialect.answer)  # fmt: skip
    sleep = NoSleep()
    evidence = exchange(litellm_client(server, route.model, sleep=sleep), ASKED, on_delta).evidence
    assert sleep.waits == [7]
    assert [attempt.status for attempt in evidence.attempts] == [429, None]
    assert len(server.requests) == 2


def test_a_refused_model_names_what_is_offered(server: ChatServer, route: Route) -> None:
    server.queue(route.dialect.error(404, "no such model"))
    error = failed(server, route)
    assert isinstance(error, ModelNotFoundError)
    vendor = route.model.partition("/")[0]
    assert error.offered == (f"{vendor}/n", f"{vendor}/o")


# ---------------------------------------------------------------- broken answers


def test_a_lost_connection(server: ChatServer, route: Route, on_delta: OnDelta) -> None:
    # Some routes of LiteLLM open another connection by themselves, once.
    server.queue(chat_replies.dropped(), chat_replies.dropped())
    assert isinstance(failed(server, route, on_delta), ProviderConnectionError)


def test_nobody_listens(route: Route, on_delta: OnDelta) -> None:
    with ChatServer() as gone:
        pass
    assert isinstance(failed(gone, route, on_delta), ProviderConnectionError)


@pytest.mark.parametrize(
    "reply",
    [chat_replies.html(), chat_replies.invalid_json(), chat_replies.empty()],
    ids=["html", "invalid json", "empty"],
)
def test_what_is_no_answer(server: ChatServer, route: Route, reply: Reply) -> None:
    server.queue(reply)
    assert isinstance(failed(server, route), ProviderProtocolError)


@pytest.mark.parametrize("end", [(), (Cut(),), (Cut("reset"),)], ids=["ends", "closed", "reset"])
def test_a_stream_that_breaks_off_is_no_answer(
    server: ChatServer, route: Route, end: tuple[StreamItem, ...]
) -> None:
    server.queue(route.begin(*end))
    error = failed(server, route, ignore)
    assert isinstance(error, StreamInterrupted)
    evidence = evidence_of(error)
    assert evidence is not None
    assert evidence.status == "failed"


def test_a_failure_in_the_middle_of_a_stream_is_tried_again(
    server: ChatServer, route: Route
) -> None:
    server.queue(route.begin(route.dialect.failure), route.streamed)
    answered = exchange(litellm_client(server, route.model), ASKED, ignore)
    assert answered.response.primary_choice.message.content == "whole"
    assert len(server.requests) == 2


def test_an_answer_that_takes_too_long(server: ChatServer, route: Route, on_delta: OnDelta) -> None:
    gate = Gate()
    server.queue(held(route.dialect.answer, gate))
    impatient = Provider(timeout=0.1, retry_max_attempts=1)
    with pytest.raises(ProviderTimeout, match=r"within 0\.1 s"):
        exchange(litellm_client(server, route.model, provider=impatient), ASKED, on_delta)


def test_a_stream_that_falls_silent(server: ChatServer, route: Route) -> None:
    server.queue(route.begin(Gate()))
    impatient = Provider(timeout=0.2, retry_max_attempts=1)
    with pytest.raises(ProviderTimeout):
        exchange(litellm_client(server, route.model, provider=impatient), ASKED, ignore)


# ---------------------------------------------------------------- secrets


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_a_key_that_the_vendor_repeats_is_hidden(
    server: ChatServer, route: Route, on_delta: OnDelta
) -> None:
    server.queue(route.dialect.error(400, f"bad key {KEY}"))
    error = failed(server, route, on_delta)
    assert "bad key ***" in str(error)
    assert KEY not in shown(error)


def test_a_key_that_litellm_found_by_itself_is_hidden(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    provider = Provider(model=OPENAI_MODEL, base_url=server.base_url)
    server.queue(chat_replies.status_error(400, f"bad key {KEY}"))
    with pytest.raises(InvalidRequestError) as caught:
        exchange(RathLiteLLMChatClient(provider, sleep=NoSleep()), ASKED)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in shown(caught.value)
    evidence = evidence_of(caught.value)
    assert evidence is not None
    assert evidence.credential is None


def test_no_key_anywhere_is_reported_before_a_call(server: ChatServer, route: Route) -> None:
    provider = Provider(model=route.model, base_url=server.base_url)
    with pytest.raises(AuthenticationError):
        exchange(RathLiteLLMChatClient(provider, sleep=NoSleep()), ASKED)
    assert server.requests == []


def test_the_documented_errors_are_those_that_a_retry_may_mend() -> None:
    assert [each.__name__ for each in adapter.LITELLM_RETRYABLE] == [
        "RateLimitError",
        "APIConnectionError",
        "Timeout",
        "ServiceUnavailableError",
        "InternalServerError",
    ]
