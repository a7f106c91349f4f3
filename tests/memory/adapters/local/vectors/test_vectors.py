"""The file of vectors and the tables of the index stay in step; parts and sidecars of notes."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rath.memory.adapters.local import vectors
from rath.memory.adapters.local.layout import INDEX_NAME
from rath.memory.adapters.local.matrix import RELATIVE_FLOOR, nearest
from tests.memory.adapters.local.vectors.conftest import IDENTITY, Shelved, vector_of

Event = Callable[[Shelved, dict[str, str]], Shelved]

SLOW = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None
)


def near(
    shelved: Shelved, query: str, *, floor: float = 0.0, below: str | None = None
) -> list[str]:
    """Names of the notes that are near to a query, the closest first."""
    found = nearest(
        shelved.catalog, shelved.shelf, vector_of(query), 1000, floor=floor, below=below
    )
    return [each.name.removesuffix(".md") for each in found["note"]]


def expected(texts: dict[str, str], query: str) -> list[str]:
    """The same by brute force: by falling cosine, down to a part of the best."""
    vector = np.frombuffer(vector_of(query), np.float32)
    cosines = {
        name: float(np.frombuffer(vector_of(text), np.float32) @ vector)
        for name, text in texts.items()
    }
    best = max(cosines.values(), default=0.0)
    kept = [
        name for name, cosine in cosines.items() if cosine > 0 and cosine >= RELATIVE_FLOOR * best
    ]
    return sorted(kept, key=lambda name: (-cosines[name], name))


names = st.sampled_from([f"n{number:02}" for number in range(40)])
changes = st.dictionaries(names, st.none() | st.text(min_size=1), max_size=8)


def nothing(shelved: Shelved, _: dict[str, str]) -> Shelved:
    """Let nothing happen."""
    return shelved


def reopen(shelved: Shelved, _: dict[str, str]) -> Shelved:
    """Close the store and open it again."""
    return shelved.reopened()


def lose_index(shelved: Shelved, texts: dict[str, str]) -> Shelved:
    """Delete the index, and build it again."""
    shelved.close()
    for path in shelved.root.glob(f"{INDEX_NAME}*"):
        path.unlink()
    again = Shelved(shelved.root)
    for name in texts:
        again.note(name)
    return again


def lose_file(shelved: Shelved, _: dict[str, str]) -> Shelved:
    """Delete the file of vectors."""
    shelved.shelf.path.unlink(missing_ok=True)
    return shelved


def compact(shelved: Shelved, _: dict[str, str]) -> Shelved:
    """Make the file of vectors anew where that is due."""
    shelved.catalog.use(shelved.shelf.compact)
    return shelved


def erase(shelved: Shelved, _: dict[str, str]) -> Shelved:
    """Erase what no note has."""
    shelved.catalog.use(lambda index: vectors.erase_unused(index, shelved.root))
    return shelved


def cut_off(shelved: Shelved, _: dict[str, str]) -> Shelved:
    """Leave what a writer leaves that does not come to tell the index."""
    if shelved.shelf.path.exists():
        with shelved.shelf.path.open("ab") as file:
            file.write(b"\x01" * 37)
    return shelved


events = st.sampled_from([nothing, reopen, lose_index, lose_file, compact, erase, cut_off])


@given(steps=st.lists(st.tuples(changes, events), max_size=8), query=st.text(min_size=1))
@SLOW
def test_what_is_near_is_what_brute_force_finds(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[dict[str, str | None], Event]],
    query: str,
) -> None:
    shelved = Shelved(tmp_path_factory.mktemp("store"))
    texts: dict[str, str] = {}
    for changed, event in steps:
        change(shelved, texts, changed)
        shelved = event(shelved, texts)
    fill(shelved, texts)
    assert near(shelved, query) == expected(texts, query)
    shelved.close()


def change(shelved: Shelved, texts: dict[str, str], changed: dict[str, str | None]) -> None:
    """Write and remove notes, and give what was written its vectors."""
    for name, text in changed.items():
        if text is None:
            shelved.remove(name)
            texts.pop(name, None)
        else:
            shelved.note(name)
            texts[name] = text
    fill(shelved, texts)


def fill(shelved: Shelved, texts: dict[str, str]) -> None:
    """Give all documents that wait the vectors of their texts."""
    ids = {name: number for number, name in all_names(shelved)}
    waiting = shelved.waiting()
    documents = {ids[name]: [text] for name, text in texts.items() if ids[name] in waiting}
    if documents:
        assert shelved.add(documents)
    assert not shelved.waiting()


def all_names(shelved: Shelved) -> list[tuple[int, str]]:
    """Number and name of each document in the index."""
    rows = shelved.catalog.use(lambda index: index.rows("SELECT id, name FROM files"))
    return [(int(str(number)), str(name).removesuffix(".md")) for number, name in rows]


def test_equal_texts_have_one_vector(shelved: Shelved) -> None:
    first, second = shelved.note("a"), shelved.note("b")
    shelved.add({first: ["tea"], second: ["tea"]})
    view = shelved.catalog.use(shelved.shelf.view)
    assert view is not None
    assert view.model.n_rows == 1
    assert near(shelved, "tea") == ["a", "b"]


def test_a_document_is_as_near_as_its_nearest_text(shelved: Shelved) -> None:
    shelved.add({shelved.note("a"): ["milk", "tea"]})
    found = nearest(shelved.catalog, shelved.shelf, vector_of("tea"), 5, floor=0.0)
    [only] = found["note"]
    assert only.part == 1
    assert only.score == pytest.approx(1.0, abs=1e-5)


def test_what_is_hidden_is_not_near(shelved: Shelved) -> None:
    shelved.add({shelved.note("gone"): ["tea"], shelved.note("stays"): ["tea"]})
    found = nearest(
        shelved.catalog, shelved.shelf, vector_of("tea"), 5, floor=0.5, hidden={("user", "gone.md")}
    )
    assert [each.name for each in found["note"]] == ["stays.md"]


@pytest.mark.parametrize("n_notes", [3, 40])
def test_a_search_below_a_directory_stays_there(shelved: Shelved, n_notes: int) -> None:
    ids = [shelved.note(f"{'in' if number % 2 else 'out'}/{number}") for number in range(n_notes)]
    shelved.add({id: ["tea"] for id in ids})
    inside = sorted(str(number) for number in range(n_notes) if number % 2)
    assert sorted(near(shelved, "tea", below="user/in")) == inside
    assert near(shelved, "tea", below="user/in/1") == ["1"]
    assert near(shelved, "tea", below="user/i") == []


def test_vectors_of_another_length_replace_the_old_ones(shelved: Shelved) -> None:
    first = shelved.note("a")
    shelved.add({first: ["tea"]})
    second = shelved.note("b")
    shelved.add({second: ["milk"]}, dimension=6)
    assert shelved.shelf.dimension == 6
    assert shelved.waiting() == {first}
    assert shelved.known("tea", "milk") == {"milk"}


def test_a_removed_document_is_not_placed_late(shelved: Shelved) -> None:
    number = shelved.note("a")
    shelved.remove("a")
    shelved.add({number: ["tea"]})
    assert near(shelved, "tea") == []


def test_a_text_without_a_vector_is_not_asked_for_again(shelved: Shelved) -> None:
    number = shelved.note("a")
    model = shelved.catalog.use(shelved.shelf.model)
    batch = vectors.VectorBatch(model, {number: [b"0" * 12]}, {b"0" * 12: None}, number)
    assert shelved.catalog.use(lambda index: shelved.shelf.add(index, batch))
    assert shelved.waiting() == set()
    assert shelved.catalog.use(lambda index: shelved.shelf.known(index, [b"0" * 12]))


def test_erased_vectors_are_not_in_the_file(shelved: Shelved) -> None:
    shelved.add({shelved.note("a"): ["tea"], shelved.note("b"): ["milk"]})
    shelved.remove("a")
    assert vector_of("tea") in shelved.shelf.path.read_bytes()
    shelved.catalog.use(lambda index: vectors.erase_unused(index, shelved.root))
    data = shelved.shelf.path.read_bytes()
    assert vector_of("tea") not in data
    assert vector_of("milk") in data
    assert shelved.known("tea", "milk") == {"milk"}


def test_erasing_reaches_models_that_nobody_uses_now(shelved: Shelved) -> None:
    unknown = shelved.root / "vectors-fedcba9876543210.f32"
    unfinished = shelved.root / "vectors-fedcba9876543210.f32.new"
    unknown.write_bytes(b"whose")
    unfinished.write_bytes(b"whose")
    shelved.catalog.use(lambda index: vectors.erase_unused(index, shelved.root))
    assert not unknown.exists()
    assert not unfinished.exists()


def test_what_was_being_erased_when_the_process_ended_is_made_again(shelved: Shelved) -> None:
    shelved.add({shelved.note("a"): ["tea"]})
    size = shelved.shelf.path.stat().st_size
    with shelved.shelf.path.open("r+b") as file:
        file.seek(64)
        file.write(bytes(size - 64))
    assert shelved.known("tea") == set()


def test_a_file_that_is_mostly_unused_is_made_anew(shelved: Shelved) -> None:
    shelved.add({shelved.note(f"n{number}"): [f"text {number}"] for number in range(30)})
    before = shelved.shelf.path.stat().st_size
    for number in range(25):
        shelved.remove(f"n{number}")
    other = vectors.VectorStore(shelved.root, IDENTITY)
    assert shelved.catalog.use(other.view) is not None
    assert shelved.catalog.use(shelved.shelf.compact)
    assert shelved.shelf.path.stat().st_size <= before
    assert near(shelved, "text 27")[0] == "n27"
    # Another process that had the old file open reads the new one.
    view = shelved.catalog.use(other.view)
    assert view is not None
    assert view.model.n_rows == 5
    other.close()


def test_a_file_in_use_is_left_as_it_is(shelved: Shelved) -> None:
    shelved.add({shelved.note(f"n{number}"): [f"text {number}"] for number in range(30)})
    assert not shelved.catalog.use(shelved.shelf.compact)


def test_a_store_that_cannot_be_written_has_its_vectors_in_memory(tmp_path: Path) -> None:
    first = Shelved(tmp_path / "store")
    first.add({first.note("a"): ["tea"]})
    first.close()
    # An index that is a directory cannot be used: one in memory takes its place.
    for path in first.root.glob(f"{INDEX_NAME}*"):
        path.unlink()
    (first.root / INDEX_NAME).mkdir()
    second = Shelved(tmp_path / "store")
    number = second.note("a")
    assert second.known("tea") == {"tea"}
    second.add({number: ["tea"], second.note("b"): ["milk"]})
    assert set(near(second, "milk", floor=0.9)) == {"b"}
    on_disk = second.shelf.path.read_bytes()
    assert vector_of("tea") in on_disk
    assert vector_of("milk") not in on_disk
    second.close()


def test_reset_forgets_all(shelved: Shelved) -> None:
    number = shelved.note("a")
    shelved.add({number: ["tea"]})
    shelved.catalog.use(shelved.shelf.reset)
    assert shelved.waiting() == {number}
    assert shelved.catalog.use(shelved.shelf.view) is None
    assert not os.path.exists(shelved.shelf.path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is."""
    return tmp_path / "vectors-0.f32"


