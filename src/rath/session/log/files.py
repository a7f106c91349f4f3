"""Logs as files of one directory: the store that is used unless another one is named.

<id>.jsonl                       a log that is complete
<id>.jsonl.<n>                   one that a `SessionWriter` replaced
<id>.jsonl.__partial__           one that is being written, locked, or was cut off
<id>.jsonl.__partial__.<n>       what was cut off when a log was reopened
.trash/<id>.jsonl.<n>/           the files of one deletion; the last has the highest number
blobs/<sha256>                   content that logs name
blobs/.lock                      held while a line that names content is written, and by a sweep
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import logging
import os
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit
from uuid import UUID

import msgspec

from rath._core.blobs import Blob
from rath._core.files import (
    FileLock,
    StrPath,
    atomic_write_bytes,
    lock_holder,
    make_private_directory,
    sync_directory,
)
from rath._core.retention import TRASH_DIR_NAME, empty_trash, in_trash
from rath.errors import PersistenceError, SessionBusy
from rath.session.log.blobs import BlobStore
from rath.session.log.paths import (
    PARTIAL_SUFFIX,
    SESSION_FILE_SUFFIX,
    SESSION_PARTIAL_SUFFIX,
    ensure_private,
    os_errors,
    partial_path_of,
    sessions_dir,
)
from rath.session.log.store import (
    Log,
    LogDriver,
    LogStore,
    StoredLog,
)

__all__ = ["FileStore", "file_store", "read_consistent"]

_BINARY = getattr(os, "O_BINARY", 0)
_EXISTING = os.O_RDWR | os.O_APPEND | _BINARY
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY

_WAIT_SECONDS = 0.2
"""Long enough for who only looks whether somebody writes, or adds a late line; a guess."""

_ID_CHARACTERS = 36
_logger = logging.getLogger(__name__)


class LockedFile:
    """A file of a session that is open for appending, and locked as long as it is open.

    Raises:
        SessionBusy: Somebody else has it.
        OSError: It cannot be opened; without `make` also that it is not there.
    """

    __slots__ = ("_lock", "_session", "fd", "path")
    fd: int
    _lock: FileLock

    def __init__(self, path: Path, session: UUID, *, make: bool = False) -> None:
        self.path: Path = path
        self._session = session
        flags = _EXISTING | os.O_CREAT if make else _EXISTING
        self._open(flags)
        while not self.is_still_there():
            self.close()
            self._open(flags)

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        return os.fstat(self.fd).st_size

    def is_still_there(self) -> bool:
        """Tell whether the open file still has its name; it may have been renamed or removed."""
        try:
            return os.path.samestat(os.fstat(self.fd), self.path.stat())
        except FileNotFoundError:
            return False

    def write(self, data: bytes) -> None:
        """Append all of `data`."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.fd, rest) :]

    def truncate(self, keep: int) -> None:
        """Cut off what follows `keep` bytes, and keep it under the first name that is free."""
        with self.path.open("rb") as file:
            file.seek(keep)
            rest = file.read()
        if rest:
            side_file = next(each for each in _numbered(self.path) if not each.exists())
            atomic_write_bytes(side_file, rest, mode=0o600)
            os.ftruncate(self.fd, keep)
            os.fsync(self.fd)

    def rename(self, target: Path) -> None:
        """Give the file the name of another one, or a new one; it stays locked.

        The lock is kept, so that no second writer finds the file free and is renamed along.
        """
        if sys.platform == "win32":  # What is open cannot be renamed there.
            self.close()
        self.path.replace(target)
        self.path = target
        if self.fd < 0:
            self._open(_EXISTING)

    def close(self) -> None:
        """Let go of the file; an unfinished one that holds nothing is removed."""
        if self.fd < 0:
            return
        is_partial = self.path.name.endswith(PARTIAL_SUFFIX)
        with contextlib.suppress(OSError):
            is_empty = is_partial and self.size == 0
            if sys.platform != "win32" and is_empty and self.is_still_there():
                self.path.unlink()
        self._lock.release()
        os.close(self.fd)
        self.fd = -1
        if sys.platform == "win32":  # What is open cannot be removed there.
            with contextlib.suppress(OSError):
                if is_partial and self.path.stat().st_size == 0:
                    self.path.unlink()

    def _open(self, flags: int) -> None:
        fd = os.open(self.path, flags, 0o600)
        lock, is_locked = FileLock(fd), False
        try:
            is_locked = lock.acquire(timeout=_WAIT_SECONDS)
            if not is_locked:
                holder = lock_holder(fd)
                raise SessionBusy(self._session, where=str(self.path), holder=holder)
        finally:
            if not is_locked:
                os.close(fd)
        self.fd, self._lock = fd, lock


