"""A sandbox backend in memory."""

from __future__ import annotations

import itertools
import posixpath
import shlex
import stat
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from rath._core.blobs import Blob
from rath.backend.abc import Backend, BackendSandbox, BackendSandboxSpec, SandboxIdentity
from rath.backend.capabilities import Capabilities, IsolationLevel
from rath.backend.changes import FileState, Manifest, manifest_digest
from rath.backend.effects import note_effect
from rath.backend.file_tools import OutsideWorkspace, run_file_tool, write_effect
from rath.backend.results import CommandResult, FileEntry, ToolExecutionFailure, ToolResult
from rath.backend.snapshots import (
    FrozenWorkspace,
    Origin,
    Seed,
    SeedSnapshot,
    SnapshotLineage,
    UnopenedFiles,
    WorkspaceSnapshot,
)
from rath.backend.tool_types import (
    ALL_CALLS,
    BackendTool,
    BackendToolCodeRun,
    BackendToolCommandRun,
    FileTool,
)

__all__ = ["CommandAnswer", "FakeBackend", "FakeSandbox"]

T = TypeVar("T")

CommandAnswer: TypeAlias = (
    "str | CommandResult | ToolExecutionFailure | Callable[[BackendToolCommandRun], CommandAnswer]"
)
"""What a scripted command does: print a text, give a result, fail, or decide by its payload."""

_ROOT = "/workspace"


@dataclass(eq=False, slots=True)
class FakeSandbox:
    """A sandbox of `FakeBackend`."""

    handle: str
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Content by path, relative to the root; read it, and change it by operations."""

    modes: dict[str, int] = field(default_factory=dict[str, int])
    """Permission bits by path, where they are not 0o644."""

    is_frozen: bool = False
    """Whether frozen files share the two dicts, so that the next change copies them first."""

    lineage: SnapshotLineage[FakeSnapshot] = field(
        default_factory=lambda: SnapshotLineage[FakeSnapshot]()
    )
    """The history of its files."""

    def mode(self, path: str) -> int:
        """Return type and permission bits of a file."""
        return stat.S_IFREG | self.modes.get(path, 0o644)

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Give a file its content and permission bits."""
        self._thaw()
        self.files[path] = data
        self.modes[path] = stat.S_IMODE(mode)

    def remove(self, path: str) -> None:
        """Take a file away; one that is not there is no error."""
        self._thaw()
        self.files.pop(path, None)
        self.modes.pop(path, None)

    def _thaw(self) -> None:
        if self.is_frozen:
            self.files, self.modes, self.is_frozen = dict(self.files), dict(self.modes), False


class FakeSnapshot(WorkspaceSnapshot):
    """Frozen files of a `FakeBackend`."""

    def __init__(
        self, lineage: SnapshotLineage[FakeSnapshot], tree: FakeSandbox | None = None
    ) -> None:
        super().__init__(lineage)
        self._tree = tree or FakeSandbox("")

    @property
    def is_secured(self) -> bool:
        return True

    async def asecure(self) -> None:
        pass

    async def atree(self) -> FakeSandbox:
        """Return the files, not to be changed."""
        return self._tree

    async def ascan(self) -> Manifest:
        tree = await self.atree()
        return {
            path: FileState(Blob.from_bytes(data).digest, len(data), tree.mode(path))
            for path, data in tree.files.items()
        }

    async def aread(self, path: str) -> bytes:
        files = (await self.atree()).files
        if path not in files:
            raise FileNotFoundError(f"no file at {path!r}")
        return files[path]

    @classmethod
    def require(cls, frozen: FrozenWorkspace) -> FakeSnapshot:
        if not isinstance(frozen, FakeSnapshot):
            raise TypeError("a FakeBackend begins with files that a FakeBackend froze")
        return frozen


class _FakeSeedSnapshot(SeedSnapshot[FakeSnapshot], FakeSnapshot):
    """The files of a sandbox that was not opened yet."""

    base_class = FakeSnapshot

    async def atree(self) -> FakeSandbox:
        base, seed = await self.aresolved()
        return await _copy_of(base, seed)


