"""The file operations of a local sandbox, each on a worker thread."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading

from rath._core.blobs import MAX_BLOB_BYTES, Blob
from rath.backend.effects import EffectKind, FileEffect, is_observed, note_effect
from rath.backend.paths import OutsideWorkspace, Place, Workspace
from rath.backend.results import (
    FileContent,
    FileEntries,
    FileEntry,
    FileWriteResult,
    ToolExecutionFailure,
    ToolResult,
)
from rath.backend.tool_types import (
    BackendToolFilesExists,
    BackendToolFilesList,
    BackendToolFilesRead,
    BackendToolFilesWrite,
)

MAX_READ_BYTES = 8 << 20
"""Largest file that one read returns, in bytes; a guess, far above what a model can take."""

FileTool = (
    BackendToolFilesRead | BackendToolFilesWrite | BackendToolFilesList | BackendToolFilesExists
)

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class FileOperations:
    """Runs file operations; one write at a time for each path, so that effects are exact."""

    def __init__(self) -> None:
        # A fixed number of locks, shared by paths whose hashes meet: nothing to clean up.
        self._locks = tuple(threading.Lock() for _ in range(64))

    def run(self, workspace: Workspace, op: FileTool) -> ToolResult | bool:
        """Run one operation; blocks on the disk. What goes wrong is a value."""
        try:
            match op:
                case BackendToolFilesRead():
                    return _read(workspace, op)
                case BackendToolFilesWrite():
                    return self._write(workspace, op)
                case BackendToolFilesList():
                    return _list(workspace, op.path)
                case BackendToolFilesExists():
                    return _exists(workspace, op.path)
        except OutsideWorkspace as exc:
            return ToolExecutionFailure("path_outside_workspace", str(exc), op.path)
        except FileNotFoundError as exc:
            if not isinstance(op, BackendToolFilesRead):
                return os_failure(exc, op.path)
            message = f"no file at {op.path!r}; list the directory to see what is there"
            return ToolExecutionFailure("file_not_found", message, op.path)
        except (OSError, ValueError) as exc:
            return os_failure(exc, op.path)

    def _write(self, workspace: Workspace, op: BackendToolFilesWrite) -> ToolResult:
        try:
            data = op.data.encode() if isinstance(op.data, str) else op.data
        except UnicodeEncodeError as exc:
            message = f"the text for {op.path!r} is not valid Unicode: {exc.reason}"
            return ToolExecutionFailure("encode_error", message, op.path)
        with workspace.locate(op.path, make_parents=True) as place:
            if place.name == ".":
                raise IsADirectoryError(f"{op.path!r} is a directory; name a file in it")
            lock = self._locks[hash((workspace.root, place.relative)) % len(self._locks)]
            _write_atomically(place, data, op.mode, lock)
        return FileWriteResult(len(data))


def os_failure(exc: OSError | ValueError, path: str) -> ToolExecutionFailure:
    """Return the failure that tells of an error of the operating system at `path`."""
    reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
    message = reason if repr(path) in reason else f"{reason}: {path!r}"
    return ToolExecutionFailure("os_error", message, type(exc).__name__)


def _read(workspace: Workspace, op: BackendToolFilesRead) -> ToolResult:
    with workspace.locate(op.path) as place:
        fd = _open_regular(place, op.path)
        with os.fdopen(fd, "rb") as file:
            data = file.read(MAX_READ_BYTES + 1)
            size = max(os.fstat(fd).st_size, len(data))
    if len(data) > MAX_READ_BYTES:
        return ToolExecutionFailure(
            "file_too_large",
            f"{op.path!r} has {size} bytes, one read returns at most {MAX_READ_BYTES}; read a part "
            "of it with a command",
            op.path,
        )
    if op.encoding is None:
        return FileContent(data)
    return _decoded(data, op.path, op.encoding)


def _decoded(data: bytes, path: str, encoding: str) -> ToolResult:
    try:
        return FileContent(data.decode(encoding))
    except LookupError:
        message = (
            f"there is no text encoding named {encoding!r}; try 'utf-8', or null for raw bytes"
        )
        return ToolExecutionFailure("decode_error", message, encoding)
    except ValueError as exc:
        message = f"{path!r} is not {encoding!r} text ({exc}); read it with null for raw bytes"
        return ToolExecutionFailure("decode_error", message, encoding)


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


def _write_atomically(place: Place, data: bytes, mode: int, lock: threading.Lock) -> None:
    """Put `data` in place by a rename: a reader, a crash or a hard link never meets a part."""
    temporary = f".rath_write_{os.urandom(8).hex()}.tmp"
    fd = os.open(temporary, _CREATE, 0o600, dir_fd=place.directory)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            with contextlib.suppress(OSError):
                os.fchmod(fd, mode)
        with lock:
            _replace(place, temporary, data)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=place.directory)
        raise


def _replace(place: Place, temporary: str, data: bytes) -> None:
    observed = is_observed()
    before = _content(place) if observed else None
    os.replace(temporary, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
    if observed:
        after = Blob.from_bytes(data)
        if after != before:
            kind: EffectKind = "created" if before is None else "changed"
            note_effect(FileEffect(place.relative, kind, before, after))


def _content(place: Place) -> Blob | None:
    """Return what stands at `place`, None where there is no file."""
    try:
        fd = _open_regular(place, place.relative)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        size = os.fstat(fd).st_size
        if size <= MAX_BLOB_BYTES:
            return Blob.from_bytes(file.read())
        return Blob(hashlib.file_digest(file, "sha256").hexdigest(), size)


def _open_regular(place: Place, path: str) -> int:
    # A pipe or a device that somebody put there must not block us.
    fd = place.open(os.O_RDONLY | os.O_NONBLOCK)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(f"{path!r} is a directory; list it instead")
        if not stat.S_ISREG(mode):
            raise OSError(f"{path!r} is not a regular file")
    except BaseException:
        os.close(fd)
        raise
    return fd