class FileTrash:
    """Where files of deleted logs wait until they are brought back, or removed for good."""

    __slots__ = ("_directory",)

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, path: Path, files: Iterable[Path]) -> None:
        """Move the files of the log whose finished file is `path` into the trash; durable.

        Raises:
            OSError: They cannot be moved; the first is moved first.
        """
        trash = self._directory / TRASH_DIR_NAME
        if trash.is_symlink():
            raise NotADirectoryError(20, "is a link; put a directory in its place", str(trash))
        make_private_directory(trash)
        # Nobody else makes one meanwhile: who moves a log has it locked.
        entry = next(each for each in _numbered(trash / path.name) if not each.exists())
        entry.mkdir(mode=0o700)
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                file.replace(entry / file.name)
        sync_directory(entry)
        sync_directory(path.parent)

    def last(self, path: Path) -> Path | None:
        """Return the log deleted last whose finished file is `path`."""
        names = (path.name, partial_path_of(path).name)
        candidates = [
            (int(number), entry)
            for entry in in_trash(self._directory)
            for name, _, number in [entry.name.rpartition(".")]
            if name == path.name and number.isdecimal()
            if any((entry / each).exists() for each in names)
        ]
        return max(candidates)[1] if candidates else None

    def take_back(self, entry: Path) -> None:
        """Move all files of an entry to where they were; durable.

        Raises:
            OSError: They cannot be moved.
        """
        for file in sorted(entry.iterdir()):
            target = self._directory / file.name
            if target.suffix[1:].isdecimal():  # What was cut off earlier is numbered anyway.
                others = itertools.chain([target], _numbered(target.with_suffix("")))
                target = next(each for each in others if not each.exists())
            file.replace(target)
        entry.rmdir()
        sync_directory(self._directory)

    def empty(self) -> int:
        """Remove for good what lies here; return how many logs that were."""
        before = in_trash(self._directory)
        empty_trash(self._directory)
        return len(set(before) - set(in_trash(self._directory)))


class FileDriver(LogDriver):
    """A log in its unfinished file; who has that alone writes, moves or deletes the log.

    Args:
        session: Whose log.
        path: Where it stands when it is finished.
        trash: Where it is moved when it is deleted or begun anew.
        partial: The unfinished file, be it an empty one that is only there to be locked.
        finished: The finished file, where there is one.
        backs_up: Keep the finished file that it replaces as `<path>.<number>`, and log a warning.
    """

    def __init__(
        self,
        session: UUID,
        path: Path,
        trash: FileTrash,
        partial: LockedFile,
        finished: LockedFile | None = None,
        *,
        backs_up: bool = False,
    ) -> None:
        self.session = session
        self.where: str = str(partial.path)
        self.size: int = (finished or partial).size
        self.is_finished: bool = finished is not None
        self._path = path
        self._trash = trash
        self._partial = partial
        self._finished = finished
        self._blobs = BlobStore(path.parent)
        self._backs_up = backs_up
        self._is_named = False

    def is_lost(self) -> bool:
        return not self._partial.is_still_there()

    def append(self, data: bytes, blobs: Collection[Blob], *, durable: bool) -> None:
        if blobs:
            with self._blobs.holding(blobs):
                self._partial.write(data)
        else:
            self._partial.write(data)
        if durable:
            os.fsync(self._partial.fd)
            if not self._is_named:
                sync_directory(self._path.parent)
                self._is_named = True

    def truncate(self, keep: int) -> None:
        if self._finished is not None:
            self._partial.truncate(0)
            if sys.platform == "win32":  # What is open cannot be replaced there.
                self._partial.close()
            self._finished.rename(self._partial.path)
            self._partial.close()
            self._partial, self._finished = self._finished, None
            # Before anything is added: under its final name a log without an end is damaged.
            sync_directory(self._path.parent)
        self._partial.truncate(keep)

    def rewrite(self, data: bytes) -> None:
        file = self._finished or self._partial
        if sys.platform == "win32":  # What is open cannot be replaced there.
            file.close()
        atomic_write_bytes(file.path, data, mode=0o600)

    def restart(self, data: bytes, blobs: Collection[Blob]) -> None:
        # As long as the old file is there it is the one that is read.
        self._partial.truncate(0)
        self.append(data, blobs, durable=True)
        self._discard([self._path])

    def publish(self) -> None:
        if self.is_lost():
            raise PersistenceError(
                f"{self.where} was renamed or removed by another program while it was written; "
                "what was written is where that program put it, or lost"
            )
        if self._partial.size == 0:
            return
        os.fsync(self._partial.fd)
        backup = _back_up(self._path) if self._backs_up else None
        self._partial.rename(self._path)
        if backup is not None:
            _logger.warning(
                "%s was written again; the finished file that stood there is kept as %s",
                self._path,
                backup,
            )
        sync_directory(self._path.parent)

    def remove(self) -> None:
        self._discard(self._files())

    def has_removed(self) -> bool:
        return self._trash.last(self._path) is not None

    def recover(self) -> None:
        entry = self._trash.last(self._path)
        assert entry is not None, "asked only where there is one"
        if sys.platform == "win32":  # What is open cannot be replaced there.
            self.release()
        self._trash.take_back(entry)

    def release(self) -> None:
        for file in (self._finished, self._partial):
            if file is not None:
                file.close()
        self.is_released = True

    def _discard(self, files: Iterable[Path]) -> None:
        if sys.platform == "win32" and self._finished:  # What is open cannot be renamed there.
            self._finished.close()
        self._trash.put(self._path, files)
        if self._finished is not None:
            self._finished.close()

    def _files(self) -> list[Path]:
        """Return the files of the log, the one that is read first."""
        partial, folder = self._partial.path, self._path.parent
        asides = sorted(folder.glob(f"{glob.escape(partial.name)}.[0-9]*"))
        if self._path.name == f"{self.session}{SESSION_FILE_SUFFIX}":
            # Beside a file with a name of somebody's choice, a number may mean anything.
            asides += sorted(folder.glob(f"{self._path.name}.[0-9]*"))
        # An empty one is only there to be locked.
        partials = [partial] if self._partial.size else []
        return (
            [self._path, *partials, *asides] if self._finished is not None else [partial, *asides]
        )


class FileStore(LogStore):
    """Logs as `<id>.jsonl`, unfinished ones as `<id>.jsonl.__partial__`, and `blobs/` beside them.

    Args:
        directory: Where they stand, made when it is first written to; by default `sessions_dir()`
            as it is now.
        elsewhere: Logs that stand under another name, by their session.
    """

    name = "files"
    _noun = "session file"
    _follow_seconds = 0.1
    """Short for a reader, long for a disk."""

    def __init__(
        self, directory: StrPath | None = None, *, elsewhere: Mapping[UUID, Path] | None = None
    ) -> None:
        self.directory: Path = Path(
            os.path.abspath(sessions_dir() if directory is None else directory)
        )
        self.where: str = str(self.directory)
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

    def _place(self, session: UUID) -> str:
        return str(self.path(session))

    def _lock(self, session: UUID, *, make: bool = False) -> FileDriver | None:
        path = self.path(session)
        if make:
            ensure_private(path.parent)
        elif not (path.exists() or partial_path_of(path).exists() or self._trash.last(path)):
            return None
        partial = _locked(partial_path_of(path), session)
        try:
            finished = _existing(path, session)
        except BaseException:
            partial.close()
            raise
        return FileDriver(session, path, self._trash, partial, finished)

    def replace(self, session: UUID, *, backs_up: bool = False) -> Log:
        """Begin a log that takes the place of the one of that session once it is finished.

        What a writer that was cut off has left is kept beside it, under another name.

        Args:
            session: Whose log.
            backs_up: Keep the finished file that it replaces as `<path>.<number>`, and log a
                warning; by default that file is gone.

        Raises:
            PersistenceError: It is being written, or it cannot be.
        """
        path = self.path(session)
        ensure_private(path.parent)
        partial = _locked(partial_path_of(path), session)
        driver = FileDriver(session, path, self._trash, partial, backs_up=backs_up)
        with self._changing(driver, session):
            driver.truncate(0)
        return Log(driver)

    def append_to_finished(
        self, session: UUID, size: int, data: bytes, *, blobs: Collection[Blob] = ()
    ) -> bool:
        path = self.path(session)
        file = _existing(path, session)
        if file is None:
            partial = partial_path_of(path)
            if not partial.exists():
                raise self._missing(session)
            raise PersistenceError(f"{path} is not finished: it goes on in {partial}")
        with os_errors(path, "cannot be written", "; it is as it was"), contextlib.closing(file):
            if file.size != size:
                return False
            with self._blobs.holding(blobs):
                try:
                    file.write(data)
                    os.fsync(file.fd)
                except BaseException:
                    os.ftruncate(file.fd, size)
                    raise
        return True

    def read(self, session: UUID) -> StoredLog | None:
        final = self.path(session)
        partial = partial_path_of(final)
        # The finished one twice: it may get its name between the first look and the second.
        for path in (final, partial, final):
            data = _content(path, is_final=path is final)
            if data or (data is not None and path is final):
                return StoredLog(session, data, path is final, str(path))
        return None

    def holds(self, session: UUID) -> bool:
        final = self.path(session)
        with contextlib.suppress(FileNotFoundError):
            # An empty one is only there to be locked.
            return final.exists() or partial_path_of(final).stat().st_size > 0 or final.exists()
        return final.exists()

    def stamp(self, session: UUID) -> str | None:
        """Return the stamp of one log, as `stamps` has it, None where there is none."""
        final = self.path(session)
        for path in (final, partial_path_of(final)):
            with os_errors(path, "cannot be read"), contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode) and (path is final or status.st_size):
                    return _stamp(status, is_finished=path is final)
        return None

    def stamps(self) -> Mapping[UUID, str]:
        stamps_of: dict[UUID, str] = {}
        with os_errors(self.directory, "cannot be read"), contextlib.suppress(FileNotFoundError):
            for session, file, is_finished in self._list_logs():
                try:
                    status = file.stat()
                except FileNotFoundError:
                    continue
                # The finished one is read where both are there; an empty partial one is no log yet.
                is_log = is_finished or (status.st_size and session not in stamps_of)
                if is_log and stat.S_ISREG(status.st_mode):
                    stamps_of[session] = _stamp(status, is_finished=is_finished)
        return stamps_of

    def is_being_written(self, session: UUID) -> bool:
        return self.writer_of(session) is not None

    def writer_of(self, session: UUID) -> str | None:
        partial = partial_path_of(self.path(session))
        with os_errors(partial, "cannot be read"), contextlib.suppress(FileNotFoundError):
            fd = os.open(partial, os.O_RDONLY)
            try:
                lock = FileLock(fd, kind="shared")
                is_free = lock.acquire()
                lock.release()
                return None if is_free else lock_holder(fd)
            finally:
                os.close(fd)
        return None

    def empty_trash(self) -> int:
        n_removed = self._trash.empty()
        self._blobs.sweep()
        return n_removed

    def blob(self, digest: str) -> bytes | None:
        return self._blobs.read(digest)

    def _list_logs(self) -> Iterator[tuple[UUID, Path | os.DirEntry[str], bool]]:
        for session, path in self._elsewhere.items():
            yield session, partial_path_of(path), False
            yield session, path, True
        with os.scandir(self.directory) as entries:
            for entry in entries:
                suffix = entry.name[_ID_CHARACTERS:]
                if suffix in {SESSION_FILE_SUFFIX, SESSION_PARTIAL_SUFFIX}:
                    try:
                        session = msgspec.convert(entry.name[:_ID_CHARACTERS], UUID)  # fast
                    except ValueError:
                        continue
                    yield session, entry, suffix == SESSION_FILE_SUFFIX


