"""Archiving transcripts in a local store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from rath._core.files import atomic_write_bytes
from rath._core.text import valid_unicode
from rath.memory.adapters.local.layout import (
    TRANSCRIPT_NAME,
    locate,
    relative_path,
    uri_of,
)
from rath.memory.adapters.local.store import LocalStore
from rath.memory.op_types import MemoryOpCommit
from rath.memory.results import MemoryCommitResult, MemoryExecutionFailure, MemoryResult
from rath.memory.uri import MEMORY_URI_PREFIX

_STAMP = "%Y%m%dT%H%M%S%f"
_FIELDS = ("role", "content", "parts")


def commit(store: LocalStore, op: MemoryOpCommit) -> MemoryResult:
    """Archive the messages of a session; what was said in them can be found at once."""
    if "/" in op.session_id or not op.session_id:
        return MemoryExecutionFailure(
            "invalid_uri", f"{op.session_id!r} cannot name a session; expected one plain name"
        )
    commits = relative_path(f"{MEMORY_URI_PREFIX}session/{op.session_id}/commits")
    try:
        messages = [_message(message) for message in op.messages]
        text = json.dumps(messages, indent=2, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as exc:
        return MemoryExecutionFailure(
            "unsupported", f"a message cannot be archived as JSON: {exc}", type(exc).__name__
        )
    archive = _new_directory(store.root, commits)
    path = locate(store.root, f"{archive}/{TRANSCRIPT_NAME}")
    data = valid_unicode(text).encode()
    store.catalog.change(archive, TRANSCRIPT_NAME, lambda: atomic_write_bytes(path, data))
    # Nothing extracts notes from transcripts, which is known when someone waits for it.
    return MemoryCommitResult(None, uri_of(archive), 0 if op.wait else -1)


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
