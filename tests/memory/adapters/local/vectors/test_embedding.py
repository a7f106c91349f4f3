"""Which embedding model the options of a store name."""

from __future__ import annotations

import json
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from rath import memory
from rath._async.runtime import runtime
from rath.errors import MemoryBackendError
from rath.llm import EmbeddingProvider
from rath.llm.embedding import RathOpenAIEmbeddingClient
from rath.memory import MemoryStoreSpec
from rath.memory.adapters.local.embedding import Embedding, RankingChoices, choices_of, embedding_of
from rath.memory.op_types import MemoryOpFind, MemoryOpWrite
from rath.memory.results import MemoryFindResult
from tests.support.meanings import Meanings


def chosen(**options: Any) -> Embedding:
    """The model that some options name."""
    found = embedding_of(options)
    assert found is not None
    return found


def wait_for(vectors: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns."""
    return runtime().run(lambda: vectors, label="a test")


class AsyncMany:
    """An object with a coroutine."""

    model = "mine"

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [[float(len(text))] for text in texts]


class OneByOne:
    """An object for one text at a time."""

    embedding_model = "own-1"

    def embed_one(self, text: str) -> list[float]:
        return [float(len(text))]


@pytest.mark.parametrize(
    ("given", "name"),
    [(Meanings(), "Meanings"), (AsyncMany(), "mine"), (OneByOne(), "own-1")],
    ids=["sync", "async", "one by one"],
)
def test_an_object_of_the_user_embeds(given: object, name: str) -> None:
    embedding = chosen(embedding=given)
    assert embedding.name == name
    assert len(wait_for(embedding.avectors(["tea", "car"]))) == 2


def test_a_name_can_be_given_to_the_model_of_an_object() -> None:
    named, other = chosen(embedding=Meanings(), embedding_model="m"), chosen(embedding=Meanings())
    assert named.name == "m"
    assert named.identity != other.identity


PROVIDER = EmbeddingProvider(model="m", api_key="k", base_url="http://127.0.0.1:1/v1")


def test_the_endpoint_does_not_matter_for_what_a_vector_means() -> None:
    from_provider = chosen(embedding=PROVIDER)
    elsewhere = EmbeddingProvider(model="m", api_key="k", base_url="http://127.0.0.1:2/v1")
    assert from_provider == chosen(embedding=PROVIDER) or from_provider.name == "m"
    assert from_provider.identity == chosen(embedding=elsewhere).identity
    shorter = EmbeddingProvider(model="m", api_key="k", dimensions=8)
    assert from_provider.identity != chosen(embedding=shorter).identity


def test_a_client_is_used_as_it_is() -> None:
    client = RathOpenAIEmbeddingClient(PROVIDER)
    assert chosen(embedding=client).ask == client.aembed


def test_a_name_is_looked_up_in_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"provider_kind": "openai", "model": "e-1", "api_key": "k"}
    (tmp_path / "config.json").write_text(json.dumps({"llm": {"providers": {"mine": entry}}}))
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path))
    assert chosen(embedding_provider="mine").name == "e-1"


def test_no_option_names_no_model() -> None:
    assert embedding_of({"path": "x"}) is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"embedding_provider": "gone"}, "'gone' of a memory store is no entry of llm.providers"),
        ({"embedding_provider": PROVIDER}, "must be the name of an entry"),
        ({"embedding": object()}, "or an object with embed"),
        ({"embedding": "mine"}, "got str"),
        (
            {"embedding": EmbeddingProvider(model="m", provider_kind="other")},
            "the embedding model 'm' of a memory store cannot be used: no embeddings from",
        ),
    ],
    ids=["unknown", "no name", "object", "text", "kind"],
)
def test_what_cannot_be_used_is_said(options: dict[str, Any], told: str) -> None:
    with pytest.raises(MemoryBackendError, match=told):
        embedding_of(options)


@pytest.mark.parametrize("ranking", [None, "hybrid", "vectors"])
def test_without_numpy_words_find_and_one_warning_names_the_extra(
    ranking: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    options = {"path": tmp_path, "embedding": Meanings(), "ranking": ranking}
    with memory.get("local").open(MemoryStoreSpec(options=options)) as store:
        store.dispatch(MemoryOpWrite("memory://user/tea", "The guest drinks green tea", wait=True))
        for _ in range(3):
            found = store.dispatch(MemoryOpFind("green tea"))
            assert isinstance(found, MemoryFindResult)
            assert [hit.uri for hit in found.hits] == ["memory://user/tea"]
    [warning] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "uv sync --extra vectors" in warning


@pytest.mark.parametrize(
    ("options", "has_embedding", "expected"),
    [
        ({}, False, RankingChoices("bm25")),
        ({}, True, RankingChoices("hybrid")),
        ({"ranking": "bm25"}, True, RankingChoices("bm25")),
        ({"ranking": "vectors", "min_similarity": 1}, True, RankingChoices("vectors", 1.0)),
    ],
)
def test_a_ranking_is_chosen(
    options: dict[str, Any], has_embedding: bool, expected: RankingChoices
) -> None:
    assert choices_of(options, has_embedding=has_embedding) == expected


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"ranking": "best"}, "expected one of hybrid, vectors, bm25"),
        ({"ranking": ["bm25"]}, "expected one of"),
        ({"ranking": "hybrid"}, "needs vectors"),
        ({"min_similarity": 2}, "from 0 to 1"),
        ({"min_similarity": True}, "from 0 to 1"),
        ({"min_similarity": "0.5"}, "from 0 to 1"),
        ({"min_similarity": float("nan")}, "from 0 to 1"),
    ],
)
def test_a_wrong_choice_is_said(options: dict[str, Any], told: str) -> None:
    with pytest.raises(MemoryBackendError, match=told):
        choices_of(options, has_embedding=False)
