"""The files of a sandbox through the API of its server: primitives for the file tools."""

from __future__ import annotations

import os
import posixpath
import shlex
import stat
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath.backend.effects import is_observed, note_effect, note_gap
from rath.backend.file_tools import (
    MAX_READ_BYTES,
    OutsideWorkspace,
    run_file_tool,
    write_effect,
)
from rath.backend.opensandbox.connection import ROOT, Broken, RequestRefused
from rath.backend.opensandbox.processes import (
    CLEANUP_SECONDS,
    CommandLine,
    path_batches,
    run_line,
)
from rath.backend.results import FileEntry, ToolExecutionFailure, ToolResult
from rath.backend.snapshots import NewFile, missing_file
from rath.backend.tool_types import FileTool

if TYPE_CHECKING:
    from rath.backend.opensandbox.client import Client, RemoteEntry
    from rath.backend.opensandbox.sandbox import RemoteSandbox

FILE_SECONDS = 60.0
"""How long a command that reads or writes files of the workspace may take; a guess."""

_REMOVE = (
    'for each; do if [ -d "$each" ] && [ ! -L "$each" ]; then rmdir -- "$each"; '
    'else rm -f -- "$each"; fi || exit 1; done'
)

T = TypeVar("T")


# ---------------------------------------------------------------- paths


def absolute(path: str) -> str:
    """Return the absolute path of the sandbox for a path of a caller.

    An absolute path stays as it is; another one starts at the workspace.

    Raises:
        OutsideWorkspace: A relative path leads out by `..`; links are not looked at.
    """
    if path.startswith("/"):
        return path
    joined = posixpath.normpath(posixpath.join(ROOT, path or "."))
    if not is_in_workspace(joined):
        raise OutsideWorkspace(path, ROOT)
    return joined


def is_in_workspace(path: str) -> bool:
    """Return whether an absolute path is the workspace or in it, by its names alone."""
    return f"{posixpath.normpath(path)}/".startswith(f"{ROOT}/")


def relative(path: str) -> str:
    """Return an absolute path of the workspace relative to it, any other one as it is."""
    return posixpath.relpath(path, ROOT) if is_in_workspace(path) else path


async def resolve(client: Client, path: str) -> str | None:
    """Return the path with links followed, None where that is not known.

    The file need not be there. One request where no link is in the way and the file is there.

    Args:
        client: Of the sandbox.
        path: Absolute, without `..`.
    """
    paths = [path]
    while paths[0] not in ("/", ROOT):
        paths.insert(0, posixpath.dirname(paths[0]))
    del paths[0]  # the workspace, or the root
    while paths:
        try:
            entries = await client.info(paths)
        except RequestRefused as exc:
            if not exc.is_missing_file:
                raise
            paths.pop()
            continue
        if all(each.kind != "symlink" for each in entries):
            break
        line = CommandLine(f"readlink -fn -- {shlex.quote(paths[-1])}", CLEANUP_SECONDS, "/")
        ran = await run_line(client, line)
        try:
            target = ran.streams.stdout.decode()
        except UnicodeDecodeError:
            return None
        if ran.exit_code != 0 or not target.startswith("/"):
            return None
        return posixpath.normpath(target + path[len(paths[-1]) :])
    return path


# ---------------------------------------------------------------- file tools


async def run_file_operation(
    sandbox: RemoteSandbox, client: Client, op: FileTool
) -> ToolResult | bool:
    """Run one operation; raises `RemoteError`, refusals of the server are failures."""
    try:
        return await run_file_tool(RemoteFiles(sandbox, client), op)
    except RequestRefused as exc:
        if exc.is_missing_file:
            return ToolExecutionFailure("os_error", str(exc), op.path)
        return ToolExecutionFailure("sandbox_sdk_error", str(exc), exc.code)


