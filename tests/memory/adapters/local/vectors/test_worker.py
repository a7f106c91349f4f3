"""The embedding model of a store: how it is named, asked, and left alone after a failure."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rath import memory
from rath._async.runtime import runtime
from rath.errors import MemoryBackendError
from rath.llm import EmbeddingProvider
from rath.llm.embedding import RathOpenAIEmbeddingClient
from rath.memory import MemoryStoreSpec
from rath.memory.adapters.local.catalog import Catalog
from rath.memory.adapters.local.embedding import (
    PAUSE_SECONDS,
    Embedding,
    EmbeddingWorker,
    RankingChoices,
    choices_of,
    embedding_of,
)
from rath.memory.adapters.local.index import NoteIndex
from rath.memory.adapters.local.vectors import VectorStore
from rath.memory.op_types import MemoryOpFind, MemoryOpWrite
from rath.memory.results import MemoryFindResult
from tests.support.meanings import Meanings

T = TypeVar("T")


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Kept:
    """A directory with its catalog and its vectors."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.root = root
        self.model = Meanings()
        self.clock = Clock()
        self.catalog = Catalog(root)
        embedding = embedding_of({"embedding": self.model})
        assert embedding is not None
        self.embedding = embedding
        self.vectors = self.of(embedding)

    def of(self, embedding: Embedding, *, patience: float = 10.0) -> EmbeddingWorker:
        """The vectors of another model."""
        return EmbeddingWorker(
            self.root,
            self.catalog,
            embedding,
            choices=RankingChoices("hybrid"),
            patience=patience,
            clock=self.clock,
        )

    def note(self, text: str) -> None:
        """Write a note."""
        (self.root / "user").mkdir(exist_ok=True)
        (self.root / "user" / "a.md").write_text(text)

    def query(self, text: str, vectors: EmbeddingWorker | None = None) -> bytes | None:
        """The vector of a query."""
        return run(lambda: (vectors or self.vectors).aquery(text))


def run(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on the runtime, and return its result."""
    return runtime().run(make, label="a test")


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    """A store without notes."""
    made = Kept(tmp_path / "store")
    yield made
    run(made.vectors.aclose)
    made.catalog.close()


def test_after_a_failure_nothing_is_asked_for_a_while(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    kept.note("tea")
    kept.model.failure = OSError("down")
    with caplog.at_level(logging.WARNING):
        assert kept.query("tea") is None
        kept.model.failure = None
        kept.clock.now += PAUSE_SECONDS - 1
        assert kept.query("tea") is None
        assert len(kept.model.calls) == 1
        kept.clock.now += 2
        assert kept.query("tea") is not None
    assert [each.name for each in caplog.records].count("rath.memory.local") == 1


def test_a_query_that_is_known_needs_no_model(kept: Kept) -> None:
    before = kept.query("tea")
    kept.note("a cat")
    kept.model.failure = OSError("down")
    assert kept.query("cat") is None
    assert kept.query("tea") == before


def test_the_latest_queries_are_preserved(kept: Kept) -> None:
    for number in range(300):
        kept.query(f"tea {number}")
    kept.model.calls.clear()
    kept.query("tea 299")
    kept.query("tea 44")
    assert kept.model.calls == []
    kept.query("tea 43")
    assert kept.model.asked == ["tea 43"]


def test_only_the_beginning_of_a_query_is_embedded(kept: Kept) -> None:
    kept.query("tea " * 1000)
    assert [len(text) for text in kept.model.asked] == [2000]


def test_a_query_without_direction_has_no_vector(kept: Kept) -> None:
    assert kept.query("nothing known") is None


def test_who_waits_too_long_goes_by_words(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    async def never(texts: Sequence[str]) -> list[list[float]]:
        await asyncio.Event().wait()
        return []

    slow = kept.of(Embedding("slow", "0" * 16, never), patience=0.05)
    with caplog.at_level(logging.WARNING):
        assert kept.query("tea", slow) is None
    assert "took more than 0.05 s" in caplog.text
    kept.clock.now += PAUSE_SECONDS + 1
    kept.note("tea")
    run(lambda: slow.achanged(wait=True, timeout=0.05))
    run(slow.aclose)


def test_vectors_that_cannot_be_stored_leave_words(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    kept.note("tea")
    place = kept.root / f"vectors-{kept.embedding.identity}.f32"
    place.mkdir()
    (place / "inside").touch()
    with caplog.at_level(logging.WARNING):
        assert kept.query("tea") is None
        kept.clock.now += PAUSE_SECONDS + 1
        run(lambda: kept.vectors.achanged(wait=True))
    told = [each.message for each in caplog.records if each.name == "rath.memory.local"]
    assert [message.count("cannot be stored") for message in told] == [1, 1]


class Broken(Catalog):
    """A catalog whose index cannot be had."""

    error: Exception = OSError("a broken disk")

    def use(self, act: Callable[[NoteIndex], T]) -> T:
        raise self.error


def test_vectors_that_cannot_be_read_leave_words(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    vector = kept.query("tea")
    assert vector is not None
    kept.catalog.close()
    kept.catalog = Broken(kept.root)
    broken = kept.of(kept.embedding)
    with caplog.at_level(logging.WARNING):
        assert broken.nearest(vector, 5, below=None) is None
    assert "cannot be read: a broken disk" in caplog.text


def test_what_is_written_while_the_background_tidies_up_gets_its_vectors_too(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    compact, first, second = VectorStore.compact, threading.Event(), threading.Event()

    def compact_and_write(shelf: VectorStore, index: NoteIndex) -> None:
        compact(shelf, index)
        if first.is_set():
            second.set()
        else:
            first.set()
            runtime().run(fill, label="a test")

    async def fill() -> None:
        kept.vectors.fill_soon()

    monkeypatch.setattr(VectorStore, "compact", compact_and_write)
    run(fill)
    assert second.wait(50)


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
def test_what_cannot_be_used_is_reported(options: dict[str, Any], told: str) -> None:
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
    assert "uv pip install" in warning
    assert "numpy" in warning


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
def test_a_wrong_choice_is_reported(options: dict[str, Any], told: str) -> None:
    with pytest.raises(MemoryBackendError, match=told):
        choices_of(options, has_embedding=False)
