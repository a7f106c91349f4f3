"""Archiving transcripts in a local store, and having a model learn from them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import cast

from rath._async.runtime import runtime
from rath._core.files import atomic_write_json, sync_directory
from rath._core.text import valid_unicode
from rath.memory.adapters.local.extraction.archive import (
    ABOUT_NAME,
    RECORD_NAME,
    Archive,
    archive_of,
)
from rath.memory.adapters.local.extraction.jobs import Extraction
from rath.memory.adapters.local.extraction.learn import failure_text, start, tell
from rath.memory.adapters.local.extraction.records import CommitRecord, ExtractionRecord
from rath.memory.adapters.local.files.drafts import Draft
from rath.memory.adapters.local.layout import (
    TRANSCRIPT_NAME,
    locate,
    relative_path,
)
from rath.memory.adapters.local.store import LocalStore, run
from rath.memory.op_types import MemoryOpCommit
from rath.memory.results import MemoryCommitResult, MemoryExecutionFailure, MemoryResult
from rath.memory.uri import MEMORY_URI_PREFIX

_STAMP = "%Y%m%dT%H%M%S%f"
_FIELDS = ("role", "content", "parts")

_PATIENCE_SECONDS = 300.0
"""How long a commit that is waited for leaves its transcript to another process that reads it."""


async def commit(store: LocalStore, op: MemoryOpCommit) -> MemoryResult:
    """Archive a transcript, which can be found at once, and have the model of the store read it.

    What is told about the archive comes when it is on disk; the reading goes on in the background,
    unless `op.wait` asks to wait for it.
    """
    archived = await runtime().call_in_worker(partial(run, _archive, store, op))
    extraction = store.extraction
    if extraction is None or not isinstance(archived, MemoryCommitResult):
        return archived
    archive = Archive(relative_path(str(archived.archived_uri)))
    return await _learn(store, extraction, archive, op)


async def _learn(
    store: LocalStore, extraction: Extraction, archive: Archive, op: MemoryOpCommit
) -> MemoryResult:
    unknown = MemoryCommitResult(archive.record_uri, archive.uri, -1)
    if runtime().is_closing:
        return unknown
    patience = _PATIENCE_SECONDS if op.wait else 0.0
    future = start(store, extraction, archive, patience=patience).future
    if not op.wait:
        future.add_done_callback(partial(_tell, archive))
        return unknown
    try:
        async with asyncio.timeout(op.timeout_seconds):
            record = cast("ExtractionRecord | None", await asyncio.wrap_future(future))
    except TimeoutError:
        future.add_done_callback(partial(_tell, archive))
        return MemoryExecutionFailure(
            "timeout",
            f"the model has not read the transcript within {op.timeout_seconds:g} s; it is "
            f"archived at {archive.uri}, and the reading goes on",
        )
    return _result(archive, record)


def _result(archive: Archive, record: ExtractionRecord | None) -> MemoryResult:
    if record is None:
        return MemoryExecutionFailure(
            "not_found", f"the transcript at {archive.uri} was removed while a model read it"
        )
    if record.error is not None:
        return MemoryExecutionFailure("extraction_failed", failure_text(archive, record))
    n_notes = len(record.uris) if record.phase == "done" else -1
    return MemoryCommitResult(archive.record_uri, archive.uri, n_notes)


def _tell(archive: Archive, done: Future[ExtractionRecord | None]) -> None:
    if done.exception() is None:
        tell(archive, done.result())


def _archive(store: LocalStore, op: MemoryOpCommit) -> MemoryResult:
    if "/" in op.session_id or not op.session_id:
        return MemoryExecutionFailure(
            "invalid_uri", f"{op.session_id!r} cannot name a session; expected one plain name"
        )
    commits = relative_path(f"{MEMORY_URI_PREFIX}session/{op.session_id}/commits")
    try:
        messages = [_message(message) for message in op.messages]
        text = json.dumps(messages, indent=2, ensure_ascii=False) + "\n"
        rows = tuple(int(row) for row in op.rows)
    except (TypeError, ValueError) as exc:
        return MemoryExecutionFailure(
            "unsupported", f"a message cannot be archived as JSON: {exc}", type(exc).__name__
        )
    uris = tuple(valid_unicode(str(uri)) for uri in op.used_uris)
    about = CommitRecord(rows, uris, op.run)
    known = None if op.run is None else archive_of(store.root, op.session_id, op.run)
    if known is None:
        known = Archive(_new_directory(store.root, commits))
        try:
            _put(store, known.directory, valid_unicode(text).encode(), about)
        except _Committed as committed:
            _remove(store.root, known)
            known = committed.archive
    # Without a model nothing makes notes of it, which is known when someone waits for it.
    return MemoryCommitResult(None, known.uri, 0 if op.wait else -1)


class _Committed(Exception):
    """Somebody else has committed the run meanwhile."""

    def __init__(self, archive: Archive) -> None:
        super().__init__(archive.uri)
        self.archive = archive


def _remove(root: Path, archive: Archive) -> None:
    """Take back a directory that got no transcript."""
    with suppress(OSError):
        for name in (ABOUT_NAME, RECORD_NAME):
            archive.path(root, name).unlink(missing_ok=True)
        (root / archive.directory).rmdir()


def _put(store: LocalStore, archive: str, transcript: bytes, about: CommitRecord) -> None:
    """Write the files of a commit, which are on disk when this returns.

    Raises:
        _Committed: The run was committed by somebody else meanwhile.
    """
    place = locate(store.root, archive)
    with Draft(store.root, transcript) as draft:
        draft.force_to_disk()
        if about != CommitRecord():
            atomic_write_json(place / ABOUT_NAME, about.to_json())
        if store.extraction is not None:
            atomic_write_json(place / RECORD_NAME, ExtractionRecord().to_json())

        def put() -> None:
            session_id = Archive(archive).session_id
            other = None if about.run is None else archive_of(store.root, session_id, about.run)
            if other is not None:
                raise _Committed(other)
            # The session may be forgotten since the directory was made.
            place.mkdir(parents=True, exist_ok=True)
            draft.place(place / TRANSCRIPT_NAME)

        # Last of all: what is found is whole, and without a transcript nothing is pending.
        store.catalog.change(archive, TRANSCRIPT_NAME, put)
    sync_directory(place)


def _message(message: object) -> dict[str, object]:
    if isinstance(message, Mapping):
        return dict(cast("Mapping[str, object]", message))
    present = {name: getattr(message, name, None) for name in _FIELDS}
    if present["role"] is None:
        raise TypeError(
            f"expected a mapping or an object with a role, got {type(message).__name__}"
        )
    return {name: value for name, value in present.items() if value is not None}


def _new_directory(root: Path, commits: str) -> str:
    """Make the directory of a commit, named by the time or the next microsecond that is free."""
    locate(root, commits).mkdir(parents=True, exist_ok=True)
    moment = datetime.now(UTC)
    while True:
        archive = f"{commits}/{moment.strftime(_STAMP)}"
        try:
            (root / archive).mkdir()
        except FileExistsError:
            moment += timedelta(microseconds=1)
        else:
            return archive
