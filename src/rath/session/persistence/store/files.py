"""Logs as files of one directory: the store that is used unless another one is named."""

from __future__ import annotations

import contextlib
import glob
import os
import stat
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Self
from uuid import UUID

from rath._core.blobs import Blob
from rath._core.files import StrPath
from rath.errors import PersistenceError
from rath.session.persistence.blobs import BlobStore
from rath.session.persistence.paths import (
    SESSION_FILE_SUFFIX,
    SESSION_PARTIAL_SUFFIX,
    ensure_private,
    partial_beside,
    sessions_dir,
)
from rath.session.persistence.store.abc import SessionStore, StoredLog
from rath.session.persistence.store.claim import claim_finished, claimed, is_claimed
from rath.session.persistence.store.file_log import (
    FileLog,
    append_to_finished,
    read_whole,
    rewrite_file,
)
from rath.session.persistence.store.file_trash import FileTrash

__all__ = ["FileStore"]

_FOLLOW_SECONDS = 0.1
"""How often a file that is followed is looked at; short for a reader, long for a disk."""

_ID_CHARACTERS = 36


class FileStore(SessionStore):
    """Logs as `<id>.jsonl`, unfinished ones as `<id>.jsonl.__partial__`, and `blobs/` beside them.

    Args:
        directory: Where they stand, made when it is first written to; by default `sessions_dir()`
            as it is now.
        elsewhere: Logs that stand under another name, by their session.
    """

    name = "files"

    def __init__(
        self, directory: StrPath | None = None, *, elsewhere: Mapping[UUID, Path] | None = None
    ) -> None:
        self.directory = Path(os.path.abspath(sessions_dir() if directory is None else directory))
        self.where = str(self.directory)
        self._blobs = BlobStore(self.directory)
        self._trash = FileTrash(self.directory)
        self._elsewhere = dict(elsewhere or {})

    @classmethod
    def at(cls, path: StrPath, session: UUID) -> Self:
        """Return the store of the directory of `path`, where that file is the log of `session`."""
        file = Path(os.path.abspath(path))  # links stay as they are
        is_usual = file.name == f"{session}{SESSION_FILE_SUFFIX}"
        return cls(file.parent, elsewhere=None if is_usual else {session: file})

    def path(self, session: UUID) -> Path:
        """Return where the log of a session stands when it is finished."""
        assert isinstance(session, UUID), "nothing but a UUID ever becomes part of a path"
        return self._elsewhere.get(session) or self.directory / f"{session}{SESSION_FILE_SUFFIX}"

    def create(self, session: UUID) -> FileLog:
        ensure_private(self.directory)
        return FileLog.create(session, self.path(session))

    def replace(self, session: UUID) -> FileLog:
        """Begin a log that takes the place of the one of that session once it is finished.

        What a writer that was cut off has left is kept beside it, under another name.

        Raises:
            PersistenceError: It is being written, or it cannot be.
        """
        ensure_private(self.directory)
        return FileLog.replace(session, self.path(session))

    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> FileLog:
        return FileLog.reopen(session, self.path(session), keep, size=size)

    def append_to_finished(
        self, session: UUID, size: int, data: bytes, *, blobs: Collection[Blob] = ()
    ) -> bool:
        return append_to_finished(self.path(session), size, data, blobs=blobs)

    def rewrite(self, session: UUID, data: bytes, *, size: int) -> None:
        rewrite_file(self.path(session), data, size)

    def restart(
        self, session: UUID, data: bytes, *, size: int, blobs: Collection[Blob] = ()
    ) -> FileLog:
        path = self.path(session)
        return FileLog.restart(session, path, data, size, blobs=blobs, trash=self._trash)

    def read(self, session: UUID) -> StoredLog | None:
        final = self.path(session)
        partial = partial_beside(final)
        # The finished one twice: it may get its name between the first look and the second.
        for path in (final, partial, final):
            data = _content(path, is_final=path == final)
            if data or (data is not None and path == final):
                return StoredLog(session, data, path == final, str(path))
        return None

    def holds(self, session: UUID) -> bool:
        final = self.path(session)
        if final.exists():
            return True
        try:
            # An empty one is only there to be locked.
            return partial_beside(final).stat().st_size > 0 or final.exists()
        except FileNotFoundError:
            return final.exists()

    def stamps(self) -> Mapping[UUID, str]:
        found: dict[UUID, str] = {}
        for session, path in self._elsewhere.items():
            _stamp_file(found, session, path)
        try:
            with os.scandir(self.directory) as entries:
                for entry in entries:
                    _stamp(found, entry)
        except FileNotFoundError:
            pass
        except OSError as exc:
            raise PersistenceError(
                f"{self.directory} cannot be read: {exc.strerror or exc}"
            ) from exc
        return found

    def is_being_written(self, session: UUID) -> bool:
        return is_claimed(self.path(session))

    def delete(self, session: UUID) -> bool:
        path = self.path(session)
        if not path.exists() and not partial_beside(path).exists():
            return False
        try:
            with claimed(path) as claim:
                finished = claim_finished(path)
                if finished is None and claim.size == 0:
                    return False
                files = self._files_of(session, is_finished=finished is not None)
                with contextlib.ExitStack() as held:
                    if finished is not None:
                        held.callback(finished.release)
                    if sys.platform == "win32":  # What is open cannot be renamed there.
                        held.close()
                        claim.release()
                    self._trash.put(path, files)
        except OSError as exc:
            raise PersistenceError(
                f"{path} cannot be moved to the trash: {exc.strerror or exc}"
            ) from exc
        return True

    def restore(self, session: UUID) -> bool:
        path = self.path(session)
        entry = self._trash.last(path)
        if entry is None:
            return False
        try:
            with claimed(path) as claim:
                if path.exists() or claim.size:
                    raise PersistenceError(
                        f"the session {session} was written anew since it was deleted; delete "
                        f"that one first to bring back the other from {entry}"
                    )
                if sys.platform == "win32":  # What is open cannot be replaced there.
                    claim.release()
                self._trash.take_back(entry)
        except OSError as exc:
            raise PersistenceError(
                f"{entry} cannot be moved out of the trash: {exc.strerror or exc}"
            ) from exc
        return True

    def empty_trash(self) -> int:
        n_removed = self._trash.empty()
        self._blobs.sweep()
        return n_removed

    def blob(self, digest: str) -> bytes | None:
        return self._blobs.read(digest)

    def follow(self, session: UUID, start: int) -> Iterator[bytes]:
        """Yield the whole lines that are appended from byte `start` on, until it is closed.

        Sleeps on the thread of the caller, a tenth of a second at a time. Ends at once where
        nobody writes the log.

        Raises:
            PersistenceError: It cannot be read, or bytes that were yielded were cut off.
        """
        while True:
            # In this order, so that what is written before it is closed is not missed.
            is_open = self.is_being_written(session)
            log = self.read(session)
            data = b"" if log is None else log.data
            if len(data) < start:
                raise PersistenceError(
                    f"{self.path(session)} became shorter than the {start} bytes that were read; "
                    "read it again from its beginning"
                )
            stop = data.rfind(b"\n") + 1
            if stop > start:
                yield data[start:stop]
                start = stop
            elif not is_open:
                return
            else:
                time.sleep(_FOLLOW_SECONDS)

    def _files_of(self, session: UUID, *, is_finished: bool) -> list[Path]:
        """Return the files of a log, the one that is read first."""
        path = self.path(session)
        partial = partial_beside(path)
        asides = sorted(path.parent.glob(f"{glob.escape(partial.name)}.[0-9]*"))
        if session not in self._elsewhere:
            # Beside a file with a name of somebody's choice, a number may mean anything.
            asides += sorted(path.parent.glob(f"{path.name}.[0-9]*"))
        if not is_finished:
            return [partial, *asides]
        # An empty one is only there to be locked.
        left = [partial] if partial.exists() and partial.stat().st_size else []
        return [path, *left, *asides]


