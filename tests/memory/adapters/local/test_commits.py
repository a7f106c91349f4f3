"""Archiving transcripts in a local store."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from rath import memory
from tests.memory.adapters.local.conftest import Find
from tests.support.waiting import PATIENCE

SAID = ({"role": "user", "content": "hi ü"}, {"role": "assistant", "content": "hello"})


@dataclass
class Message:
    """A message as an object."""

    role: str
    content: str
    parts: None = None
    extra: str = "left out"


def commit(store: memory.MemoryStore, session: str, *messages: object) -> memory.MemoryCommitResult:
    """Commit and return the result."""
    result = store.dispatch(memory.MemoryOpCommit(session, messages))
    assert isinstance(result, memory.MemoryCommitResult)
    return result


def archived(root: Path, result: memory.MemoryCommitResult) -> object:
    """The messages in an archive."""
    assert result.archived_uri is not None
    place = result.archived_uri.removeprefix("memory://")
    return json.loads((root / place / "messages.json").read_text("utf-8"))


def test_messages_are_archived_under_the_session_and_the_time(
    store: memory.MemoryStore, root: Path
) -> None:
    result = commit(store, "s-1", *SAID)
    pattern = r"memory://session/s-1/commits/\d{8}T\d{12}"
    assert re.fullmatch(pattern, result.archived_uri or "")
    assert archived(root, result) == list(SAID)


def test_an_archive_is_read_by_its_address(store: memory.MemoryStore, find: Find) -> None:
    result = commit(store, "s-1", *SAID)
    assert result.archived_uri is not None
    found = store.dispatch(memory.MemoryOpRead(result.archived_uri))
    assert isinstance(found, memory.MemoryReadResult)
    assert (found.uri, json.loads(found.data)) == (result.archived_uri, list(SAID))
    above = store.dispatch(memory.MemoryOpRead(result.archived_uri.rpartition("/")[0]))
    assert isinstance(above, memory.MemoryExecutionFailure)


def test_objects_become_role_content_and_parts(store: memory.MemoryStore, root: Path) -> None:
    result = commit(store, "s", Message("user", "hi"))
    assert archived(root, result) == [{"role": "user", "content": "hi"}]


def test_each_commit_has_a_place_of_its_own(store: memory.MemoryStore) -> None:
    uris = {commit(store, "s", *SAID).archived_uri for _ in range(20)}
    assert len(uris) == 20


def of_run(store: memory.MemoryStore, run: str, session: str = "s") -> memory.MemoryCommitResult:
    """Commit a run and return the result."""
    result = store.dispatch(memory.MemoryOpCommit(session, SAID, run=run))
    assert isinstance(result, memory.MemoryCommitResult)
    return result


def test_a_run_is_committed_once(store: memory.MemoryStore, root: Path) -> None:
    assert len({of_run(store, "r").archived_uri for _ in range(3)}) == 1
    assert len([*root.rglob("messages.json")]) == 1


def test_each_run_of_a_session_is_committed(store: memory.MemoryStore) -> None:
    uris = [of_run(store, "r").archived_uri, of_run(store, "q").archived_uri]
    assert len({*uris, commit(store, "s", *SAID).archived_uri}) == 3


def test_threads_that_commit_a_run_at_once_make_one_commit(
    store: memory.MemoryStore, root: Path
) -> None:
    barrier = threading.Barrier(8)

    def together(_: int) -> str | None:
        barrier.wait(PATIENCE)
        return of_run(store, "r").archived_uri

    with ThreadPoolExecutor(8) as pool:
        uris = {*pool.map(together, range(8))}
    assert len(uris) == 1
    assert len([*root.rglob("messages.json")]) == 1
    assert len([*(root / "session" / "s" / "commits").iterdir()]) == 1


def test_a_run_whose_commit_was_cut_off_is_committed(store: memory.MemoryStore, root: Path) -> None:
    first = of_run(store, "r")
    place = root / str(first.archived_uri).removeprefix("memory://")
    (place / "messages.json").unlink()  # as if the process had ended before it was placed
    again = of_run(store, "r")
    assert again.archived_uri != first.archived_uri
    assert archived(root, again) == list(SAID)


@pytest.mark.parametrize("session", ["", "a/b", "..", ".", "a\0"])
def test_a_session_has_one_plain_name(store: memory.MemoryStore, session: str) -> None:
    result = store.dispatch(memory.MemoryOpCommit(session, SAID))
    assert isinstance(result, memory.MemoryExecutionFailure)
    assert result.kind == "invalid_uri"


@pytest.mark.parametrize("message", [{"role": "user", "content": b"bytes"}, 3])
def test_what_is_no_message_is_refused(
    store: memory.MemoryStore, root: Path, message: object
) -> None:
    result = store.dispatch(memory.MemoryOpCommit("s", (message,)))
    assert isinstance(result, memory.MemoryExecutionFailure)
    assert result.kind == "unsupported"
    assert not (root / "session").exists()


def test_rows_that_are_no_numbers_are_refused(store: memory.MemoryStore, root: Path) -> None:
    result = store.dispatch(memory.MemoryOpCommit("s", SAID, rows=("a",)))  # type: ignore[arg-type]  # on purpose
    assert isinstance(result, memory.MemoryExecutionFailure)
    assert result.kind == "unsupported"
    assert not (root / "session").exists()


def test_an_empty_transcript_is_archived(store: memory.MemoryStore, root: Path) -> None:
    assert archived(root, commit(store, "s")) == []