@dataclass(frozen=True, slots=True)
class _FakeFile:
    """A file that the file tools have opened."""

    sandbox: FakeSandbox
    path: str

    @property
    def size(self) -> int:
        return len(self.sandbox.files[self.path])

    async def read_range(self, offset: int, n_bytes: int) -> bytes:
        return self.sandbox.files[self.path][offset : offset + n_bytes]

    async def replace(self, data: bytes) -> None:
        _put(self.sandbox, self.path, data, self.sandbox.mode(self.path))


@dataclass(frozen=True, slots=True)
class _FakeFiles:
    """The primitives of the file tools on a dict."""

    sandbox: FakeSandbox

    @asynccontextmanager
    async def opened(self, path: str, *, edits: bool = False) -> AsyncGenerator[_FakeFile]:
        name = _relative(path)
        if name not in self.sandbox.files:
            if await self.exists(path):
                raise IsADirectoryError(f"{path!r} is a directory; list it instead")
            raise FileNotFoundError(f"no file at {path!r}")
        yield _FakeFile(self.sandbox, name)

    async def put(self, path: str, data: bytes, mode: int) -> None:
        _put(self.sandbox, _relative(path), data, mode)

    async def entries(self, path: str) -> Iterator[FileEntry]:
        return _entries(self.sandbox, _relative(path))

    async def exists(self, path: str) -> bool:
        name = _relative(path)
        return name in self.sandbox.files or any(_entries(self.sandbox, name))

    async def compute(self, work: Callable[[], T]) -> T:
        return work()


class FakeBackend(Backend):
    """A sandbox backend in memory: files in a dict, commands by script; nothing is executed.

    Commands that are not scripted: `echo`, `cat`, `printenv`, `sleep` and `exit` do what one
    expects without taking time; any other one ends with exit code 127.

    Args:
        commands: What command lines do, by the line.

    Example:
        >>> sandbox = FakeBackend({"make test": "all passed"}).open()
        >>> sandbox.dispatch(BackendToolCommandRun("make test")).stdout
        b'all passed'
        >>> sandbox.backend.close(sandbox)
    """

    name = "fake"
    reads_parts = True

    def __init__(self, commands: Mapping[str, CommandAnswer] | None = None) -> None:
        self._commands = dict(commands or {})
        self._ids = itertools.count(1)
        self._open: list[FakeSandbox] = []
        self._unopened: UnopenedFiles[FakeSnapshot] = UnopenedFiles()
        self.calls: list[BackendTool] = []
        """Every payload so far, in order."""

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(
            IsolationLevel.PROCESS,
            supports_command=True,
            supports_filesystem=True,
            supports_code_interpreter=False,
            supports_workspace_copy=True,
            observes_effects=True,
        )

    @classmethod
    def supported_calls(cls) -> frozenset[type[BackendTool]]:
        return ALL_CALLS - {BackendToolCodeRun}

    def sandbox_count(self) -> int:
        return len(self._open)

    def identity(self, sandbox: BackendSandbox) -> SandboxIdentity:
        return SandboxIdentity(self.name, sandbox.handle, "process", _ROOT, _ROOT)

    async def aopen(self, spec: BackendSandboxSpec | None) -> FakeSandbox:
        sandbox = FakeSandbox(f"{self.name}-{next(self._ids)}")
        self._open.append(sandbox)
        return sandbox

    async def aclose(self, native: FakeSandbox) -> None:
        self._open.remove(native)

    def freeze(self, sandbox: BackendSandbox) -> FrozenWorkspace:
        native: FakeSandbox | None = sandbox.native
        if native is None:
            return self._unopened.freeze(sandbox, _initial_snapshot)
        earlier = self._unopened.lineage(sandbox)
        if earlier is not None:
            native.lineage = earlier
        native.is_frozen = True
        return FakeSnapshot(native.lineage, FakeSandbox("", native.files, native.modes))

    async def aopen_copy(self, seed: Seed, spec: BackendSandboxSpec | None) -> FakeSandbox:
        base = FakeSnapshot.require(seed.frozen)
        sandbox = await _copy_of(base, seed, f"{self.name}-{next(self._ids)}")
        self._open.append(sandbox)
        return sandbox

    async def aworkspace_digest(self, native: FakeSandbox) -> str | None:
        return manifest_digest(await FakeSnapshot(SnapshotLineage(), native).amanifest())

    async def adispatch(self, native: FakeSandbox, op: BackendTool) -> ToolResult | bool:
        self.calls.append(op)
        if isinstance(op, FileTool):
            return await run_file_tool(_FakeFiles(native), op)
        if isinstance(op, BackendToolCommandRun):
            try:
                return self._command(native, op)
            except OutsideWorkspace as exc:
                return ToolExecutionFailure("path_outside_workspace", str(exc), exc.path)
        return ToolExecutionFailure("unsupported_tool", type(op).__name__)

    def _command(self, native: FakeSandbox, op: BackendToolCommandRun) -> ToolResult:
        line = op.cmd if isinstance(op.cmd, str) else shlex.join(op.cmd)
        if line in self._commands:
            answer = self._commands[line]
        else:
            words = line.split() if isinstance(op.cmd, str) else op.cmd
            answer = _unscripted(native, op, words)
        while callable(answer):
            answer = answer(op)
        return _ended(0, answer) if isinstance(answer, str) else answer