@pytest.fixture
def file(path: Path) -> Iterator[vectors.RecordFile]:
    """An empty file for vectors of two numbers."""
    made = vectors.RecordFile.create(path, 2)
    yield made
    made.close()


def record(number: int) -> tuple[bytes, bytes]:
    """A digest and a vector."""
    return number.to_bytes(12, "big"), struct.pack("=2f", number, 1)


@given(counts=st.lists(st.integers(1, 300), min_size=1, max_size=5), lost=st.integers(1, 24))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_complete_records_are_read_again(path: Path, counts: list[int], lost: int) -> None:
    made = vectors.RecordFile.create(path, 2)
    n_rows = 0
    for count in counts:
        made.write(n_rows, [record(n_rows + each + 1) for each in range(count)])
        n_rows += count
    expected = [(slot, record(slot + 1)[0]) for slot in range(n_rows)]
    assert list(made.iter_records()) == expected
    # Then the last record is torn.
    os.ftruncate(made.fd, 64 + n_rows * 24 - lost)
    assert list(made.iter_records()) == expected[:-1]
    made.close()


def test_a_file_is_opened_again_by_others(path: Path, file: vectors.RecordFile) -> None:
    file.write(0, [record(7)])
    other = vectors.RecordFile.open(path)
    assert other is not None
    assert (other.token, other.dimension) == (file.token, 2)
    assert other.read(0) == record(7)[1]
    assert other.holds(0, record(7)[0])
    assert other.stands_at(path)
    other.close()


def test_a_flipped_bit_is_noticed(file: vectors.RecordFile) -> None:
    file.write(0, [record(1), record(2)])
    os.pwrite(file.fd, b"\xff", 64 + 20)
    assert [slot for slot, _ in file.iter_records()] == [1]


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"rathvec1" + bytes(56)])
def test_another_file_is_not_opened(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert vectors.RecordFile.open(path) is None


def test_a_missing_file_and_a_directory_are_not_opened(tmp_path: Path) -> None:
    assert vectors.RecordFile.open(tmp_path / "none") is None
    assert vectors.RecordFile.open(tmp_path) is None


def test_a_file_without_a_place_is_seen_by_nobody(tmp_path: Path) -> None:
    unseen = vectors.RecordFile.create(None, 2)
    unseen.write(0, [record(1)])
    assert unseen.read(0) == record(1)[1]
    assert not unseen.stands_at(tmp_path / "none")
    unseen.close()


def test_a_file_that_cannot_be_put_in_its_place_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="taken"):
        vectors.RecordFile.create(tmp_path / "taken", 2)
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]


texts = st.lists(st.text(max_size=3000), max_size=6)


@given(texts)
def test_parts_are_few_short_and_never_blank(given_texts: list[str]) -> None:
    parts = vectors.parts_of(given_texts)
    assert len(parts) <= vectors.MAX_PARTS
    assert all(part.strip() and len(part) <= vectors.PART_CHARS for part in parts)


