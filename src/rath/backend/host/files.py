"""The file operations of a local sandbox, each on a worker thread."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass

from rath._core.blobs import MAX_BLOB_BYTES, Blob
from rath.backend.edit import edited
from rath.backend.effects import EffectKind, FileEffect
from rath.backend.host.paths import OutsideWorkspace, Place, Workspace
from rath.backend.host.temporaries import forget_temporary, new_temporary
from rath.backend.host.tree import exact_change
from rath.backend.parts import MAX_READ_BYTES, read_part
from rath.backend.results import (
    FileEditResult,
    FileEntries,
    FileEntry,
    FileWriteResult,
    ToolExecutionFailure,
    ToolResult,
)
from rath.backend.tool_types import (
    BackendToolFilesEdit,
    BackendToolFilesExists,
    BackendToolFilesList,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    FileTool,
)

_PERMISSIONS = 0o777
"""Bits of a mode that are set: never setuid, setgid or sticky."""

_CHUNK_BYTES = 1 << 20
"""How much is written before a look whether anybody still waits."""

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class GivenUp(Exception):
    """Nobody waits any more for a file tool that had not changed anything yet."""


class Landing:
    """Decides, once, whether a file tool puts its file in place or is given up before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_decided = False
        self._is_given_up = False

    def give_up(self) -> bool:
        """Let it change nothing any more; False where it is changing the file just now."""
        with self._lock:
            if not self._is_decided:
                self._is_decided = self._is_given_up = True
            return self._is_given_up

    def decide(self) -> None:
        """Say that the file is put in place now.

        Raises:
            GivenUp: It was given up.
        """
        with self._lock:
            self._is_decided = True
        self.check()

    def check(self) -> None:
        """Go on unless it was given up.

        Raises:
            GivenUp: It was.
        """
        if self._is_given_up:
            raise GivenUp


class FileOperations:
    """Runs file operations; one write at a time for each path, so that effects are exact."""

    def __init__(self) -> None:
        # A fixed number of locks, shared by paths whose hashes meet: nothing to clean up.
        self._locks = tuple(threading.Lock() for _ in range(64))

    def run(
        self, workspace: Workspace, op: FileTool, landing: Landing | None = None
    ) -> ToolResult | bool:
        """Run one operation; blocks on the disk. What goes wrong is a value.

        Args:
            workspace: Where it runs.
            op: What is done.
            landing: Lets the caller give up what writes.

        Raises:
            GivenUp: It was given up.
        """
        landing = landing or Landing()
        landing.check()
        try:
            match op:
                case BackendToolFilesRead():
                    return _read(workspace, op)
                case BackendToolFilesWrite():
                    return self._write(workspace, op, landing)
                case BackendToolFilesEdit():
                    return self._edit(workspace, op, landing)
                case BackendToolFilesList():
                    return _list(workspace, op.path)
                case BackendToolFilesExists():
                    return _exists(workspace, op.path)
        except OutsideWorkspace as exc:
            return ToolExecutionFailure("path_outside_workspace", str(exc), op.path)
        except FileNotFoundError as exc:
            if not isinstance(op, BackendToolFilesRead | BackendToolFilesEdit):
                return os_failure(exc, op.path)
            message = f"no file at {op.path!r}; list the directory to see what is there"
            return ToolExecutionFailure("file_not_found", message, op.path)
        except (OSError, ValueError) as exc:
            return os_failure(exc, op.path)

    def _write(
        self, workspace: Workspace, op: BackendToolFilesWrite, landing: Landing
    ) -> ToolResult:
        try:
            data = op.data.encode() if isinstance(op.data, str) else op.data
        except UnicodeEncodeError as exc:
            message = f"the text for {op.path!r} is not valid Unicode: {exc.reason}"
            return ToolExecutionFailure("encode_error", message, op.path)
        with workspace.locate(op.path, make_parents=True) as place:
            if place.name == ".":
                raise IsADirectoryError(f"{op.path!r} is a directory; name a file in it")
            content = _Content(data, op.mode, landing)
            _write_atomically(place, content, self._lock(workspace, place))
        return FileWriteResult(len(data))

    def _edit(self, workspace: Workspace, op: BackendToolFilesEdit, landing: Landing) -> ToolResult:
        with workspace.locate(op.path) as place, self._lock(workspace, place):
            with os.fdopen(_open_regular(place, op.path), "rb") as file:
                data = file.read(MAX_READ_BYTES + 1)
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if len(data) > MAX_READ_BYTES:
                message = f"{op.path!r} has more than {MAX_READ_BYTES} bytes; edit it by a command"
                return ToolExecutionFailure("file_too_large", message, op.path)
            after = edited(data, op)
            if isinstance(after, ToolExecutionFailure):
                return after
            content = _Content(after.data, mode, landing)
            _write_atomically(place, content, contextlib.nullcontext())
        return FileEditResult(after.n_replaced, after.diff)

    def _lock(self, workspace: Workspace, place: Place) -> threading.Lock:
        return self._locks[hash((workspace.root, place.relative)) % len(self._locks)]


