"""The files of a workspace of this host: primitives of the file tools, each on a worker thread."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from typing import IO, TypeVar

from rath._core.blobs import MAX_BLOB_BYTES, Blob
from rath._core.dataclasses import dataclass
from rath.backend.file_tools import DiskFile, OpenFile, run_file_tool, run_now, write_effect
from rath.backend.host.changes import exact_change
from rath.backend.host.paths import (
    Workspace,
    WorkspacePlace,
    descriptor,
    forget_temporary,
    new_temporary,
)
from rath.backend.results import FileEntry, ToolResult
from rath.backend.tool_types import FileTool

T = TypeVar("T")

_PERMISSIONS = 0o777
"""Bits of a mode that are set: never setuid, setgid or sticky."""

_CHUNK_BYTES = 1 << 20
"""How much is written before a look whether anybody still waits."""

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# A fixed number of locks, shared by paths whose hashes meet: nothing to clean up. One write at a
# time for each path makes effects exact.
_path_locks = tuple(threading.Lock() for _ in range(64))


class Abandoned(Exception):
    """Nobody waits any more for a file tool that had not changed anything yet."""


class CommitPoint:
    """Decides, once, whether a file tool puts its file in place or is abandoned before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_decided = False
        self._is_abandoned = False

    def abandon(self) -> bool:
        """Let it change nothing any more; False where it is changing the file just now."""
        with self._lock:
            if not self._is_decided:
                self._is_decided = self._is_abandoned = True
            return self._is_abandoned

    def pass_by(self) -> None:
        """Say that the file is put in place now; raises `Abandoned` like `check`."""
        with self._lock:
            self._is_decided = True
        self.check()

    def check(self) -> None:
        """Go on unless it was abandoned.

        Raises:
            Abandoned: It was.
        """
        if self._is_abandoned:
            raise Abandoned


def run_host_tool(
    workspace: Workspace, op: FileTool, commit: CommitPoint | None = None
) -> ToolResult | bool:
    """Run one file tool; blocks on the disk. What goes wrong is a value.

    Args:
        workspace: Where it runs.
        op: What is done.
        commit: Lets the caller abandon what writes.

    Raises:
        Abandoned: It was.
    """
    commit = commit or CommitPoint()
    commit.check()
    return run_now(run_file_tool(HostFiles(workspace, commit), op))


@dataclass(frozen=True, slots=True)
class HostFiles:
    """The primitives on one workspace for one operation; none of them ever waits for a loop."""

    workspace: Workspace
    commit: CommitPoint

    @asynccontextmanager
    async def opened(self, path: str, *, edits: bool = False) -> AsyncGenerator[OpenFile]:
        with (
            self.workspace.locate(path) as place,
            self._lock(place) if edits else _NO_LOCK,
            os.fdopen(_open_regular(place, path), "rb") as file,
        ):
            state = os.fstat(file.fileno())
            content = _NewContent(b"", stat.S_IMODE(state.st_mode), self.commit)
            yield _EditableFile(file, state.st_size, place, content)

    async def put(self, path: str, data: bytes, mode: int) -> None:
        with self.workspace.locate(path, make_parents=True) as place:
            if place.name == ".":
                raise IsADirectoryError(f"{path!r} is a directory; name a file in it")
            _write_atomically(place, _NewContent(data, mode, self.commit), self._lock(place))

    async def entries(self, path: str) -> Iterable[FileEntry]:
        with self.workspace.locate(path) as place:
            flags = os.O_RDONLY | os.O_DIRECTORY
            with descriptor(place.open(flags)) as fd, os.scandir(fd) as scan:
                found = [
                    (entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink())
                    for entry in scan
                ]
        return [
            FileEntry(
                name,
                self.workspace.entry_path(path, name),
                is_directory or (is_link and self._leads_to_directory(f"{path}/{name}")),
            )
            for name, is_directory, is_link in found
        ]

    async def compute(self, work: Callable[[], T]) -> T:
        return work()

    async def exists(self, path: str) -> bool:
        try:
            with self.workspace.locate(path) as place:
                os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
        except OSError:
            return False
        return True

    def _leads_to_directory(self, link: str) -> bool:
        try:
            self.workspace.directory(link)
        except (OSError, ValueError):
            return False
        return True

    def _lock(self, place: WorkspacePlace) -> threading.Lock:
        return _path_locks[hash((self.workspace.root, place.relative)) % len(_path_locks)]


_NO_LOCK: AbstractContextManager[None] = contextlib.nullcontext()


@dataclass(frozen=True, slots=True)
class _NewContent:
    """The new content of a file."""

    data: bytes
    mode: int
    commit: CommitPoint


class _EditableFile(DiskFile):
    def __init__(
        self, file: IO[bytes], size: int, place: WorkspacePlace, content: _NewContent
    ) -> None:
        super().__init__(file, size)
        self._place = place
        self._content = content

    async def replace(self, data: bytes) -> None:
        content = replace(self._content, data=data)
        _write_atomically(self._place, content, _NO_LOCK)


def _write_atomically(
    place: WorkspacePlace, content: _NewContent, lock: AbstractContextManager[object]
) -> None:
    """Put a content in place by a rename: a reader, a crash or a hard link never meets a part."""
    temporary = new_temporary(".rath_write_", ".tmp")
    try:
        with descriptor(os.open(temporary, _CREATE, 0o600, dir_fd=place.directory)) as fd:
            left = memoryview(content.data)
            while left:
                content.commit.check()
                left = left[os.write(fd, left[:_CHUNK_BYTES]) :]
            with contextlib.suppress(OSError):
                # The owner of the file that it replaces, where that is allowed.
                old = os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
                owner = (old.st_uid, old.st_gid)
                if stat.S_ISREG(old.st_mode) and owner != (os.geteuid(), os.getegid()):
                    os.fchown(fd, *owner)
            with contextlib.suppress(OSError):
                os.fchmod(fd, content.mode & _PERMISSIONS)
            mode = os.fstat(fd).st_mode
        with lock, exact_change() as change:
            before, before_mode = _content(place) if change.is_wanted else (None, None)
            content.commit.pass_by()
            os.replace(
                temporary, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory
            )
            if change.is_wanted:
                after = Blob.from_bytes(content.data)
                effect = write_effect(place.relative, before, before_mode, after, mode)
                if effect is not None:
                    change.note(effect)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=place.directory)
        raise
    finally:
        forget_temporary(temporary)


def _content(place: WorkspacePlace) -> tuple[Blob | None, int | None]:
    """Return what stands at `place` and its mode, None where there is no file."""
    try:
        fd = _open_regular(place, place.relative)
    except OSError:
        return None, None
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if found.st_size <= MAX_BLOB_BYTES:
            return Blob.from_bytes(file.read()), found.st_mode
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Blob(digest, found.st_size), found.st_mode


def _open_regular(place: WorkspacePlace, path: str) -> int:
    # Opening a device may do something: it is looked at before as well.
    _check_regular(os.stat(place.name, dir_fd=place.directory, follow_symlinks=False), path)
    # A pipe or a device that somebody puts there now must not block us.
    fd = place.open(os.O_RDONLY | os.O_NONBLOCK)
    try:
        _check_regular(os.fstat(fd), path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_regular(found: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(f"{path!r} is a directory; list it instead")
    # A link that was not there a moment ago is refused by the opening, which names the reason.
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISLNK(found.st_mode):
        raise OSError(f"{path!r} is not a regular file")