def _content(path: Path, *, is_final: bool) -> bytes | None:
    """Return what a file holds, None where there is none."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise PersistenceError(f"{path} cannot be read: it is no file")
        return read_whole(path) if is_final else path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise PersistenceError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def _stamp(found: dict[UUID, str], entry: os.DirEntry[str]) -> None:
    suffix = entry.name[_ID_CHARACTERS:]
    if suffix not in {SESSION_FILE_SUFFIX, SESSION_PARTIAL_SUFFIX}:
        return
    try:
        session = UUID(entry.name[:_ID_CHARACTERS])
        status = entry.stat()
    except (ValueError, FileNotFoundError):
        return
    _note(found, session, status, is_finished=suffix == SESSION_FILE_SUFFIX)


def _stamp_file(found: dict[UUID, str], session: UUID, path: Path) -> None:
    for file in (partial_beside(path), path):
        try:
            status = file.stat()
        except FileNotFoundError:
            continue
        _note(found, session, status, is_finished=file == path)


def _note(
    found: dict[UUID, str], session: UUID, status: os.stat_result, *, is_finished: bool
) -> None:
    # The finished one counts where both are there, as it is the one that is read. An unfinished
    # one that is empty is no log yet.
    if not stat.S_ISREG(status.st_mode):
        return
    if is_finished or (status.st_size and session not in found):
        sort = "finished" if is_finished else "partial"
        found[session] = f"{sort}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"