@given(texts)
def test_parts_hold_the_beginning_in_order(given_texts: list[str]) -> None:
    whole = "".join("".join(given_texts).split())
    joined = "".join("".join(vectors.parts_of(given_texts)).split())
    assert whole.startswith(joined)
    assert len(joined) == len(whole) or len(joined) > vectors.MAX_PARTS * vectors.PART_CHARS // 4


def test_what_was_reported_in_a_row_stands_together() -> None:
    assert vectors.parts_of(["Tea?", "Yes.", "x" * 999]) == ["Tea?\nYes.", "x" * 999]


def test_a_long_text_is_cut_between_words() -> None:
    parts = vectors.parts_of([" ".join(["word"] * 500)])
    assert len(parts) == 3
    assert set(" ".join(parts).split()) == {"word"}


def test_a_lone_surrogate_has_a_digest() -> None:
    [part] = vectors.parts_of(["tea \ud800"])
    assert vectors.digest_of(part) == vectors.digest_of("tea \ufffd")


def lay(folder: Path, content: str, *, is_older: bool = False) -> Path:
    """Write a note with a sidecar beside it, and return the note."""
    note, sidecar = folder / "tea.v2.md", folder / "tea.v2.vec"
    note.write_text("tea")
    sidecar.write_text(content)
    os.utime(note, ns=(10**18, 10**18))
    when = 10**18 + (-1 if is_older else 0)
    os.utime(sidecar, ns=(when, when))
    return note


def test_a_vector_of_the_model_that_is_no_older_is_taken(tmp_path: Path) -> None:
    note = lay(tmp_path, json.dumps({"model": "m", "vector": [1, 2.5]}))
    assert vectors.sidecar_vector(note, "m") == [1.0, 2.5]
    assert vectors.sidecar_vector(note, "other") is None


def test_one_that_is_older_than_the_note_is_not(tmp_path: Path) -> None:
    note = lay(tmp_path, json.dumps({"model": "m", "vector": [1]}), is_older=True)
    assert vectors.sidecar_vector(note, "m") is None


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"model": "m"}',
        '{"model": "m", "vector": []}',
        '{"model": "m", "vector": ["1"]}',
        '{"model": "m", "vector": [true]}',
        '{"model": "m", "vector": [1' + "0" * 400 + "]}",
        '{"model": "m", "vector": [1' + ", 1" * 600_000 + "]}",
    ],
    ids=["torn", "list", "none", "empty", "text", "bool", "too large a number", "too long"],
)
def test_what_is_no_sidecar_is_left(tmp_path: Path, content: str) -> None:
    assert vectors.sidecar_vector(lay(tmp_path, content), "m") is None