def os_failure(exc: OSError | ValueError, path: str) -> ToolExecutionFailure:
    """Return the failure that tells of an error of the operating system at `path`."""
    reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
    message = reason if repr(path) in reason else f"{reason}: {path!r}"
    return ToolExecutionFailure("os_error", message, type(exc).__name__)


def _read(workspace: Workspace, op: BackendToolFilesRead) -> ToolResult:
    with (
        workspace.locate(op.path) as place,
        os.fdopen(_open_regular(place, op.path), "rb") as file,
    ):
        return read_part(file, op)


def _list(workspace: Workspace, path: str) -> FileEntries:
    with workspace.locate(path) as place:
        fd = place.open(os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(fd) as scan:
                found = [
                    (entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink())
                    for entry in scan
                ]
        finally:
            os.close(fd)
    return FileEntries(
        tuple(
            FileEntry(
                name,
                workspace.shown(path, name),
                is_dir or (is_link and _leads_to_directory(workspace, path, name)),
            )
            for name, is_dir, is_link in sorted(found)
        )
    )


def _leads_to_directory(workspace: Workspace, path: str, link: str) -> bool:
    try:
        workspace.directory(f"{path}/{link}")
    except (OSError, ValueError):
        return False
    return True


def _exists(workspace: Workspace, path: str) -> bool:
    try:
        with workspace.locate(path) as place:
            os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Content:
    """What becomes of a file."""

    data: bytes
    mode: int
    landing: Landing


def _write_atomically(
    place: Place, content: _Content, lock: AbstractContextManager[object]
) -> None:
    """Put a content in place by a rename: a reader, a crash or a hard link never meets a part."""
    temporary = new_temporary(".rath_write_", ".tmp")
    try:
        fd = os.open(temporary, _CREATE, 0o600, dir_fd=place.directory)
        with os.fdopen(fd, "wb", buffering=0) as file:
            _write_all(file.fileno(), content)
            _keep_owner(file.fileno(), place)
            with contextlib.suppress(OSError):
                os.fchmod(fd, content.mode & _PERMISSIONS)
        with lock:
            _replace(place, temporary, content)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=place.directory)
        raise
    finally:
        forget_temporary(temporary)


def _write_all(fd: int, content: _Content) -> None:
    left = memoryview(content.data)
    while left:
        content.landing.check()
        left = left[os.write(fd, left[:_CHUNK_BYTES]) :]


def _keep_owner(fd: int, place: Place) -> None:
    """Give a new file the owner of the one that it replaces, where that is allowed."""
    with contextlib.suppress(OSError):
        old = os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
        if stat.S_ISREG(old.st_mode) and (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(fd, old.st_uid, old.st_gid)


def _replace(place: Place, temporary: str, content: _Content) -> None:
    with exact_change() as change:
        if not change.is_wanted:
            content.landing.decide()
            _rename(place, temporary)
            return
        before, before_mode = _content(place)
        mode = os.stat(temporary, dir_fd=place.directory, follow_symlinks=False).st_mode
        after = Blob.from_bytes(content.data)
        content.landing.decide()
        _rename(place, temporary)
        if (after, mode) != (before, before_mode):
            kind: EffectKind = "created" if before is None else "changed"
            change.note(
                FileEffect(
                    place.relative, kind, before, after, before_mode=before_mode, after_mode=mode
                )
            )


def _rename(place: Place, temporary: str) -> None:
    os.replace(temporary, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)


def _content(place: Place) -> tuple[Blob | None, int | None]:
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


def _open_regular(place: Place, path: str) -> int:
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