class RemoteFiles:
    """The files of a sandbox, as `rath.backend.file_tools` uses them."""

    def __init__(self, sandbox: RemoteSandbox, client: Client) -> None:
        self.sandbox = sandbox
        self.client = client

    async def compute(self, work: Callable[[], T]) -> T:
        """Run work that takes the processor in a worker."""
        return await runtime().call_in_worker(work)

    @asynccontextmanager
    async def opened(self, path: str, *, edits: bool = False) -> AsyncGenerator[RemoteFile]:
        """Find a file; with `edits` nobody else writes to it inside the block."""
        place = _normal(path)
        if not edits:
            yield await self._find(path, place, edits=False)
            return
        async with self.sandbox.writes.writing():
            target = await resolve(self.client, place)
            if target is None:
                raise OSError(f"where {path!r} leads could not be told; name the file itself")
            async with self.sandbox.path_lock(target):
                yield await self._find(path, target, edits=True)

    async def put(self, path: str, data: bytes, mode: int) -> None:
        """Write a file and the directories above it."""
        place = _normal(path)
        client, sandbox = self.client, self.sandbox
        async with sandbox.writes.writing():
            is_noted = is_observed() or sandbox.writes.is_recording
            target = await resolve(client, place) if is_noted else None
            async with sandbox.path_lock(target or place):
                if target is None:
                    await client.write(place, data, mode)
                    sandbox.contents.add(Blob.from_bytes(data))
                    if is_noted:
                        note_gap(f"{place!r} was written, and where it leads could not be told")
                    return
                entry, before, is_known = await _optional_info(client, target), None, True
                if entry is not None:
                    if entry.kind == "directory":
                        raise IsADirectoryError(f"{path!r} is a directory; name a file in it")
                    content = await _read(client, entry)
                    is_known = len(content) <= MAX_READ_BYTES
                    before = Blob.from_bytes(content) if is_known else None
                await client.write(target, data, mode)
                before_mode = None if entry is None else entry.mode
                self.note_write(target, before, before_mode, data, mode, is_known=is_known)

    async def entries(self, path: str) -> Iterable[FileEntry]:
        """Return the entries of a directory, in any order."""
        return [
            FileEntry(posixpath.basename(each.path), each.path, each.kind == "directory")
            for each in await self.client.entries(_normal(path))
        ]

    async def exists(self, path: str) -> bool:
        """Return whether a path exists."""
        return await _optional_info(self.client, _normal(path)) is not None

    def note_write(
        self,
        path: str,
        before: Blob | None,
        before_mode: int | None,
        data: bytes,
        mode: int,
        *,
        is_known: bool = True,
    ) -> None:
        """Note the effect of a write for whoever observes.

        Args:
            path: Absolute, with links resolved.
            before: Content before, None where there was no file.
            before_mode: Permission bits before, None where there was no file.
            data: Content afterwards.
            mode: Permission bits afterwards.
            is_known: Whether the content before could be read.
        """
        after = Blob.from_bytes(data)
        for blob in (before, after):
            if blob is not None:
                self.sandbox.contents.add(blob)
        if not is_in_workspace(path):
            note_gap(
                f"{path!r} was written, which is not in the workspace: its effect is not recorded"
            )
            return
        if not is_known:
            note_gap(f"what {path!r} held before is too large to be recorded")
            return
        full_mode = None if before_mode is None else stat.S_IFREG | before_mode
        after_mode = stat.S_IFREG | stat.S_IMODE(mode)
        effect = write_effect(relative(path), before, full_mode, after, after_mode)
        if effect is not None:
            self.sandbox.writes.record(effect)
            note_effect(effect)

    async def _find(self, path: str, place: str, *, edits: bool) -> RemoteFile:
        entry = await _optional_info(self.client, place)
        if entry is None:
            raise FileNotFoundError(f"no file at {path!r}")
        if entry.kind == "directory":
            raise IsADirectoryError(f"{path!r} is a directory; name a file in it")
        if edits and entry.kind != "file":
            raise OSError(f"{path!r} is not a regular file")
        file = RemoteFile(self, entry, entry.size)
        if entry.kind != "file":
            # A link tells its own size.
            file.content = await _read(self.client, entry)
            file.size = len(file.content)
        return file


