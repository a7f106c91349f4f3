"""The files of a store: opened where they are regular, replaced whole, forced to disk in batches.

A file is written to `.drafts/` and renamed to its place: a reader sees the old note or the new
one, and what a crash leaves behind lies where no listing and no search looks.

A process that is killed loses nothing that it wrote. A power cut or a crash of the operating system
may take the new notes of about the last second, or leave them empty; it never brings an older text
of a note back, because what replaces a note is on disk before the write returns, as is each write
with `wait=True` and all of a store that was closed.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, cast

from rath._core.dataclasses import dataclass
from rath._core.files import StrPath, atomic_write_bytes, sync_directory
from rath.memory.adapters.local.layout import DRAFTS_NAME, NOTE_SUFFIX, Kind, is_draft
from rath.memory.adapters.local.terms import index_terms
from rath.memory.driver import OperationFailed

MAX_FILE_BYTES = 536_870_912
"""Larger files are neither written nor read in one piece."""

MAX_NOTE_BYTES = 262_144
"""Only the first part of a longer note can be found."""

MAX_TRANSCRIPT_BYTES = 16_777_216
"""Longer transcripts cannot be found."""

MAX_SNIPPET_CHARS = 200

STALE_SECONDS = 3600.0
"""Older drafts were left behind by a process that ended; far above what any write takes."""

UNSETTLED = -1
"""Size in the stamp of a file that is to be read again at the next occasion."""

_PROBE_BYTES = 8000
"""As much as git looks at."""

_CHUNK_BYTES = 1_048_576
_FEW = 16
"""Up to so many files are forced to disk one by one; more go with their whole file system."""

_BINARY = getattr(os, "O_BINARY", 0)
_TO_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | _BINARY
_TO_SYNC = os.O_RDWR if sys.platform == "win32" else os.O_RDONLY | os.O_NONBLOCK
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO)
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)


class Stamp(NamedTuple):
    """The state of a file by which a change is noticed."""

    mtime_ns: int
    size: int
    about_ns: int = 0
    """Time of change of the metadata file beside it; 0 when there is none."""

    def is_still(self, other: Stamp) -> bool:
        """Return whether a file is as it was when this was stored, as far as one can tell."""
        return self.mtime_ns == other.mtime_ns and self.size in {other.size, UNSETTLED}


def read_file(
    path: StrPath, limit: int = MAX_FILE_BYTES, *, follow: bool = False
) -> tuple[bytes, os.stat_result] | None:
    """Return the first bytes of a regular file and its state; None where there is none.

    A pipe or a device under the name of a note blocks nobody.

    Args:
        path: The file.
        limit: At most so many bytes; the whole file by default.
        follow: Whether a symbolic link in its place is followed.

    Raises:
        OSError: It is there and cannot be read.
        OperationFailed: The whole of it is more than `MAX_FILE_BYTES`.
    """
    try:
        # Opening some devices has effects of its own, so they are not even opened.
        if not stat.S_ISREG(os.stat(path, follow_symlinks=follow).st_mode):
            return None
        fd = os.open(path, _TO_READ if follow else _TO_READ | _NO_LINK)
    except OSError as exc:
        if exc.errno in _NOTHING_THERE:
            return None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > MAX_FILE_BYTES == limit:
            raise OperationFailed(
                "unsupported",
                f"{os.fspath(path)!r} has {status.st_size} bytes, and at most {MAX_FILE_BYTES} "
                "are read in one piece; read the file by other means",
            )
        data = os.read(fd, min(limit, status.st_size + 1))
        while len(data) != status.st_size and (room := min(limit - len(data), _CHUNK_BYTES)):
            more = os.read(fd, room)
            if not more:
                break
            data += more
        return data, status
    finally:
        os.close(fd)


def read_content(path: StrPath) -> bytes | None:
    """Return the bytes of a regular file, also through a link, as `read_file` does."""
    found = read_file(path, follow=True)
    return None if found is None else found[0]


@dataclass(frozen=True, slots=True)
class Document:
    """A file as it was read: its state and its texts, one for a note, one for each message."""

    stamp: Stamp
    texts: tuple[str, ...]

    def terms(self) -> list[str]:
        """Return the terms under which it is found."""
        terms: list[str] = []
        room = MAX_NOTE_BYTES
        for text in self.texts:
            terms += index_terms(text[:room])
            room -= len(text)
            if room <= 0:
                break
        return terms

    def snippet(self, terms: list[str]) -> str:
        """Return the beginning of the text that has most of the terms."""
        wanted = set(terms)
        texts = self.texts or ("",)
        best = texts[0]
        if len(texts) > 1:
            best = max(texts, key=lambda text: len(wanted.intersection(index_terms(text))))
        body = best.strip()
        return body if len(body) <= MAX_SNIPPET_CHARS else body[:MAX_SNIPPET_CHARS] + "..."


def read_document(path: StrPath, kind: Kind) -> Document | None:
    """Return the document in a file, or None when that is gone or is no regular file.

    Bytes that are not UTF-8 are replaced. A file that cannot be read, a transcript that is not
    JSON, and binary data without the suffix of a note have no texts: one bad file hides no other.
    """
    try:
        found = read_file(path, MAX_NOTE_BYTES if kind == "note" else MAX_TRANSCRIPT_BYTES)
    except OSError:
        try:
            return Document(Stamp(os.lstat(path).st_mtime_ns, UNSETTLED), ())
        except OSError:
            return None
    if found is None:
        return None
    data, status = found
    stamp = Stamp(status.st_mtime_ns, status.st_size)
    if kind == "note":
        is_text = os.fspath(path).endswith(NOTE_SUFFIX) or not is_binary(data)
        return Document(stamp, (note_text(data),) if is_text else ())
    try:
        messages: object = json.loads(data.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        messages = None
    listed = cast("list[object]", messages) if isinstance(messages, list) else []
    return Document(stamp, tuple(filter(None, map(message_text, listed))))


def is_binary(data: bytes) -> bool:
    """Return whether data is no text, by a NUL byte near its beginning, as git decides it."""
    return b"\0" in data[:_PROBE_BYTES]


def note_text(data: bytes) -> str:
    """Return the part of a note that can be found."""
    return data[:MAX_NOTE_BYTES].decode("utf-8", errors="replace")


def message_text(message: object) -> str:
    """Return the text of a user's or an assistant's message; nothing for all others."""
    if not isinstance(message, Mapping):
        return ""
    fields = cast("Mapping[str, object]", message)
    content = fields.get("content")
    if fields.get("role") not in {"user", "assistant"}:
        return ""
    if isinstance(content, str):
        return content
    for parts in (content, fields.get("parts")):
        if isinstance(parts, list):
            return "\n".join(filter(None, map(_part_text, cast("list[object]", parts))))
    return ""


def _part_text(part: object) -> str:
    text = cast("Mapping[str, object]", part).get("text") if isinstance(part, Mapping) else part
    return text if isinstance(text, str) else ""


class Draft:
    """The text of a note in a file of its own, which `place` puts where the note belongs.

    Leaving its `with` block removes a draft that was not placed.

    Args:
        root: Directory of the store.
        data: The bytes of the note.
        mode: Permission bits; what the umask allows by default.
    """

    def __init__(self, root: Path, data: bytes, *, mode: int | None = None) -> None:
        self._data = data
        self._mode = mode
        self._path: str | None = None
        self._is_forced = False
        self._stamp = Stamp(0, 0)
        # In another directory than its place, whose time of change tells of whole notes only.
        place = f"{root}/{DRAFTS_NAME}"
        with suppress(OSError):
            self._write(place)
        if self._path is None:
            with suppress(OSError):
                os.makedirs(place, exist_ok=True)
                self._write(place)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._path is not None:
            with suppress(OSError):
                os.unlink(self._path)

    def force_to_disk(self) -> None:
        """Wait until its bytes are on disk.

        Raises:
            OSError: They may not be.
        """
        if self._path is not None and not self._is_forced:
            try:
                fd = os.open(self._path, os.O_RDWR)
            except FileNotFoundError:
                # Who scrubs the store removed it; `place` writes it again, and forces that to disk.
                self._path = None
                return
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            self._is_forced = True

    def set_mode(self, mode: int) -> None:
        """Give it the permission bits of the note that it replaces."""
        if mode != self._mode:
            self._mode = mode
            if self._path is not None:
                with suppress(FileNotFoundError):
                    os.chmod(self._path, mode)

    def place(self, target: Path) -> Stamp:
        """Rename it to `target`, over what stands there, and return the state of the file."""
        if self._path is not None:
            with suppress(OSError):
                os.replace(self._path, target)
                self._path = None
                return self._stamp
        # Another file system, or no right to make drafts; this raises what stands in the way.
        atomic_write_bytes(target, self._data, mode=self._mode)
        mark_as_ours(target)
        status = os.stat(target)
        return Stamp(status.st_mtime_ns, status.st_size)

    def _write(self, directory: str) -> None:
        path = f"{directory}/.atomic_{os.urandom(8).hex()}.tmp"
        fd = os.open(path, _NEW_FILE, 0o666 if self._mode is None else 0o600)
        self._path = path
        try:
            try:
                rest = memoryview(self._data)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                marked = mark_as_ours(fd if os.utime in os.supports_fd else path)
                changed_at = os.fstat(fd).st_mtime_ns if marked is None else marked
            finally:
                os.close(fd)
            self._stamp = Stamp(changed_at, len(self._data))
            if self._mode is not None:
                os.chmod(path, self._mode)
        except BaseException:
            self._path = None
            with suppress(OSError):
                os.unlink(path)
            raise


def mark_as_ours(path: StrPath | int) -> int | None:
    """Give what rath has to itself a time of change that no later change has by chance.

    Returns:
        That time in nanoseconds; None where the file system or its owner does not allow it.
    """
    now = time.time_ns()
    try:
        os.utime(path, ns=(now, now))
        return now if os.stat(path).st_mtime_ns == now else None
    except OSError:
        return None


def remove_stale_drafts(directory: Path) -> None:
    """Remove the drafts that ended processes left in one directory; best effort."""
    oldest = time.time() - STALE_SECONDS
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if is_draft(entry.name):
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and status.st_mtime < oldest:
                        os.unlink(entry.path)


def sync_notes(root: Path, paths: Collection[str]) -> None:
    """Wait until new notes below `root`, and the directories above them, are on disk.

    Raises:
        OSError: They may not be there; the text says what to do.
    """
    try:
        if len(paths) > _FEW and _sync_file_system(root):
            return
        directories: set[str] = set()
        for path in paths:
            # A file that was replaced or removed since was forced to disk, or need not be there.
            with suppress(FileNotFoundError, NotADirectoryError):
                _sync_file(path)
            directory = os.path.dirname(path)
            while directory not in directories and len(directory) >= len(str(root)):
                directories.add(directory)
                directory = os.path.dirname(directory)
        for directory in directories:
            with suppress(FileNotFoundError, NotADirectoryError):
                sync_directory(directory)
    except OSError as exc:
        raise OSError(
            exc.errno,
            f"{len(paths)} new notes of {root} may not be on disk: {exc}; look after the disk and "
            "write them again",
        ) from exc


def _sync_file(path: str) -> None:
    fd = os.open(path, _TO_SYNC)
    try:
        os.fsync(fd)
    except OSError as exc:
        if exc.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(fd)


def _find_syncfs() -> Callable[[int], int] | None:
    if sys.platform != "linux":
        return None
    try:
        return ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None


_syncfs = _find_syncfs()


def _sync_file_system(root: Path) -> bool:
    """Force all of a file system to disk; False where there is no such call."""
    if _syncfs is None:
        return False
    try:
        fd = os.open(root, os.O_RDONLY)
    except FileNotFoundError:
        # Nobody wants a store that was removed on disk.
        return True
    try:
        if _syncfs(fd) == 0:
            return True
        code = ctypes.get_errno()
        if code in _CANNOT_SYNC:
            return False
        raise OSError(code, os.strerror(code), str(root))
    finally:
        os.close(fd)
