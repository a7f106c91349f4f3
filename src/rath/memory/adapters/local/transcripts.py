"""The directory of one commit: its transcript, and how far a model has come with it.

<store>/session/<sid>/commits/<stamp>/messages.json     the messages; written once, last of all
<store>/session/<sid>/commits/<stamp>/commit.json       rows of the messages, notes that were shown
<store>/session/<sid>/commits/<stamp>/extraction.json   the notes of a model, where there is one
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal, TypeVar, cast

import msgspec

from rath._core.dataclasses import dataclass
from rath._core.files import FileLock, atomic_write_json, sync_directory
from rath._core.text import valid_unicode
from rath.memory.adapters.local import layout
from rath.memory.adapters.local.files import MAX_TRANSCRIPT_BYTES, Draft, message_text
from rath.memory.adapters.local.store import LocalStore
from rath.memory.driver import InvalidUri, OperationFailed
from rath.memory.op_types import MemoryOpCommit
from rath.memory.results import MemoryCommitResult
from rath.memory.uri import MEMORY_URI_PREFIX

ExtractionPhase = Literal["pending", "done", "failed"]
"""Whether a model is still to be asked, was asked with success, or was asked in vain too often."""

RecordT = TypeVar("RecordT")

_Count = Annotated[int, msgspec.Meta(ge=0)]

COMMIT_NAME = "commit.json"
RECORD_NAME = "extraction.json"
STAMP_FORMAT = "%Y%m%dT%H%M%S%f"

_SESSIONS, _COMMITS = "session", "commits"
_FIELDS = ("role", "content", "parts")
_TO_LOCK = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


class CommitRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of `commit.json`: what a commit has beside its messages."""

    rows: tuple[_Count, ...] = ()
    """For each message, the index of its row in the session; none where that is not known."""
    used_uris: tuple[str, ...] = ()
    """Notes that the model was shown in that session."""
    run: str | None = None
    """The run that was committed, None for a commit by hand."""


class ExtractionRecord(msgspec.Struct, frozen=True, rename={"phase": "state"}):
    """The content of `extraction.json`: how far a model has come with a transcript."""

    phase: ExtractionPhase
    attempts: _Count
    """How often a model was asked, also by a process that was killed then."""
    uris: tuple[str, ...] = ()
    """The notes that were made."""
    model: str | None = None
    error: str | None = None
    """What went wrong the last time."""


PENDING = ExtractionRecord("pending", 0)


def _items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


