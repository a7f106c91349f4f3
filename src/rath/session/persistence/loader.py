"""Read, list and delete session files."""

from __future__ import annotations

import contextlib
import glob
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from rath._async.lazy import Deferred
from rath._core.files import FileLock
from rath.errors import PersistenceError
from rath.llm.chat_response import RathLLMTokenUsage
from rath.llm.image import Image
from rath.session.body import Body, GivenUsage
from rath.session.chunk import ChunkKind, ChunkRow, ChunkTable
from rath.session.content import SystemText
from rath.session.graph.kind import LineageKind
from rath.session.graph.provenance import Provenance
from rath.session.persistence.blobs import BlobStore
from rath.session.persistence.migrations import upgrade_chunk, upgrade_header
from rath.session.persistence.paths import (
    SESSION_FILE_SUFFIX,
    SESSION_PARTIAL_SUFFIX,
    checked_id,
    partial_beside,
    session_file,
    session_partial_file,
    sessions_dir,
)
from rath.session.persistence.reattach import placement_of
from rath.session.persistence.records import (
    PersistedSessionHeader,
    decode_chunk,
    decode_header,
    decode_line,
    usage_from_jsonable,
)
from rath.session.session import Session

__all__ = [
    "PersistedSession",
    "PersistedSessionHeader",
    "PersistedSessionMeta",
    "delete_session",
    "list_persisted_sessions",
    "load_session",
    "prune_sessions",
]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistedSessionMeta:
    """What a listing says about one session file."""

    id: UUID
    path: Path
    created_at: datetime
    lineage_operator: str
    lineage_kind: LineageKind
    chunk_count: int
    closed: bool
    """Whether the file has its trailer; without one its writer is at work, or was cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistedSession:
    """A session as its file tells it."""

    header: PersistedSessionHeader
    chunk_table: ChunkTable
    cumulative_usage: RathLLMTokenUsage | None
    closed: bool
    """Whether the file has its trailer; without one its writer is at work, or was cut off."""

    path: Path
    trailer_raw: dict[str, Any] | None = None

    def to_resumable_pair(self, *, agent_prompt: str | None = None) -> tuple[Session, Session]:
        """Return a new user session with these rows, and an agent session to go on with.

        The user session has the backend, spec and usage of the stored one, an id of its own and no
        parents. Where the file names a remote sandbox by its id in the registry, it is attached to
        that one, which waits for its backend. If that fails, the rows can be read all the same: a
        warning is logged, and tools are refused until the session is placed again, as nothing runs
        in another place unasked.

        Args:
            agent_prompt: Instructions of the agent; by default those of the first system row,
                where there is one.
        """
        usage = self.cumulative_usage
        # Under the file's own id, so that two pairs of one file count it once when they meet.
        given = () if usage is None else (GivenUsage(self.header.id, usage),)
        user = Session.from_body(
            Deferred.of(Body(self.chunk_table, given=given)),
            Provenance(),
            placement=placement_of(self.header),
        )
        prompt = _first_system_text(self.chunk_table) if agent_prompt is None else agent_prompt
        agent = Session(ChunkTable()) if prompt is None else Session.from_agent_prompt(prompt)
        return user, agent


def load_session(session_id: UUID | str, *, path: Path | None = None) -> PersistedSession:
    """Read a session file, and the images that its rows name.

    An image whose bytes are missing or damaged stays known by its digest; what would show it to a
    model raises an error that names its file.

    Args:
        session_id: Whose file to read from `sessions_dir()`; where it was never finished, the
            partial file is read.
        path: Read this file instead.

    Raises:
        PersistenceError: There is no such file, or a complete line of it is damaged; the text
            says which. A last line without line feed was cut off and is left out.
        ValueError: `session_id` is not a UUID.
    """
    wanted = checked_id(session_id)
    if path is not None:
        return _with_images(_read(Path(path)))
    final = session_file(wanted)
    loaded = _read(final if final.exists() else partial_beside(final), known_as=final)
    if loaded.header.id != wanted:
        raise PersistenceError(
            f"{loaded.path}:1: is the file of session {loaded.header.id}; pass it as path= to read "
            "it under another name"
        )
    return _with_images(loaded)


def list_persisted_sessions() -> list[PersistedSessionMeta]:
    """Return what stands in `sessions_dir()`, oldest first; files that cannot be read are logged.

    Cost: every file is read.
    """
    found: list[PersistedSessionMeta] = []
    for path, session_id in _session_files():
        try:
            loaded = _read(path)
        except PersistenceError as exc:
            _logger.warning("left out of the list: %s", exc)
            continue
        if loaded.header.id != session_id:
            _logger.warning("left out of the list: %s holds session %s", path, loaded.header.id)
            continue
        found.append(_meta(loaded))
    return sorted(found, key=lambda meta: meta.created_at)


def delete_session(session_id: UUID | str, *, path: Path | None = None) -> bool:
    """Delete a session's finished and partial files; return whether there was one.

    Its images go too, but for those that another session file beside it names. Cost: where it had
    images, the session files beside it are read.

    Args:
        session_id: Whose files in `sessions_dir()` to delete.
        path: Delete this file and the partial one beside it instead.

    Raises:
        ValueError: `session_id` is not a UUID.
    """
    final = session_file(session_id) if path is None else Path(path)
    blobs = BlobStore(final.parent)
    named = blobs.named_by(_files_of(final))
    deleted = _delete_files(final)
    blobs.sweep(named)
    return deleted


def prunable_sessions(*, older_than: timedelta) -> list[UUID]:
    """Return the sessions that `prune_sessions` would delete now."""
    limit = datetime.now(UTC) - older_than
    old = dict.fromkeys(meta.id for meta in list_persisted_sessions() if meta.created_at < limit)
    return [session_id for session_id in old if not _is_being_written(session_id)]


def prune_sessions(*, older_than: timedelta) -> list[UUID]:
    """Delete the sessions whose files were begun longer ago, and return their ids.

    Files that cannot be read and sessions that are being written are kept. Images that no session
    names any more go too.
    """
    old = prunable_sessions(older_than=older_than)
    deleted = [session_id for session_id in old if _delete_files(session_file(session_id))]
    BlobStore(sessions_dir()).sweep()
    return deleted


def _delete_files(final: Path) -> bool:
    deleted = False
    for file in _files_of(final):
        with contextlib.suppress(FileNotFoundError):
            file.unlink()
            deleted = True
    return deleted


def _files_of(final: Path) -> list[Path]:
    partial = partial_beside(final)
    kept_aside = final.parent.glob(f"{glob.escape(partial.name)}.[0-9]*")
    return [final, partial, *kept_aside]


def _read(path: Path, *, known_as: Path | None = None) -> PersistedSession:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise PersistenceError(
            f"session file not found: {known_as or path}; list_persisted_sessions() tells what is "
            "there"
        ) from None
    except OSError as exc:
        raise PersistenceError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    # Other line separators of Unicode may stand inside strings. What follows the last line feed
    # was cut off while it was written.
    lines = data.split(b"\n")[:-1]
    reader = _Reader(path)
    for number, line in enumerate(lines, start=1):
        try:
            reader.take(decode_line(line))
        except PersistenceError as exc:
            raise PersistenceError(f"{path}:{number}: {exc}") from exc
    return reader.finished()


class _Reader:
    """Takes the records of one file in order and says what they amount to."""

    __slots__ = ("_header", "_path", "_rows", "_trailer", "_version")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = 0
        self._header: PersistedSessionHeader | None = None
        self._rows: list[ChunkRow] = []
        self._trailer: dict[str, Any] | None = None

    def take(self, record: dict[str, Any]) -> None:
        if self._trailer is not None:
            raise PersistenceError("a record stands after the trailer, which ends a file")
        match record.get("record_type"):
            case "header":
                self._take_header(record)
            case "chunk":
                if self._header is None:
                    raise PersistenceError("chunk before header")
                self._rows.append(decode_chunk(upgrade_chunk(record, header_version=self._version)))
            case "trailer":
                if self._header is None:
                    raise PersistenceError("trailer before header")
                self._trailer = record
            case other:
                raise PersistenceError(
                    f"unknown record_type {other!r}; expected header, chunk or trailer"
                )

    def _take_header(self, record: dict[str, Any]) -> None:
        if self._header is not None:
            raise PersistenceError("duplicate header")
        version = record.get("schema_version")
        if not isinstance(version, int) or isinstance(version, bool):
            raise PersistenceError(
                f"malformed header: schema_version is {version!r}, expected a number"
            )
        self._version = version
        self._header = decode_header(upgrade_header(record))

    def finished(self) -> PersistedSession:
        if self._header is None:
            raise PersistenceError(f"{self._path}:1: missing header: the file has no complete line")
        trailer = self._trailer
        return PersistedSession(
            header=self._header,
            chunk_table=ChunkTable().born_in(self._header.id, self._rows),
            cumulative_usage=usage_from_jsonable((trailer or {}).get("cumulative_usage")),
            closed=trailer is not None,
            path=self._path,
            trailer_raw=trailer,
        )


def _with_images(loaded: PersistedSession) -> PersistedSession:
    if not any(row.images for row in loaded.chunk_table):
        return loaded
    blobs, known = BlobStore(loaded.path.parent), dict[Image, Image]()

    def whole(image: Image) -> Image:
        if image not in known:
            known[image] = blobs.loaded(image)
        return known[image]

    rows = [row.with_images(tuple(map(whole, row.images))) for row in loaded.chunk_table]
    return replace(loaded, chunk_table=ChunkTable(rows))


def _meta(loaded: PersistedSession) -> PersistedSessionMeta:
    return PersistedSessionMeta(
        id=loaded.header.id,
        path=loaded.path,
        created_at=loaded.header.created_at,
        lineage_operator=loaded.header.lineage_operator,
        lineage_kind=loaded.header.lineage_kind,
        chunk_count=len(loaded.chunk_table),
        closed=loaded.closed,
    )


def _session_files() -> Iterator[tuple[Path, UUID]]:
    directory = sessions_dir()
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        for suffix in (SESSION_PARTIAL_SUFFIX, SESSION_FILE_SUFFIX):
            if path.name.endswith(suffix):
                try:
                    yield path, checked_id(path.name.removesuffix(suffix))
                except ValueError as exc:
                    _logger.warning("left out of the list: %s: %s", path, exc)
                break


def _is_being_written(session_id: UUID) -> bool:
    try:
        fd = os.open(session_partial_file(session_id), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        lock = FileLock(fd)
        is_free = lock.acquire()
        lock.release()
        return not is_free
    finally:
        os.close(fd)


def _first_system_text(table: ChunkTable) -> str | None:
    for row in table:
        if row.kind is ChunkKind.SYSTEM and isinstance(row.content, SystemText):
            return row.content.text
    return None