@dataclass(slots=True)
class RemoteFile:
    """A file of a sandbox that was found."""

    files: RemoteFiles
    entry: RemoteEntry
    size: int
    content: bytes | None = None
    """All of it, where it was fetched; the first bytes of what is too large behind a link."""

    async def read_range(self, offset: int, n_bytes: int) -> bytes:
        """Return at most so many bytes; fewer only at the end of the file."""
        n_bytes = min(n_bytes, self.size - offset)
        if n_bytes <= 0:
            return b""
        if self.content is not None:
            if self.size > MAX_READ_BYTES and n_bytes < self.size:
                raise OSError(
                    f"{self.entry.path!r} leads to more than {MAX_READ_BYTES} bytes; read parts "
                    "of the file that it leads to"
                )
            return self.content[offset : offset + n_bytes]
        if n_bytes == self.size:
            self.content = await self.files.client.read(self.entry.path)
            return self.content
        return await self.files.client.read(self.entry.path, offset, offset + n_bytes - 1)

    async def replace(self, data: bytes) -> None:
        """Write another content; the mode stays."""
        before = await self.read_range(0, self.size)
        entry = self.entry
        await self.files.client.write(entry.path, data, entry.mode)
        self.files.note_write(entry.path, Blob.from_bytes(before), entry.mode, data, entry.mode)


def _normal(path: str) -> str:
    # By names alone as for a relative path: a `..` takes off a name, also that of a link.
    return "/" + posixpath.normpath(absolute(path)).lstrip("/")


async def _optional_info(client: Client, path: str) -> RemoteEntry | None:
    try:
        (entry,) = await client.info([path])
    except RequestRefused as exc:
        if exc.is_missing_file:
            return None
        raise
    return entry


async def _read(client: Client, entry: RemoteEntry) -> bytes:
    """Return the content of a file, the first `MAX_READ_BYTES` + 1 of a longer one."""
    if entry.kind == "file" and entry.size <= MAX_READ_BYTES:
        return await client.read(entry.path) if entry.size else b""
    try:
        return await client.read(entry.path, 0, MAX_READ_BYTES)
    except RequestRefused as exc:
        if exc.status == 416:  # an empty file has no first byte
            return b""
        raise


# ---------------------------------------------------------------- files of a workspace


async def read_content(path: str, client: Client) -> bytes:
    """Return the content of a file, the target of a link.

    Raises:
        FileNotFoundError: There is no such file.
        RemoteError: The sandbox cannot be asked.
    """
    try:
        place = absolute(path.lstrip("/"))
    except OutsideWorkspace as exc:
        raise missing_file(path) from exc
    entry = await _optional_info(client, place)
    if entry is not None and entry.kind == "symlink":
        return await _output(client, f"readlink -n -- {shlex.quote(place)}")
    if entry is None or entry.kind != "file":
        raise missing_file(path)
    return await client.read(place) if entry.size else b""


async def apply_changes(client: Client, changes: Mapping[str, NewFile | None]) -> None:
    """Put new files into the workspace of a sandbox that nobody uses yet, and take others out.

    Raises:
        RemoteError: One of them cannot be written.
    """
    try:
        places = {path: absolute(path.lstrip("/")) for path in changes}
    except OutsideWorkspace as exc:
        raise Broken(str(exc)) from exc
    new = {places[path]: each for path, each in sorted(changes.items()) if each is not None}
    # Removals first: a file may take the place of a directory that becomes empty.
    await _remove(client, sorted(places[path] for path, each in changes.items() if each is None))
    await _remove(client, list(new))
    for place, each in new.items():
        if stat.S_ISLNK(each.mode):
            await client.make_directory(posixpath.dirname(place))
            target = shlex.quote(os.fsdecode(each.data))
            await _output(client, f"ln -s -- {target} {shlex.quote(place)}")
        else:
            await client.write(place, each.data, stat.S_IMODE(each.mode))


async def _remove(client: Client, paths: Sequence[str]) -> None:
    for batch in path_batches(paths):
        await _output(client, f"set -- {shlex.join(batch)}\n{_REMOVE}")


async def _output(client: Client, text: str) -> bytes:
    """Return the output of a command line that must not fail."""
    ran = await run_line(client, CommandLine(text, FILE_SECONDS))
    if ran.exit_code != 0 or ran.loss is not None:
        raise Broken(f"a file of the workspace could not be read or written: {ran.reason()}")
    return ran.streams.stdout