@dataclass(frozen=True, slots=True)
class Utterance:
    """A message that a model is shown."""

    number: int
    """Its index among the messages of the transcript."""
    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """The messages of a session, as they were archived."""

    messages: tuple[Utterance, ...]
    """Those of users and assistants; other messages, and empty ones, are left out."""
    rows: tuple[int, ...] = ()
    """For each message of the archive, its row in the session; none where that is not known."""

    @classmethod
    def from_json(cls, messages: object, rows: tuple[int, ...]) -> Transcript:
        """Read archived messages, whatever else stands in their place."""
        texts = ((n, each, message_text(each)) for n, each in enumerate(_items(messages)))
        return cls(
            tuple(
                Utterance(number, str(cast("Mapping[str, object]", message)["role"]), text)
                for number, message, text in texts
                if text.strip()
            ),
            rows,
        )

    def rows_of(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """Return the rows of messages; none where they are not known."""
        return tuple(self.rows[number] for number in numbers if number < len(self.rows))


@dataclass(frozen=True, slots=True)
class Archive:
    """A commit that lies in a store."""

    directory: str
    """Its place below the store, as in "session/s/commits/20260102T030405000000"."""

    @property
    def uri(self) -> str:
        return layout.uri_of(self.directory)

    @property
    def record_uri(self) -> str:
        """Where its `extraction.json` is read."""
        return f"{self.uri}/{RECORD_NAME}"

    @property
    def session_id(self) -> str:
        return layout.session_of(self.directory)

    def path(self, root: Path, name: str) -> Path:
        """Return the path of one of its files."""
        return root / self.directory / name

    def is_there(self, root: Path) -> bool:
        """Return whether the transcript still lies in the store."""
        return self.path(root, layout.TRANSCRIPT_NAME).is_file()

    def transcript(self, root: Path) -> Transcript:
        """Read the transcript.

        Raises:
            OSError: It cannot be read.
            ValueError: It is longer than `MAX_TRANSCRIPT_BYTES`, or no list of messages.
        """
        path = self.path(root, layout.TRANSCRIPT_NAME)
        if path.stat().st_size > MAX_TRANSCRIPT_BYTES:
            raise ValueError(f"it is longer than {MAX_TRANSCRIPT_BYTES} bytes")
        return Transcript.from_json(_json_in(path), self.commit_record(root).rows)

    def commit_record(self, root: Path) -> CommitRecord:
        """Read the record of the commit; nothing where that is not there."""
        return self._record(root, COMMIT_NAME, CommitRecord) or CommitRecord()

    def record(self, root: Path) -> ExtractionRecord | None:
        """Read how far a model has come; None where none was to be asked, and when it is gone."""
        return self._record(root, RECORD_NAME, ExtractionRecord)

    def _record(self, root: Path, name: str, kind: type[RecordT]) -> RecordT | None:
        with suppress(OSError, ValueError, msgspec.ValidationError):
            return msgspec.convert(_json_in(self.path(root, name)), kind)
        return None

    def write_record(self, store: LocalStore, record: ExtractionRecord) -> bool:
        """Write how far a model has come; False, and nothing, when the transcript is gone.

        Raises:
            OSError: It cannot be written.
        """

        def put() -> bool:
            if not self.is_there(store.root):
                return False
            atomic_write_json(self.path(store.root, RECORD_NAME), msgspec.to_builtins(record))
            return True

        return store.catalog.change(self.directory, RECORD_NAME, put)


def claim_transcript(
    root: Path, archive: Archive, *, patience: float
) -> Callable[[], object] | None:
    """Take the right to have a model read one transcript, which one process has at a time.

    The transcript itself is locked: it is written once, so whoever opens it by its name gets the
    same file, and no file is left beside it.

    Args:
        root: Directory of the store.
        archive: The transcript.
        patience: Seconds to wait for somebody else.

    Returns:
        A function that gives the right back, as the end of the process does too; None while
        somebody else has it, or when the transcript is gone.

    Raises:
        OSError: The transcript cannot be opened for writing, so nothing can be noted there.
    """
    if not archive.is_there(root):
        return None
    with ExitStack() as undo, suppress(FileNotFoundError):
        fd = os.open(archive.path(root, layout.TRANSCRIPT_NAME), _TO_LOCK)
        undo.callback(os.close, fd)
        lock = FileLock(fd)
        if lock.acquire(timeout=patience):
            undo.callback(lock.release)
            return undo.pop_all().close
    return None


def archives(root: Path, session_id: str | None = None) -> Iterator[Archive]:
    """Yield the commits of a store, or of one of its sessions, those of a session in order."""
    sessions = _directories(f"{root}/{_SESSIONS}") if session_id is None else [session_id]
    for session in sessions:
        for stamp in _directories(f"{root}/{_SESSIONS}/{session}/{_COMMITS}"):
            yield Archive(f"{_SESSIONS}/{session}/{_COMMITS}/{stamp}")


def pending_archives(root: Path) -> Iterator[tuple[Archive, ExtractionRecord]]:
    """Yield the commits for which a model is still to be asked, those of a session in order."""
    for archive in archives(root):
        record = archive.record(root)
        if record is not None and record.phase == "pending":
            yield archive, record


def archive_transcript(store: LocalStore, op: MemoryOpCommit) -> MemoryCommitResult:
    """Write the files of a commit, which are on disk when this returns."""
    if "/" in op.session_id or not op.session_id:
        raise InvalidUri(f"{op.session_id!r} cannot name a session; expected one plain name")
    root = store.root
    commits = layout.relative_path(f"{MEMORY_URI_PREFIX}{_SESSIONS}/{op.session_id}/{_COMMITS}")
    try:
        messages = [_message(message) for message in op.messages]
        text = json.dumps(messages, indent=2, ensure_ascii=False) + "\n"
        rows = tuple(int(row) for row in op.rows)
    except (TypeError, ValueError) as exc:
        raise OperationFailed(
            "unsupported", f"a message cannot be archived as JSON: {exc}", type(exc).__name__
        ) from exc
    uris = tuple(valid_unicode(str(uri)) for uri in op.used_uris)
    record = CommitRecord(rows, uris, op.run)
    archive = _archive_of_run(root, op)
    if archive is None:
        archive = _new_archive(root, commits)
        other = _put(store, archive, valid_unicode(text).encode(), record, op)
        if other is not None:
            with suppress(OSError):
                for name in (COMMIT_NAME, RECORD_NAME):
                    archive.path(root, name).unlink(missing_ok=True)
                (root / archive.directory).rmdir()
            archive = other
    # Without a model nothing makes notes of it, which is known when someone waits for it.
    return MemoryCommitResult(None, archive.uri, 0 if op.wait else -1)


def _put(
    store: LocalStore, archive: Archive, data: bytes, record: CommitRecord, op: MemoryOpCommit
) -> Archive | None:
    """Write the files of a commit; return the archive of somebody else who did so meanwhile."""
    place = layout.locate(store.root, archive.directory)
    with Draft(store.root, data) as draft:
        draft.force_to_disk()
        if record != CommitRecord():
            atomic_write_json(place / COMMIT_NAME, msgspec.to_builtins(record))
        if store.extraction is not None:
            atomic_write_json(place / RECORD_NAME, msgspec.to_builtins(PENDING))

        def put() -> Archive | None:
            other = _archive_of_run(store.root, op)
            if other is None:
                # The session may be forgotten since the directory was made.
                place.mkdir(parents=True, exist_ok=True)
                draft.place(place / layout.TRANSCRIPT_NAME)
            return other

        # Last of all: what is found is whole, and without a transcript nothing is pending.
        other = store.catalog.change(archive.directory, layout.TRANSCRIPT_NAME, put)
    if other is None:
        sync_directory(place)
    return other


def _archive_of_run(root: Path, op: MemoryOpCommit) -> Archive | None:
    """Return the commit of a run, None where it was not committed; O(commits of the session)."""
    if op.run is not None:
        for archive in archives(root, op.session_id):
            if archive.commit_record(root).run == op.run and archive.is_there(root):
                return archive
    return None


def _new_archive(root: Path, commits: str) -> Archive:
    """Make the directory of a commit, named by the time or the next microsecond that is free."""
    layout.locate(root, commits).mkdir(parents=True, exist_ok=True)
    moment = datetime.now(UTC)
    while True:
        archive = Archive(f"{commits}/{moment.strftime(STAMP_FORMAT)}")
        try:
            (root / archive.directory).mkdir()
        except FileExistsError:
            moment += timedelta(microseconds=1)
        else:
            return archive


def _message(message: object) -> dict[str, object]:
    if isinstance(message, Mapping):
        return dict(cast("Mapping[str, object]", message))
    present = {name: getattr(message, name, None) for name in _FIELDS}
    if present["role"] is None:
        raise TypeError(
            f"expected a mapping or an object with a role, got {type(message).__name__}"
        )
    return {name: value for name, value in present.items() if value is not None}


def _directories(path: str) -> list[str]:
    """Return the names of the directories in another one; nothing is reached through a link."""
    if os.path.islink(path):
        return []
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(name for name in names if layout.can_name_a_file(name))


def _json_in(path: Path) -> object:
    """Return the content of a JSON file.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no JSON.
    """
    try:
        with path.open("rb") as file:
            return cast("object", json.loads(file.read(MAX_TRANSCRIPT_BYTES)))
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc
