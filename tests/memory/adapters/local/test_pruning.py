"""Old transcripts are removed from the stores of a home."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from rath import memory
from rath._core.retention import in_trash
from rath.memory import (
    MemoryCommitResult,
    MemoryFindResult,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpWrite,
    MemoryStore,
    MemoryStoreSpec,
)
from rath.memory.adapters.local.forgetting import prunable_transcripts, prune_transcripts
from rath.memory.adapters.local.index import NoteIndex
from rath.memory.adapters.local.layout import INDEX_NAME
from rath.memory.persistence import PersistentMemoryRegistry, local_memory_root

WEEK = timedelta(days=7)
AT_ONCE = timedelta()


@pytest.fixture
def root() -> Path:
    """A store that is kept in the home, not open."""
    return PersistentMemoryRegistry().ensure_local(uuid4())


def opened(root: Path) -> MemoryStore:
    return memory.get("local").open(MemoryStoreSpec(options={"path": str(root)}))


def close(store: MemoryStore) -> None:
    store.backend.close(store)


def committed(root: Path, said: str, *, age: timedelta = 2 * WEEK, session: str = "s") -> Path:
    """Commit a transcript, let it be that old, and return its directory."""
    store = opened(root)
    done = store.dispatch(MemoryOpCommit(session, ({"role": "user", "content": said},)))
    assert isinstance(done, MemoryCommitResult)
    assert done.archived_uri is not None
    close(store)
    directory = root / done.archived_uri.removeprefix("memory://")
    stamp = (datetime.now(UTC) - age).strftime("%Y%m%dT%H%M%S%f")
    aged = directory.rename(directory.parent / stamp)
    found(root, "anything")  # which lets the index see the new name
    return aged


def found(root: Path, words: str) -> list[str]:
    store = opened(root)
    result = store.dispatch(MemoryOpFind(words))
    close(store)
    assert isinstance(result, MemoryFindResult)
    return [hit.uri for hit in result.hits]


def indexed(root: Path) -> list[str]:
    """The directories of the transcripts that the index knows."""
    index = NoteIndex(root / INDEX_NAME)
    rows = index.rows("SELECT directory FROM files WHERE kind = 'transcript'")
    index.close()
    return [str(directory) for (directory,) in rows]


def test_transcripts_go_by_the_time_of_their_names(root: Path) -> None:
    old, young = committed(root, "heron"), committed(root, "walrus", age=AT_ONCE)
    assert prunable_transcripts(older_than=WEEK) == [old]
    assert old.is_dir()
    assert prune_transcripts(older_than=WEEK) == [old]
    assert (old.exists(), young.exists()) == (False, True)
    assert in_trash(local_memory_root()) == []


def test_index_follows_at_once(root: Path) -> None:
    committed(root, "heron")
    young = committed(root, "walrus", age=AT_ONCE)
    assert len(indexed(root)) == 2
    prune_transcripts(older_than=WEEK)
    assert indexed(root) == [young.relative_to(root).as_posix()]
    assert found(root, "heron") == []
    assert len(found(root, "walrus")) == 1


def test_notes_stay(root: Path) -> None:
    committed(root, "heron")
    store = opened(root)
    store.dispatch(MemoryOpWrite("memory://user/memories/bird", "heron"))
    close(store)
    prune_transcripts(older_than=AT_ONCE)
    assert found(root, "heron") == ["memory://user/memories/bird"]


@pytest.mark.parametrize(("state", "is_kept"), [("pending", True), ("done", False)])
def test_what_a_model_is_still_to_read_is_preserved(root: Path, state: str, is_kept: bool) -> None:
    old = committed(root, "heron")
    (old / "extraction.json").write_text(f'{{"state": "{state}", "attempts": 1}}')
    wanted = [] if is_kept else [old]
    assert prunable_transcripts(older_than=WEEK) == wanted
    assert prune_transcripts(older_than=WEEK) == wanted
    assert old.exists() is is_kept


def test_directories_that_become_empty_go_too(root: Path) -> None:
    committed(root, "heron", session="gone")
    young = committed(root, "walrus", session="stays", age=AT_ONCE)
    prune_transcripts(older_than=WEEK)
    assert sorted((root / "session").iterdir()) == [young.parent.parent]


def test_transcripts_of_an_open_store_are_preserved(root: Path) -> None:
    old = committed(root, "heron")
    store = opened(root)
    assert prunable_transcripts(older_than=WEEK) == prune_transcripts(older_than=WEEK) == []
    close(store)
    assert prune_transcripts(older_than=WEEK) == [old]


def test_store_without_an_index_gets_none(root: Path) -> None:
    old = committed(root, "heron")
    (root / INDEX_NAME).unlink()
    assert prune_transcripts(older_than=WEEK) == [old]
    assert not (root / INDEX_NAME).exists()


def test_removal_is_no_use_of_the_store(root: Path) -> None:
    committed(root, "heron")
    use = root.with_suffix(".use")
    before = use.stat().st_mtime_ns
    prune_transcripts(older_than=WEEK)
    assert use.stat().st_mtime_ns == before


@pytest.mark.parametrize("name", ["notes", "20250101", "20259901T000000000000"])
def test_what_bears_no_time_is_left_alone(root: Path, name: str) -> None:
    other = root / "session/s/commits" / name
    other.mkdir(parents=True)
    assert prunable_transcripts(older_than=AT_ONCE) == prune_transcripts(older_than=AT_ONCE) == []
    assert other.is_dir()


def test_nothing_is_reached_through_a_link(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "s/commits/20250101T000000000000").mkdir(parents=True)
    (root / "session").symlink_to(outside)
    other = PersistentMemoryRegistry().ensure_local(uuid4())
    (other / "session/s").mkdir(parents=True)
    (other / "session/s/commits").symlink_to(outside / "s/commits")
    assert prune_transcripts(older_than=AT_ONCE) == []
    assert (outside / "s/commits/20250101T000000000000").is_dir()


def test_what_may_not_be_locked_is_preserved(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    old = committed(root, "heron")
    use = root.with_suffix(".use")
    use.unlink()
    use.symlink_to(use)  # a loop: nobody can open it
    with caplog.at_level(logging.WARNING, "rath.memory"):
        assert prune_transcripts(older_than=WEEK) == []
    assert "are kept" in caplog.text
    assert old.is_dir()


def test_home_without_stores_has_nothing_to_remove() -> None:
    assert prunable_transcripts(older_than=AT_ONCE) == prune_transcripts(older_than=AT_ONCE) == []
