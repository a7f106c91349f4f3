"""The base of our chat clients, for each vendor, over real HTTP."""

from __future__ import annotations

import pytest

from rath.llm import Provider, RathLLMStreamDelta, StreamingChatClient, open_draft
from rath.llm.anthropic import ANTHROPIC_RETRYABLE
from rath.llm.openai import OPENAI_RETRYABLE
from tests.support.asking import KEY, ask, exchange
from tests.support.chat_server import ChatServer
from tests.support.dialects import WHOLE, Dialect


def text_in(deltas: list[RathLLMStreamDelta]) -> str:
    return "".join(delta.content_delta or "" for delta in deltas)


def test_the_documented_methods_answer(server: ChatServer, dialect: Dialect) -> None:
    server.queue(dialect.answer, dialect.stream(*dialect.begin, *dialect.rest))
    client = dialect.client(server)
    assert isinstance(client, StreamingChatClient)
    assert client.complete(ask()).primary_choice.message.content == WHOLE
    assert text_in(list(client.complete_stream(ask()))) == WHOLE


def test_an_endpoint_that_does_not_stream_answers_in_one_piece(
    server: ChatServer, dialect: Dialect
) -> None:
    server.queue(dialect.answer)
    deltas: list[RathLLMStreamDelta] = []
    answered = exchange(dialect.client(server), on_delta=deltas.append)
    assert answered.response.primary_choice.message.content == text_in(deltas) == WHOLE


def test_a_model_is_required_before_anything_is_sent(dialect: Dialect) -> None:
    client = dialect.make(Provider(api_key=KEY, base_url="http://127.0.0.1:9/v1"))
    with pytest.raises(ValueError, match="model is required"):
        client.complete(ask(model=None))
    with pytest.raises(ValueError, match="model is required"):
        open_draft(client, ask(model=None))


@pytest.mark.parametrize("base_url", ["127.0.0.1:9/v1", "ftp://host/v1", "http://"])
def test_a_wrong_base_url_is_refused(dialect: Dialect, base_url: str) -> None:
    with pytest.raises(ValueError, match="base_url must begin with"):
        dialect.make(Provider(api_key=KEY, base_url=base_url))


@pytest.mark.parametrize("errors", [OPENAI_RETRYABLE, ANTHROPIC_RETRYABLE])
def test_the_sdk_names_what_may_be_tried_again(errors: tuple[type[Exception], ...]) -> None:
    assert [error.__name__ for error in errors] == [
        "RateLimitError",
        "APIConnectionError",
        "APITimeoutError",
        "InternalServerError",
    ]