def file_store(url: str) -> FileStore:
    """Return the store of the directory that a URL names: `files:///var/lib/sessions`.

    Raises:
        ValueError: It names a host, or no directory.
    """
    parts = urlsplit(url)
    if parts.netloc or not parts.path:
        raise ValueError(
            f"{url!r} names no directory of this machine; write files:// and an absolute path, as "
            "in files:///var/lib/sessions"
        )
    path = unquote(parts.path)
    if sys.platform == "win32":  # There a drive stands behind the slash.
        path = path.lstrip("/")
    return FileStore(path)


def read_consistent(path: Path) -> bytes:
    """Read a file that may grow meanwhile, until its size and identity are stable.

    A log that gets another name while it is read has grown by then: what was read is not what it
    was under the name that was asked for.

    Raises:
        OSError: It is not there, or cannot be read.
        PersistenceError: It is no file, but a device or a pipe, say.
    """
    while True:
        before, data, after = _status(path), path.read_bytes(), os.stat(path)
        if os.path.samestat(before, after) and after.st_size == len(data):
            return data


def _stamp(status: os.stat_result, *, is_finished: bool) -> str:
    state = "finished" if is_finished else "partial"
    return f"{state}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"


def _content(path: Path, *, is_final: bool) -> bytes | None:
    """Return the bytes of a file, None where there is none."""
    with os_errors(path, "cannot be read"), contextlib.suppress(FileNotFoundError):
        if is_final:
            return read_consistent(path)
        _status(path)
        return path.read_bytes()
    return None


def _status(path: Path) -> os.stat_result:
    """Return the status of a file; refuse what is none, and might never end."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise PersistenceError(f"{path} cannot be read: it is no file")
    return status


def _locked(path: Path, session: UUID) -> LockedFile:
    """Return a file that is made where it is missing."""
    with os_errors(path, "cannot be written"):
        return LockedFile(path, session, make=True)


def _existing(path: Path, session: UUID) -> LockedFile | None:
    """Return a file, None where there is none."""
    with os_errors(path, "cannot be written"), contextlib.suppress(FileNotFoundError):
        return LockedFile(path, session)
    return None


def _numbered(path: Path) -> Iterator[Path]:
    """Yield `<path>.1`, `<path>.2` and so on."""
    return (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))


def _back_up(path: Path) -> Path | None:
    """Give the file at `path` a second name, the first `<path>.<number>` that is free.

    The first name stays until another file takes it, so that readers always find one.

    Returns:
        The second name, None where there is no file.

    Raises:
        OSError: It cannot have one.
    """
    for backup in _numbered(path):
        try:
            _link(path, backup)
        except FileNotFoundError:
            break
        except FileExistsError:
            continue
        return backup
    return None


def _link(path: Path, name: Path) -> None:
    """Give a file a second name, which never replaces another file; a copy without hard links."""
    try:
        os.link(path, name)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:
        data = path.read_bytes()
        with os.fdopen(os.open(name, _NEW_FILE, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