def _unscripted(
    native: FakeSandbox, op: BackendToolCommandRun, words: Sequence[str]
) -> CommandAnswer:
    match list(words):
        case ["echo", *rest]:
            return " ".join(rest) + "\n"
        case ["cat"]:
            return CommandResult(0, op.stdin or b"", b"", 0.0)
        case ["cat", path] if _relative(path) in native.files:
            return CommandResult(0, native.files[_relative(path)], b"", 0.0)
        case ["printenv", name] if name in (op.env or {}):
            return (op.env or {})[name] + "\n"
        case ["sleep", seconds]:
            if op.timeout is not None and op.timeout < float(seconds):
                return ToolExecutionFailure("timeout", f"it did not end within {op.timeout:g} s")
            return ""
        case ["exit", code]:
            return _ended(int(code))
        case _:
            return _ended(127, stderr=f"not scripted: {' '.join(words)}\n")


def _ended(exit_code: int, stdout: str = "", stderr: str = "") -> CommandResult:
    return CommandResult(exit_code, stdout.encode(), stderr.encode(), 0.0)


def _initial_snapshot(
    lineage: SnapshotLineage[FakeSnapshot], origin: Origin | None
) -> FakeSnapshot:
    return FakeSnapshot(lineage) if origin is None else _FakeSeedSnapshot(lineage, origin)


async def _copy_of(base: FakeSnapshot, seed: Seed, handle: str = "") -> FakeSandbox:
    tree = await base.atree()
    lineage = SnapshotLineage(base)
    copy = FakeSandbox(handle, tree.files, tree.modes, is_frozen=True, lineage=lineage)
    for path, new in seed.changes.items():
        if new is None:
            copy.remove(path)
        else:
            copy.put(path, new.data, new.mode)
    return copy


def _put(native: FakeSandbox, path: str, data: bytes, mode: int) -> None:
    is_new = path not in native.files
    before = None if is_new else Blob.from_bytes(native.files[path])
    before_mode = None if is_new else native.mode(path)
    native.put(path, data, mode)
    effect = write_effect(path, before, before_mode, Blob.from_bytes(data), native.mode(path))
    if effect is not None:
        note_effect(effect)


def _entries(native: FakeSandbox, directory: str) -> Iterator[FileEntry]:
    above = "" if directory == "." else directory + "/"
    below = [path.removeprefix(above) for path in native.files if path.startswith(above)]
    for name in sorted({path.partition("/")[0] for path in below}):
        yield FileEntry(name, posixpath.join(_ROOT, above, name), name not in below)


def _relative(path: str) -> str:
    whole = posixpath.normpath(posixpath.join(_ROOT, path))
    if whole != _ROOT and not whole.startswith(_ROOT + "/"):
        raise OutsideWorkspace(path, _ROOT)
    return posixpath.relpath(whole, _ROOT)
