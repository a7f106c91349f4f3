"""Every way in which a call fails, for each vendor, over real HTTP, whole and streamed."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from rath.errors import (
    AuthenticationError,
    InvalidRequestError,
    ModelNotFoundError,
    ProviderConnectionError,
    ProviderError,
    ProviderProtocolError,
    ProviderServerError,
    ProviderStatusError,
    ProviderTimeout,
    QuotaExceededError,
    RateLimitError,
    StreamInterrupted,
)
from rath.llm import Exchange, Provider, RathLLMStreamDelta, evidence_of
from rath.llm.errors import may_fall_back
from tests.support import chat_replies as replies
from tests.support.asking import KEY, NoSleep, exchange
from tests.support.chat_server import ChatServer
from tests.support.dialects import BEGUN, WHOLE, Dialect
from tests.support.waiting import at_a_deadline

N_TRIES = 4


def ignore(_: RathLLMStreamDelta) -> None:
    pass


OnDelta = Callable[[RathLLMStreamDelta], None] | None


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(models=["n", "o"]) as running:
        yield running


@pytest.fixture(params=[None, ignore], ids=["whole", "streamed"])
def on_delta(request: pytest.FixtureRequest) -> OnDelta:
    found: OnDelta = request.param
    return found


def shown(error: BaseException) -> str:
    """The error as a traceback shows it, with what it came from."""
    return "".join(traceback.format_exception(error))


def text_of(answered: Exchange) -> str | None:
    return answered.response.primary_choice.message.content


# ---------------------------------------------------------------- statuses


@pytest.mark.parametrize(
    ("status", "kind", "n_requests", "words"),
    [
        (400, InvalidRequestError, 1, "because"),
        (401, AuthenticationError, 1, "The key came from the call; check it"),
        (402, QuotaExceededError, 1, "nothing left to spend"),
        (403, AuthenticationError, 1, "The key came from the call; check it"),
        (404, ModelNotFoundError, 1, "'m' came from the call"),
        (408, ProviderStatusError, N_TRIES, "because"),
        (409, InvalidRequestError, N_TRIES, "because"),
        (413, InvalidRequestError, 1, "because"),
        (422, InvalidRequestError, 1, "because"),
        (429, RateLimitError, N_TRIES, "because"),
        (500, ProviderServerError, N_TRIES, "because"),
        (501, ProviderServerError, 1, "because"),
        (529, ProviderServerError, N_TRIES, "because"),
    ],
)
def test_a_status_has_its_class_and_one_owner_of_retries(
    server: ChatServer,
    dialect: Dialect,
    on_delta: OnDelta,
    status: int,
    kind: type[ProviderStatusError],
    n_requests: int,
    words: str,
) -> None:
    server.queue(*[dialect.error(status, f"because of {KEY}")] * n_requests)
    sleep = NoSleep()
    with pytest.raises(ProviderStatusError, match=words) as caught:
        exchange(dialect.client(server, sleep), on_delta=on_delta)
    error = caught.value
    assert (type(error), error.status) == (kind, status)
    assert error.endpoint == f"{server.base_url}{dialect.path}"
    assert str(error).startswith(f"{error.endpoint} answered with status {status}: because of ***")
    assert KEY not in shown(error)
    assert (len(server.calls), len(sleep.waits)) == (n_requests, n_requests - 1)
    assert may_fall_back(error) is (n_requests > 1 or kind is QuotaExceededError)
    evidence = evidence_of(error)
    assert evidence is not None
    assert [attempt.status for attempt in evidence.attempts] == [status] * n_requests


@pytest.mark.parametrize("status", [400, 403])
def test_an_account_without_credit_is_not_a_bad_request(
    server: ChatServer, dialect: Dialect, on_delta: OnDelta, status: int
) -> None:
    server.queue(dialect.error(status, "Your credit balance is too low to access the API."))
    with pytest.raises(QuotaExceededError, match="nothing left to spend") as caught:
        exchange(dialect.client(server), on_delta=on_delta)
    assert (len(server.requests), caught.value.status) == (1, status)
    assert may_fall_back(caught.value)


def test_a_model_that_is_not_offered_is_named_next_to_those_that_are(
    server: ChatServer, dialect: Dialect, on_delta: OnDelta
) -> None:
    server.queue(dialect.error(404, "model: m"))
    with pytest.raises(ModelNotFoundError, match=r"It offers 'n', 'o'") as caught:
        exchange(dialect.client(server), on_delta=on_delta)
    assert (caught.value.model, caught.value.offered) == ("m", ("n", "o"))
    assert [request.method for request in server.requests] == ["POST", "GET"]


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
    ],
    ids=["seconds", "zero", "milliseconds"],
)
def test_the_wait_that_is_asked_for_is_preserved(
    server: ChatServer, dialect: Dialect, headers: dict[str, str], wait: float
) -> None:
    server.queue(dialect.error(429, headers=headers), dialect.answer)
    sleep = NoSleep()
    assert text_of(exchange(dialect.client(server, sleep))) == WHOLE
    assert sleep.waits == [wait]


def test_the_wait_may_end_at_a_date(server: ChatServer, dialect: Dialect) -> None:
    when = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    server.queue(dialect.error(529, headers={"retry-after": when}), dialect.answer)
    sleep = NoSleep()
    exchange(dialect.client(server, sleep))
    assert 50 < sleep.waits[0] <= 60


def test_without_a_wait_that_is_asked_for_each_is_longer(
    server: ChatServer, dialect: Dialect
) -> None:
    server.queue(*[dialect.error(429)] * 3, dialect.answer)
    sleep = NoSleep()
    exchange(dialect.client(server, sleep, Provider(retry_base_seconds=1.0)))
    assert [int(wait) for wait in sleep.waits] in ([1, 2, 4], [1, 2, 5])


def test_a_wait_that_nobody_has_time_for_ends_the_tries(
    server: ChatServer, dialect: Dialect
) -> None:
    server.queue(dialect.error(429, headers={"retry-after": "86400"}))
    with pytest.raises(RateLimitError) as caught:
        exchange(dialect.client(server))
    assert caught.value.retry_after == 86_400
    assert len(server.requests) == 1
    assert may_fall_back(caught.value)


def test_a_page_in_place_of_an_error_is_displayed_shortly(
    server: ChatServer, dialect: Dialect, on_delta: OnDelta
) -> None:
    server.queue(replies.html(f"<html>{KEY} Forbidden" + "x" * 9000, status=403))
    with pytest.raises(AuthenticationError, match="the body begins: '<html>") as caught:
        exchange(dialect.client(server), on_delta=on_delta)
    assert len(str(caught.value)) < 900
    assert KEY not in shown(caught.value)


# ---------------------------------------------------------------- time and connections


def test_silence_before_the_answer_is_a_timeout(
    server: ChatServer, dialect: Dialect, on_delta: OnDelta
) -> None:
    gate = replies.Gate()
    server.queue(*[replies.held(dialect.answer, gate)] * 2)
    client = dialect.client(server, None, Provider(timeout=0.05, retry_max_attempts=2))
    with pytest.raises(ProviderTimeout, match=r"within 0.05 s; Provider\(timeout=") as caught:
        exchange(client, on_delta=on_delta)
    assert f"{server.base_url}{dialect.path}" in str(caught.value)
    evidence = evidence_of(caught.value)
    assert evidence is not None
    assert len(evidence.attempts) == 2
    assert may_fall_back(caught.value)
    assert KEY not in shown(caught.value)


def test_silence_in_the_middle_of_a_stream_keeps_what_came(
    server: ChatServer, dialect: Dialect
) -> None:
    def run_until(deadline: float) -> str:
        server.queue(dialect.stream(*dialect.begin, replies.Gate()))
        client = dialect.client(server, None, Provider(timeout=deadline, retry_max_attempts=1))
        with pytest.raises(ProviderTimeout) as caught:
            exchange(client, on_delta=ignore)
        evidence = evidence_of(caught.value)
        assert evidence is not None
        return evidence.partial_text

    assert at_a_deadline(run_until, bool) == BEGUN


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_connection_that_ends_before_the_answer(
    server: ChatServer, dialect: Dialect, on_delta: OnDelta, how: replies.CutHow
) -> None:
    server.queue(*[replies.dropped(how)] * N_TRIES)
    sleep = NoSleep()
    with pytest.raises(ProviderConnectionError, match="Check that base_url is right") as caught:
        exchange(dialect.client(server, sleep), on_delta=on_delta)
    assert f"the connection to {server.base_url}{dialect.path} failed" in str(caught.value)
    assert (len(server.calls), len(sleep.waits)) == (N_TRIES, N_TRIES - 1)
    assert KEY not in shown(caught.value)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_connection_that_ends_in_the_middle_keeps_what_came(
    server: ChatServer, dialect: Dialect, how: replies.CutHow
) -> None:
    server.queue(*[dialect.stream(*dialect.begin, replies.Cut(how))] * N_TRIES)
    sleep = NoSleep()
    with pytest.raises(StreamInterrupted, match="ended without its end marker") as caught:
        exchange(dialect.client(server, sleep), on_delta=ignore)
    assert caught.value.partial_text == BEGUN
    assert (len(server.calls), len(sleep.waits)) == (N_TRIES, N_TRIES - 1)
    assert may_fall_back(caught.value)


def test_a_stream_that_was_cut_is_asked_for_again(server: ChatServer, dialect: Dialect) -> None:
    server.queue(
        dialect.stream(*dialect.begin, replies.Cut()),
        dialect.stream(*dialect.begin, *dialect.rest),
    )
    answered = exchange(dialect.client(server), on_delta=ignore)
    assert text_of(answered) == WHOLE
    assert [attempt.error is None for attempt in answered.evidence.attempts] == [False, True]


def test_nobody_listens(dialect: Dialect, on_delta: OnDelta) -> None:
    with ChatServer() as server:
        client = dialect.client(server)
    with pytest.raises(ProviderConnectionError, match="the server is up"):
        exchange(client, on_delta=on_delta)


# ---------------------------------------------------------------- what a protocol does not allow


@pytest.mark.parametrize(
    ("broken", "begins"),
    [
        (replies.html("<html>Welcome</html>"), "<html>Welcome"),
        (replies.empty(), "It is empty"),
        (replies.invalid_json('{"id": "x", '), "id"),
        (replies.json_body([1]), r"\[1\]"),
        (replies.json_body({"hello": 1}), "hello"),
    ],
    ids=["html", "empty", "invalid", "array", "object"],
)
def test_what_is_no_answer_is_named_and_not_asked_for_again(
    server: ChatServer, dialect: Dialect, on_delta: OnDelta, broken: replies.Reply, begins: str
) -> None:
    server.queue(broken)
    with pytest.raises(ProviderProtocolError, match=begins) as caught:
        exchange(dialect.client(server), on_delta=on_delta)
    assert f"{server.base_url}{dialect.path}" in str(caught.value)
    assert len(server.calls) == 1
    assert not may_fall_back(caught.value)


def test_an_event_that_is_not_json_is_quoted(server: ChatServer, dialect: Dialect) -> None:
    server.queue(dialect.stream(*dialect.begin, f'{{"oops {KEY}', *dialect.rest))
    with pytest.raises(ProviderProtocolError, match="an event that is not JSON") as caught:
        exchange(dialect.client(server), on_delta=ignore)
    assert "oops ***" in str(caught.value)
    assert len(server.calls) == 1
    assert KEY not in shown(caught.value)


@pytest.mark.parametrize("event", ["[]", "null", '{"type": "content_block_delta", "choices": [7]}'])
def test_json_of_another_form_is_not_called_invalid(
    server: ChatServer, dialect: Dialect, event: str
) -> None:
    server.queue(dialect.stream(*dialect.begin, event, *dialect.rest))
    with pytest.raises(ProviderProtocolError, match="an event of an unexpected form") as caught:
        exchange(dialect.client(server), on_delta=ignore)
    assert "not JSON" not in str(caught.value)
    assert len(server.calls) == 1


def test_an_event_that_is_nested_too_deeply_breaks_the_protocol(
    server: ChatServer, dialect: Dialect
) -> None:
    server.queue(dialect.stream(*dialect.begin, "[" * 100_000, *dialect.rest))
    with pytest.raises(ProviderProtocolError, match="of an unexpected form"):
        exchange(dialect.client(server), on_delta=ignore)


def test_an_answer_that_is_nested_too_deeply_breaks_the_protocol(
    server: ChatServer, dialect: Dialect, on_delta: OnDelta
) -> None:
    # Deep enough for what looks into an answer, and not for what parses it.
    deep: object = {}
    for _ in range(600):
        deep = {"x": deep}
    body = {
        "content": [{"type": "odd", "deep": deep}],
        "choices": [{"message": {"tool_calls": [{"function": {"arguments": deep}}]}}],
    }
    server.queue(replies.json_body(body))
    try:
        exchange(dialect.client(server), on_delta=on_delta)
    except ProviderProtocolError as exc:
        assert "of an unexpected form" in str(exc)  # noqa: PT017  # either of both will do
    assert len(server.calls) == 1


@pytest.mark.parametrize("count", ["1e999", "NaN", "-5", "9" * 400])
def test_counts_that_are_none_are_left_out(
    server: ChatServer, dialect: Dialect, on_delta: OnDelta, count: str
) -> None:
    counts = f'{{"prompt_tokens": {count}, "input_tokens": {count}, "output_tokens": 3}}'
    server.queue(
        replies.raw(
            '{"type": "message", "content": [{"type": "text", "text": "hi"}], "choices": '
            f'[{{"message": {{"content": "hi"}}}}], "usage": {counts}}}',
            content_type="application/json",
        )
    )
    answered = exchange(dialect.client(server), on_delta=on_delta)
    assert text_of(answered) == "hi"
    assert answered.evidence.usage is not None
    assert answered.evidence.usage.prompt_tokens == 0


def test_a_bare_text_as_an_error_is_not_asked_for_again(
    server: ChatServer, dialect: Dialect, on_delta: OnDelta
) -> None:
    server.queue(replies.json_body({"error": f"Unexpected endpoint or method. {KEY}"}))
    with pytest.raises(ProviderProtocolError) as caught:
        exchange(dialect.client(server), on_delta=on_delta)
    assert str(caught.value) == (
        f"{server.base_url}{dialect.path} answered with status 200, but reports 'Unexpected "
        "endpoint or method. ***'; check base_url and provider_kind"
    )
    assert (len(server.calls), caught.value.status) == (1, 200)
    assert not may_fall_back(caught.value)


def test_unknown_events_and_blocks_end_nothing(server: ChatServer, dialect: Dialect) -> None:
    server.queue(dialect.stream(*dialect.begin, *dialect.odd, *dialect.rest))
    assert text_of(exchange(dialect.client(server), on_delta=ignore)) == WHOLE


def test_unknown_blocks_and_reasons_of_a_complete_answer_end_nothing(
    server: ChatServer, dialect: Dialect
) -> None:
    server.queue(dialect.odd_answer)
    answered = exchange(dialect.client(server))
    assert text_of(answered) == WHOLE
    assert answered.response.primary_choice.finish_reason == "stop"
    assert answered.evidence.finish_reason_raw == "evaporated"


def test_a_failure_that_a_stream_reports_has_its_status(
    server: ChatServer, dialect: Dialect
) -> None:
    server.queue(*[dialect.stream(*dialect.begin, dialect.failure)] * N_TRIES)
    sleep = NoSleep()
    with pytest.raises(ProviderServerError, match="status 529: Overloaded") as caught:
        exchange(dialect.client(server, sleep), on_delta=ignore)
    assert (len(server.calls), len(sleep.waits)) == (N_TRIES, N_TRIES - 1)
    evidence = evidence_of(caught.value)
    assert evidence is not None
    assert evidence.partial_text == BEGUN


def test_what_a_stream_reports_may_pass(server: ChatServer, dialect: Dialect) -> None:
    server.queue(
        dialect.stream(*dialect.begin, dialect.failure),
        dialect.stream(*dialect.begin, *dialect.rest),
    )
    assert text_of(exchange(dialect.client(server), on_delta=ignore)) == WHOLE


def test_every_error_is_one_that_callers_can_catch(server: ChatServer, dialect: Dialect) -> None:
    server.queue(dialect.error(418, "short and stout"))
    with pytest.raises(ProviderError, match="status 418: short and stout"):
        exchange(dialect.client(server))
