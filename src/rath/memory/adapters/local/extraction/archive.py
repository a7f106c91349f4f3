"""The directory of one commit: its transcript, and how far a model has come with it.

<store>/session/<sid>/commits/<stamp>/messages.json     what was said; written once, last of all
<store>/session/<sid>/commits/<stamp>/commit.json       rows of the messages, notes that were shown
<store>/session/<sid>/commits/<stamp>/extraction.json   what a model made of it, where there is one
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rath._core.files import atomic_write_json
from rath.memory.adapters.local.extraction.records import CommitRecord, ExtractionRecord
from rath.memory.adapters.local.extraction.transcript import Transcript, transcript_of
from rath.memory.adapters.local.files.documents import MAX_TRANSCRIPT_BYTES
from rath.memory.adapters.local.layout import TRANSCRIPT_NAME, can_name_a_file, session_of, uri_of
from rath.memory.adapters.local.store import LocalStore

ABOUT_NAME = "commit.json"
RECORD_NAME = "extraction.json"

_SESSIONS, _COMMITS = "session", "commits"


@dataclass(frozen=True, slots=True)
class Archive:
    """A commit that lies in a store."""

    directory: str
    """Its place below the store, as in "session/s/commits/20260102T030405000000"."""

    @property
    def uri(self) -> str:
        return uri_of(self.directory)

    @property
    def record_uri(self) -> str:
        """Where its `extraction.json` is read."""
        return f"{self.uri}/{RECORD_NAME}"

    @property
    def session_id(self) -> str:
        return session_of(self.directory)

    def path(self, root: Path, name: str) -> Path:
        """Return the path of one of its files."""
        return root / self.directory / name

    def is_there(self, root: Path) -> bool:
        """Return whether the transcript still lies in the store."""
        return self.path(root, TRANSCRIPT_NAME).is_file()

    def transcript(self, root: Path) -> Transcript:
        """Read the transcript.

        Raises:
            OSError: It cannot be read.
            ValueError: It is longer than `MAX_TRANSCRIPT_BYTES`, or no list of messages.
        """
        path = self.path(root, TRANSCRIPT_NAME)
        if path.stat().st_size > MAX_TRANSCRIPT_BYTES:
            raise ValueError(f"it is longer than {MAX_TRANSCRIPT_BYTES} bytes")
        return transcript_of(_json_in(path), self.about(root).rows)

    def about(self, root: Path) -> CommitRecord:
        """Read what was told beside the messages; nothing where that is not there."""
        with suppress(OSError, ValueError):
            return CommitRecord.from_json(_json_in(self.path(root, ABOUT_NAME)))
        return CommitRecord()

    def record(self, root: Path) -> ExtractionRecord | None:
        """Read how far a model has come; None where none was to be asked, and when it is gone."""
        with suppress(OSError, ValueError):
            return ExtractionRecord.from_json(_json_in(self.path(root, RECORD_NAME)))
        return None

    def keep_record(self, store: LocalStore, record: ExtractionRecord) -> bool:
        """Write how far a model has come; False, and nothing, when the transcript is gone.

        Raises:
            OSError: It cannot be written.
        """

        def put() -> bool:
            if not self.is_there(store.root):
                return False
            atomic_write_json(self.path(store.root, RECORD_NAME), record.to_json())
            return True

        return store.catalog.change(self.directory, RECORD_NAME, put)


def archive_of(root: Path, session_id: str, run: str) -> Archive | None:
    """Return the commit of a run, None where it was not committed; O(commits of the session)."""
    for stamp in _directories(f"{root}/{_SESSIONS}/{session_id}/{_COMMITS}"):
        archive = Archive(f"{_SESSIONS}/{session_id}/{_COMMITS}/{stamp}")
        if archive.about(root).run == run and archive.is_there(root):
            return archive
    return None


def pending_archives(root: Path) -> Iterator[tuple[Archive, ExtractionRecord]]:
    """Yield the commits for which a model is still to be asked, those of a session in order."""
    for session in _directories(f"{root}/{_SESSIONS}"):
        for stamp in _directories(f"{root}/{_SESSIONS}/{session}/{_COMMITS}"):
            archive = Archive(f"{_SESSIONS}/{session}/{_COMMITS}/{stamp}")
            record = archive.record(root)
            if record is not None and record.phase == "pending":
                yield archive, record


def _directories(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(name for name in names if can_name_a_file(name))


def _json_in(path: Path) -> object:
    """Return what a JSON file holds.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no JSON.
    """
    try:
        with path.open("rb") as file:
            return cast("object", json.loads(file.read(MAX_TRANSCRIPT_BYTES)))
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc
