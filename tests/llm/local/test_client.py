"""The client of models in this process, over a test server in the model's place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rath.errors import InvalidRequestError, ProviderError
from rath.llm import Provider, evidence_of
from rath.llm.local.server import LocalEndpoint, RathLocalChatClient
from rath.llm.local.weights import BUNDLED_MODEL
from tests.support import chat_replies as replies
from tests.support.asking import NoSleep, ask, exchange
from tests.support.chat_server import ChatServer


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(lambda _: replies.completion("hi")) as running:
        yield running


class Starter:
    """Stands for the model server; remembers what it was asked to serve."""

    def __init__(self, server: ChatServer) -> None:
        self.served: list[str] = []
        self._base_url = server.base_url

    def __call__(self, model: str) -> LocalEndpoint:
        self.served.append(model)
        return LocalEndpoint(self._base_url, "random-key", model, Path(f"{model}.gguf"), "2026.11")


def local_client(starter: Starter, provider: Provider | None = None) -> RathLocalChatClient:
    return RathLocalChatClient(provider or Provider(), sleep=NoSleep(), serve=starter)


def test_the_server_starts_with_the_first_call(server: ChatServer) -> None:
    starter = Starter(server)
    client = local_client(starter)
    assert starter.served == []
    exchange(client, ask(model=None))
    exchange(client, ask(model=None), on_delta=lambda _: None)
    assert starter.served == [BUNDLED_MODEL]
    assert server.requests[0].headers["authorization"] == "Bearer random-key"


def test_a_file_may_be_named(server: ChatServer) -> None:
    starter = Starter(server)
    exchange(local_client(starter, Provider(model="own.gguf")), ask(model=None))
    assert starter.served == ["own.gguf"]


def test_the_evidence_names_the_runtime(server: ChatServer) -> None:
    evidence = exchange(local_client(Starter(server)), ask(model=None)).evidence
    assert (evidence.provider_kind, evidence.sdk, evidence.sdk_version) == (
        "local",
        "xllamacpp",
        "2026.11",
    )
    assert evidence.endpoint == f"{server.base_url}/chat/completions"
    assert evidence.requested_model == BUNDLED_MODEL
    assert dict(evidence.origins) == {"model": "default", "base_url": "default"}
    assert evidence.credential is None


def test_a_model_that_cannot_be_served_fails_the_call() -> None:
    def refuse(model: str) -> LocalEndpoint:
        raise ProviderError(f"no model file {model!r}")

    client = RathLocalChatClient(Provider(model="no.gguf"), sleep=NoSleep(), serve=refuse)
    with pytest.raises(ProviderError, match=r"no\.gguf") as caught:
        exchange(client, ask(model=None))
    evidence = evidence_of(caught.value)
    assert evidence is not None
    assert len(evidence.attempts) == 1


def test_the_path_of_a_file_is_a_name_of_its_model(server: ChatServer) -> None:
    server.models = ["own"]
    server.queue(replies.status_error(400, "the model takes no tools"))
    client = local_client(Starter(server), Provider(model="models/own.gguf"))
    with pytest.raises(InvalidRequestError, match="came from the call"):
        exchange(client, ask(model=None))
    assert len(server.requests) == 2


def test_it_has_no_endpoint_of_its_own(server: ChatServer) -> None:
    with pytest.raises(ValueError, match="a local model has no base_url"):
        local_client(Starter(server), Provider(base_url="http://127.0.0.1:9/v1"))
