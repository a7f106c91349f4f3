"""Embeddings over real HTTP: batches, order, retries, evidence, and answers that are wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest

from rath._async.runtime import runtime
from rath.errors import (
    AuthenticationError,
    ModelNotFoundError,
    ProviderConnectionError,
    ProviderError,
    ProviderProtocolError,
    RateLimitError,
)
from rath.llm import CallEvidence, EmbeddingProvider, RathOpenAIEmbeddingClient, evidence_of
from rath.llm.embedding.client import MAX_BYTES, MAX_TEXTS
from tests.support.asking import KEY, NoSleep
from tests.support.chat_replies import Gate, Reply, dropped, held, html, json_body, status_error
from tests.support.chat_server import CapturedRequest, ChatServer
from tests.support.embedding_replies import (
    MODEL,
    embeddings,
    entry,
    in_base64,
    lengths_of,
    listed,
)

N_TRIES = 4


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(models=["n", "o"]) as running:
        yield running


def client_of(
    server: ChatServer, *, sleep: NoSleep | None = None, **fields: Any
) -> RathOpenAIEmbeddingClient:
    """A client for the test server that never really waits between tries."""
    given: dict[str, Any] = {"model": "m", "base_url": server.base_url, "api_key": KEY, **fields}
    provider = EmbeddingProvider(**given)
    return RathOpenAIEmbeddingClient(provider, sleep=sleep or NoSleep())


def embed_with_evidence(
    client: RathOpenAIEmbeddingClient, *texts: str
) -> tuple[tuple[tuple[float, ...], ...], list[CallEvidence]]:
    calls: list[CallEvidence] = []
    vectors = runtime().run(lambda: client.aembed(texts, on_call=calls.append), label="a test")
    return vectors, calls


# ---------------------------------------------------------------- what is asked


def test_what_is_sent(server: ChatServer) -> None:
    server.queue(embeddings([0.5], [1.5]))
    assert client_of(server).embed(["a", "b"]) == ((0.5,), (1.5,))
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/embeddings")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.json() == {"input": ["a", "b"], "model": "m", "encoding_format": "base64"}


def test_dimensions_are_passed_on(server: ChatServer) -> None:
    server.queue(embeddings([0.5, 0.25]))
    client_of(server, dimensions=2).embed(["a"])
    assert server.requests[0].json()["dimensions"] == 2


def test_no_texts_give_no_vectors_without_a_call(server: ChatServer) -> None:
    assert client_of(server).embed([]) == ()
    assert server.requests == []


@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_blank_text_is_refused_before_a_call(server: ChatServer, blank: str) -> None:
    with pytest.raises(ValueError, match=r"texts\[1\] is blank"):
        client_of(server).embed(["a", blank])
    assert server.requests == []


@pytest.mark.parametrize(("texts", "words"), [("ab", "not one text"), ([b"a"], r"texts\[0\]")])
def test_what_is_no_list_of_texts_is_refused(server: ChatServer, texts: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        client_of(server).embed(texts)


def test_half_a_character_is_replaced(server: ChatServer) -> None:
    server.queue(embeddings([0.5]))
    client_of(server).embed(["a\ud800b"])
    assert server.requests[0].json()["input"] == ["a?b"]


# ---------------------------------------------------------------- batches


def test_more_texts_than_a_request_holds_are_split_and_keep_their_order() -> None:
    texts = ["x" * (1 + index % 50) for index in range(2 * MAX_TEXTS + 7)]
    with ChatServer(lengths_of) as server:
        vectors = client_of(server).embed(texts)
        sizes = sorted(len(request.json()["input"]) for request in server.requests)
    assert vectors == tuple((float(len(text)),) for text in texts)
    assert sizes == [7, MAX_TEXTS, MAX_TEXTS]


def test_long_texts_are_split_too() -> None:
    texts = ["ä" * (MAX_BYTES // 4), "b" * (MAX_BYTES // 2), "c", "d" * (2 * MAX_BYTES), "e"]
    with ChatServer(lengths_of) as server:
        vectors = client_of(server).embed(texts)
        sizes = sorted(len(request.json()["input"]) for request in server.requests)
    assert vectors == tuple((float(len(text)),) for text in texts)
    assert sizes == [1, 1, 1, 2]


def test_batches_go_side_by_side_in_bounded_number() -> None:
    n_at_once = RathOpenAIEmbeddingClient.at_once
    gate = Gate()

    def answer(request: CapturedRequest) -> Reply:
        return held(lengths_of(request), gate)

    with ChatServer(answer) as server:
        client = client_of(server)
        texts = ["x" * MAX_BYTES] * (n_at_once + 2)
        running = runtime().submit(lambda: client.aembed(texts), label="a test")
        server.wait_for_requests(n_at_once)
        gate.release()
        assert len(running.future.result(50)) == len(texts)
        assert server.max_in_flight == n_at_once


def test_parts_of_different_lengths_cannot_be_compared() -> None:
    with ChatServer() as server:
        server.queue(embeddings([0.5]), embeddings([0.5, 0.5]))
        with pytest.raises(ProviderProtocolError, match="different lengths"):
            client_of(server).embed(["x" * MAX_BYTES] * 2)


# ---------------------------------------------------------------- answers


def test_vectors_come_as_base64_or_as_numbers(server: ChatServer) -> None:
    server.queue(embeddings(in_base64([0.5, -2.0]), [1, 0.25]))
    assert client_of(server).embed(["a", "b"]) == ((0.5, -2.0), (1.0, 0.25))


def test_the_index_decides_the_order(server: ChatServer) -> None:
    server.queue(listed(entry(1, [1.0]), entry(0, [0.0])))
    assert client_of(server).embed(["a", "b"]) == ((0.0,), (1.0,))


def test_without_an_index_the_order_is_that_of_the_answer(server: ChatServer) -> None:
    server.queue(listed({"embedding": [1.0]}, {"embedding": [0.0]}))
    assert client_of(server).embed(["a", "b"]) == ((1.0,), (0.0,))


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (embeddings([0.5]), "there are 1"),
        (embeddings([0.5], [0.5], [0.5]), "there are 3"),
        (listed(entry(0, [0.5]), entry(0, [0.5])), "indices"),
        (listed(entry(0, [0.5]), entry(2, [0.5])), "indices"),
        (listed(entry(0, [0.5]), {"embedding": [0.5]}), "indices"),
        (listed(1, 2), "no JSON object"),
        (embeddings([0.5], [0.5, 0.5]), "differ in length"),
        (embeddings([0.5], []), "empty"),
        (embeddings([0.5], "!"), "no base64"),
        (embeddings([0.5], "AAAA"), "no base64"),
        (embeddings([0.5], [True]), "neither"),
        (embeddings([0.5], ["0.5"]), "neither"),
        (embeddings([0.5], None), "neither"),
        (embeddings([0.5], [float("nan")]), "not finite"),
        (embeddings([0.5], in_base64([float("inf")])), "not finite"),
        (json_body({"object": "list"}), "there are 0"),
        (json_body([]), "no JSON object"),
        (html(), "It begins"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_answer_that_does_not_fit_is_refused_at_once(
    server: ChatServer, reply: Reply, words: str
) -> None:
    server.queue(reply)
    with pytest.raises(ProviderProtocolError, match=words):
        client_of(server).embed(["a", "b"])
    assert len(server.requests) == 1


def test_other_dimensions_than_asked_for_are_refused(server: ChatServer) -> None:
    server.queue(embeddings([0.5, 0.5, 0.5]))
    with pytest.raises(ProviderProtocolError, match="they have 3 dimensions, and 2 were"):
        client_of(server, dimensions=2).embed(["a"])


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("reply", "kind", "n_requests"),
    [
        (status_error(401, "no"), AuthenticationError, 1),
        (status_error(429, "slow"), RateLimitError, N_TRIES),
        (dropped(), ProviderConnectionError, N_TRIES),
    ],
    ids=["refused", "slow", "lost"],
)
def test_only_what_another_try_may_mend_is_tried_again(
    server: ChatServer, reply: Reply, kind: type[ProviderError], n_requests: int
) -> None:
    server.queue(*[reply] * N_TRIES)
    with pytest.raises(kind) as caught:
        client_of(server).embed(["a"])
    evidence = evidence_of(caught.value)
    assert evidence is not None
    assert evidence.status == "failed"
    assert [len(evidence.attempts), len(server.requests)] == [n_requests, n_requests]


def test_a_refused_model_names_what_is_offered(server: ChatServer) -> None:
    server.queue(status_error(404, "no such model", code="model_not_found"))
    with pytest.raises(ModelNotFoundError, match="'m' came from the call") as caught:
        client_of(server).embed(["a"])
    assert caught.value.offered == ("n", "o")


def test_a_failed_part_fails_the_complete_with_its_own_error() -> None:
    def answer(request: CapturedRequest) -> Reply:
        is_long = len(request.json()["input"][0]) > 1
        return lengths_of(request) if is_long else status_error(401, f"no {KEY}")

    with ChatServer(answer) as server:
        calls: list[CallEvidence] = []
        texts = ("x" * MAX_BYTES, "y")
        client = client_of(server)
        with pytest.raises(AuthenticationError) as caught:
            runtime().run(lambda: client.aembed(texts, on_call=calls.append), label="a test")
    assert KEY not in str(caught.value)
    assert "failed" in {call.status for call in calls}
    assert len(calls) == 2


def test_cancelling_ends_every_request() -> None:
    gates = [Gate(), Gate()]
    with ChatServer() as server:
        server.queue(*(held(embeddings([0.5]), gate) for gate in gates))
        client, calls = client_of(server), list[CallEvidence]()
        texts = ["x" * MAX_BYTES] * 2
        running = runtime().submit(
            lambda: client.aembed(texts, on_call=calls.append), label="a test"
        )
        assert all(gate.reached.wait(50) for gate in gates)
        runtime().cancel(running)
        assert all(gate.abandoned.wait(50) for gate in gates)
        with pytest.raises(asyncio.CancelledError):
            running.future.result(50)
    assert [call.status for call in calls] == ["cancelled", "cancelled"]


# ---------------------------------------------------------------- evidence


def test_what_is_known_of_a_request(server: ChatServer) -> None:
    server.queue(embeddings([0.5], tokens=3))
    _, (evidence,) = embed_with_evidence(client_of(server, dimensions=1), "a")
    assert (evidence.status, evidence.provider_kind, evidence.sdk) == ("done", "openai", None)
    assert evidence.adapter.endswith(":RathOpenAIEmbeddingClient")
    assert evidence.endpoint == f"{server.base_url}/embeddings"
    assert (evidence.requested_model, evidence.served_model) == ("m", MODEL)
    assert evidence.parameters == {"model": "m", "dimensions": 1, "encoding_format": "base64"}
    assert evidence.request_digest == sha256(server.requests[0].body).hexdigest()
    assert evidence.usage is not None
    assert (evidence.usage.prompt_tokens, evidence.usage.total_tokens) == (3, 3)
    assert dict(evidence.origins) == {"model": "call", "base_url": "call", "api_key": "call"}
    assert evidence.credential is not None
    assert KEY not in repr(evidence)


def test_usage_that_nobody_counted_is_none(server: ChatServer) -> None:
    server.queue(embeddings([0.5]))
    _, (evidence,) = embed_with_evidence(client_of(server), "a")
    assert evidence.usage is None


def test_each_part_is_a_call_of_its_own() -> None:
    with ChatServer(lengths_of) as server:
        _, calls = embed_with_evidence(client_of(server), *["x" * MAX_BYTES] * 3)
    assert [call.status for call in calls] == ["done"] * 3


def test_azure_has_a_path_for_each_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    provider = EmbeddingProvider(model="my model", base_url="https://r.openai.azure.com")
    route = RathOpenAIEmbeddingClient(provider).route()
    assert route.endpoint == ("https://r.openai.azure.com/openai/deployments/my%20model/embeddings")
    assert dict(route.origins)["api_key"] == "env AZURE_OPENAI_API_KEY"
