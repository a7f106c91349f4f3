"""The recorded exchanges: their form is the vendors' own, and they hold no key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, TypeAdapter

from rath.errors import InvalidRequestError
from rath.llm import Provider, RathOpenAIChatClient
from tests.support.asking import KEY, ask
from tests.support.exchanges import PROTOCOLS, SOURCES, Recorded, load, replayed
from tests.support.served_model import MODEL

WHOLE: dict[str, TypeAdapter[Any]] = {
    "openai": TypeAdapter(ChatCompletion),
    "anthropic": TypeAdapter(Message),
}
PIECES: dict[str, TypeAdapter[Any]] = {
    "openai": TypeAdapter(ChatCompletionChunk),
    "anthropic": TypeAdapter(RawMessageStreamEvent),
}
PINGS = ("[DONE]", '{"type": "ping"}')


def answers(source: str, protocol: str) -> list[Recorded]:
    """What was answered to questions."""
    recorded = load(source, protocol)
    return [each for each in recorded if each.status == 200 and "models" not in each.path]


def pieces(answer: str) -> Iterator[dict[str, Any]]:
    for line in answer.split("\n"):
        data = line.removeprefix("data: ")
        if data != line and data not in PINGS:
            yield json.loads(data)


def strangers(value: object) -> list[str]:
    """The fields that the types of the SDK do not know, at any depth."""
    if isinstance(value, list):
        return [name for item in cast("list[object]", value) for name in strangers(item)]
    if not isinstance(value, BaseModel):
        return []
    own = list(value.model_extra or ())
    return own + [name for _, item in value for name in strangers(item)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_answers_have_the_form_of_the_sdk(protocol: str) -> None:
    for each in answers("scripted", protocol):
        if each.content_type == "application/json":
            found = [WHOLE[protocol].validate_json(each.answer, strict=True)]
        else:
            found = [
                PIECES[protocol].validate_python(piece, strict=True)
                for piece in pieces(each.answer)
            ]
        assert [name for value in found for name in strangers(value)] == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("source", SOURCES)
def test_both_ways_of_asking_were_recorded(source: str, protocol: str) -> None:
    kinds = {each.content_type for each in answers(source, protocol)}
    assert kinds == {"application/json", "text/event-stream"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("source", SOURCES)
def test_no_key_was_recorded(source: str, protocol: str) -> None:
    for each in load(source, protocol):
        assert KEY not in f"{each}"
        assert "authorization" not in f"{each}".casefold()


def test_what_was_not_recorded_is_refused() -> None:
    with replayed("scripted", "openai") as server:
        client = RathOpenAIChatClient(Provider(base_url=server.base_url, api_key=KEY, model=MODEL))
        with pytest.raises(InvalidRequestError, match="no such request was recorded"):
            client.complete(ask(model=MODEL))
