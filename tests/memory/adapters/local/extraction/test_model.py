"""The model of a store: as an object, a provider or a name, and whatever server it is on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rath.errors import MemoryBackendError
from rath.llm import Provider, chat_client_for
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMChatResponse
from rath.testing import ScriptedClient
from tests.memory.adapters.local.extraction.conftest import (
    OOLONG,
    Config,
    answer,
    commit,
    model,
    notes_in,
    opened,
    record_at,
    refused,
)
from tests.support.chat_replies import completion, dropped, html, status_error
from tests.support.chat_server import ChatServer

FOUND = completion(answer(OOLONG), model="served-1")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Directory of the store."""
    return tmp_path.resolve() / "store"


@pytest.fixture
def server() -> Iterator[ChatServer]:
    """A server for chats."""
    with ChatServer() as running:
        yield running


def provider(server: ChatServer, *, api_key: str = "k") -> Provider:
    """A provider on the server that tries once."""
    return Provider(base_url=server.base_url, model="m", api_key=api_key, retry_max_attempts=1)


class Old:
    """A client as 1.3 knew it: one method."""

    def __init__(self, given: object = None) -> None:
        self.given = given
        self.requests: list[RathLLMChatRequest] = []

    def complete(self, request: RathLLMChatRequest) -> Any:
        self.requests.append(request)
        answered = ScriptedClient([answer(OOLONG)]).complete(request)
        return answered if self.given is None else self.given


class Newer(Old):
    """A client with a coroutine."""

    async def complete(self, request: RathLLMChatRequest) -> Any:
        return super().complete(request)


@pytest.mark.parametrize("kind", [Old, Newer])
def test_any_object_that_completes_is_asked(root: Path, kind: type[Old]) -> None:
    chat = kind()
    with opened(root, chat) as store:
        assert commit(store).extracted_count == 1
    [request] = chat.requests
    assert (request.temperature, request.tools) == (0.0, None)


@pytest.mark.parametrize("given", [3, "text", {"choices": []}])
def test_what_is_no_answer_is_a_failure(root: Path, given: object) -> None:
    with opened(root, Old(given)) as store:
        assert refused(store).kind == "extraction_failed"
    assert record_at(root)["attempts"] == 1


def test_what_nobody_foresaw_is_logged(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    odd = RathLLMChatResponse(id="", choices=("text",), created=0, model="")  # type: ignore[arg-type]  # on purpose
    with opened(root, Old(odd)) as store:
        commit(store, wait=False)
    assert "learning from session s" in caplog.text
    assert "AttributeError" in caplog.text


def test_a_provider_is_asked(root: Path, server: ChatServer) -> None:
    server.queue(FOUND)
    with opened(root, provider(server)) as store:
        assert commit(store).extracted_count == 1
    body = server.calls[0].json()
    assert (body["model"], body["temperature"]) == ("m", 0.0)
    assert record_at(root)["model"] == "served-1"


def test_a_client_is_asked(root: Path, server: ChatServer) -> None:
    server.queue(FOUND)
    with opened(root, chat_client_for(provider(server))) as store:
        assert commit(store).extracted_count == 1


def test_a_configured_provider_is_asked(root: Path, server: ChatServer, config: Config) -> None:
    config(base_url=server.base_url, api_key="k", model="configured")
    server.queue(FOUND)
    with opened(root, chat_provider="reader") as store:
        assert commit(store).extracted_count == 1
    assert server.calls[0].json()["model"] == "configured"
    assert '"vlm_provider": "reader"' in (root / "meta.json").read_text()


def test_a_model_that_takes_no_temperature_is_asked_without(root: Path, server: ChatServer) -> None:
    server.queue(status_error(400, "Unsupported value: 'temperature' does not support 0"), FOUND)
    with opened(root, provider(server)) as store:
        assert commit(store).extracted_count == 1
    assert ["temperature" in call.json() for call in server.calls] == [True, False]


@pytest.mark.parametrize(
    ("reply", "attempts"),
    [
        (status_error(400, "the prompt is too long"), 1),
        (html(), 1),
        (dropped(), 0),
        (status_error(503, "overloaded"), 0),
        (status_error(401, "wrong key"), 0),
        (status_error(404, "no such model"), 0),
        (status_error(429, "slow down"), 0),
    ],
    ids=["refused", "no JSON", "cut", "overloaded", "key", "model", "rate"],
)
def test_what_is_not_the_fault_of_the_transcript_is_no_attempt(
    root: Path, server: ChatServer, reply: Any, attempts: int
) -> None:
    server.queue(reply)
    with opened(root, provider(server)) as store:
        assert refused(store).kind == "extraction_failed"
    record = record_at(root)
    assert (record["state"], record["attempts"]) == ("pending", attempts)


def test_a_key_is_in_no_file(root: Path, server: ChatServer) -> None:
    key = "sk-canary-0123456789abcdef"
    server.queue(status_error(400, f"bad request with {key}"))
    with opened(root, provider(server, api_key=key)) as store:
        assert key not in refused(store).message
    assert not any(key.encode() in path.read_bytes() for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"chat_provider": "raeder"}, "no LLM provider named 'raeder'"),
        ({"chat_provider": 3}, "expected the name of an entry"),
        ({"chat": 3}, "an object with complete"),
        ({"chat": Provider(model="m")}, "key"),
        ({"chat": Provider(api_key="k")}, "model"),
        ({"chat": Provider(model="m", provider_kind="nobody")}, "unknown provider_kind 'nobody'"),
        ({"chat": Old(), "extraction_uri": "memory://user/../x"}, "extraction_uri"),
        ({"chat": Old(), "extraction_uri": "memory:/"}, "extraction_uri"),
        ({"chat": Old(), "extraction_uri": "/tmp"}, "extraction_uri"),
        ({"chat": Old(), "extraction_uri": 7}, "extraction_uri"),
        ({"extraction_uri": "memory://nowhere/x"}, "extraction_uri"),
    ],
)
def test_options_that_cannot_work_are_told_at_once(
    root: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(MemoryBackendError, match=said), opened(root, **options):
        pass
    assert not root.exists()


def test_a_configured_provider_without_a_key_is_told_at_once(root: Path, config: Config) -> None:
    config(model="m")
    with (
        pytest.raises(MemoryBackendError, match=r"'reader' .* cannot be used"),
        opened(root, chat_provider="reader"),
    ):
        pass


def test_an_object_goes_before_a_name(root: Path, config: Config) -> None:
    config(model="m", api_key="k", base_url="http://127.0.0.1:1/v1")
    with opened(root, model(), chat_provider="reader") as store:
        assert commit(store).extracted_count == 1
    assert len(notes_in(root)) == 1
