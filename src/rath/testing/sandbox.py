"""A sandbox backend in memory."""

from __future__ import annotations

import itertools
import posixpath
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import ClassVar, TypeAlias
from weakref import WeakKeyDictionary

from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath.backend import results as res
from rath.backend import tool_types as calls
from rath.backend.abc import Backend, BackendSandbox, BackendSandboxSpec, SandboxIdentity
from rath.backend.capabilities import Capabilities, IsolationLevel
from rath.backend.changes import FileState, Manifest, manifest_digest
from rath.backend.effects import EffectKind, FileEffect, note_effect
from rath.backend.file_tools import apply_edit, check_range, decode_content, slice_content
from rath.backend.results import CommandResult, ToolExecutionFailure, ToolResult, tool_failure_from
from rath.backend.snapshots import FrozenWorkspace, Origin, Seed
from rath.backend.tool_types import BackendTool, BackendToolCommandRun

__all__ = ["CommandAnswer", "FakeBackend", "FakeSandbox"]

CommandAnswer: TypeAlias = (
    "str | CommandResult | ToolExecutionFailure | Callable[[BackendToolCommandRun], CommandAnswer]"
)
"""Behaviour of a scripted command: print a text, give a result, fail, or decide by its payload."""

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

    begin: FrozenWorkspace | None = None
    """The frozen files with which it began."""

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


class _FakeFrozen(FrozenWorkspace):
    """Frozen files; those of a sandbox that was not opened yet are found on first use."""

    def __init__(
        self, tree: FakeSandbox, before: FrozenWorkspace | None, origin: Origin | None = None
    ) -> None:
        self._tree = tree
        self._before = before
        self._origin = origin

    async def amanifest(self) -> Manifest:
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

    def base_with(self, other: FrozenWorkspace) -> FrozenWorkspace | None:
        theirs = set(map(id, _history(other)))
        return next((each for each in _history(self) if id(each) in theirs), None)

    @property
    def before(self) -> FrozenWorkspace | None:
        """What was frozen before in the same history, as far as that is known yet."""
        return self._before

    async def atree(self) -> FakeSandbox:
        """Return the files, not to be changed."""
        if self._origin is not None:
            seed = await self._origin()
            self._tree, self._origin = await _copy_of(seed, ""), None
            self._before = self._before or seed.frozen
        return self._tree


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

    def __init__(self, commands: Mapping[str, CommandAnswer] | None = None) -> None:
        self._commands = dict(commands or {})
        self._ids = itertools.count(1)
        self._open: list[FakeSandbox] = []
        self._frozen: WeakKeyDictionary[BackendSandbox, _FakeFrozen] = WeakKeyDictionary()
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
        return frozenset(cls._HANDLERS)

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
        before = self._frozen.get(sandbox) or (None if native is None else native.begin)
        if native is None:
            frozen = _FakeFrozen(FakeSandbox(""), before, sandbox.origin)
        else:
            native.is_frozen = True
            frozen = _FakeFrozen(FakeSandbox("", native.files, native.modes), before)
        self._frozen[sandbox] = frozen
        return frozen

    async def aopen_copy(self, seed: Seed, spec: BackendSandboxSpec | None) -> FakeSandbox:
        sandbox = await _copy_of(seed, f"{self.name}-{next(self._ids)}")
        self._open.append(sandbox)
        return sandbox

    async def aworkspace_digest(self, native: FakeSandbox) -> str | None:
        return manifest_digest(await _FakeFrozen(native, None).amanifest())

    async def adispatch(self, native: FakeSandbox, op: BackendTool) -> ToolResult | bool:
        self.calls.append(op)
        handler = self._HANDLERS.get(type(op))
        if handler is None:
            return ToolExecutionFailure("unsupported_tool", type(op).__name__)
        try:
            return handler(self, native, op)
        except KeyError as exc:
            return ToolExecutionFailure("file_not_found", f"no file at {exc}")
        except PermissionError as exc:
            return tool_failure_from("path_outside_workspace", exc)

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

    def _read(self, native: FakeSandbox, op: calls.BackendToolFilesRead) -> ToolResult:
        data = native.files[_relative(op.path)]
        refusal = check_range(op)
        if refusal is not None:
            return refusal
        content = decode_content(data, op)
        is_part = op.offset > 0 or op.limit is not None
        return (
            slice_content(content, op)
            if is_part and isinstance(content, res.FileContent)
            else content
        )

    def _write(self, native: FakeSandbox, op: calls.BackendToolFilesWrite) -> ToolResult:
        data = op.data.encode() if isinstance(op.data, str) else op.data
        _put(native, _relative(op.path), data, op.mode)
        return res.FileWriteResult(len(data))

    def _edit(self, native: FakeSandbox, op: calls.BackendToolFilesEdit) -> ToolResult:
        path = _relative(op.path)
        after = apply_edit(native.files[path], op)
        if isinstance(after, ToolExecutionFailure):
            return after
        _put(native, path, after.data, native.mode(path))
        return res.FileEditResult(after.n_replaced, after.diff)

    def _list(self, native: FakeSandbox, op: calls.BackendToolFilesList) -> ToolResult:
        return res.FileEntries(tuple(_entries(native, _relative(op.path))))

    def _exists(self, native: FakeSandbox, op: calls.BackendToolFilesExists) -> bool:
        path = _relative(op.path)
        return path in native.files or any(_entries(native, path))

    _HANDLERS: ClassVar[Mapping[type[BackendTool], Callable[..., ToolResult | bool]]] = {
        BackendToolCommandRun: _command,
        calls.BackendToolFilesRead: _read,
        calls.BackendToolFilesWrite: _write,
        calls.BackendToolFilesEdit: _edit,
        calls.BackendToolFilesList: _list,
        calls.BackendToolFilesExists: _exists,
    }


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


async def _copy_of(seed: Seed, handle: str) -> FakeSandbox:
    if not isinstance(seed.frozen, _FakeFrozen):
        raise TypeError("a FakeBackend begins with files that a FakeBackend froze")
    tree = await seed.frozen.atree()
    copy = FakeSandbox(handle, tree.files, tree.modes, is_frozen=True, begin=seed.frozen)
    for path, new in seed.changes.items():
        if new is None:
            copy.remove(path)
        else:
            copy.put(path, new.data, new.mode)
    return copy


def _history(frozen: FrozenWorkspace | None) -> Iterator[FrozenWorkspace]:
    while isinstance(frozen, _FakeFrozen):
        yield frozen
        frozen = frozen.before


def _put(native: FakeSandbox, path: str, data: bytes, mode: int) -> None:
    before = Blob.from_bytes(native.files[path]) if path in native.files else None
    before_mode = native.mode(path) if before is not None else None
    native.put(path, data, mode)
    after, after_mode = Blob.from_bytes(data), native.mode(path)
    if (before, before_mode) != (after, after_mode):
        kind: EffectKind = "created" if before is None else "changed"
        effect = FileEffect(
            path, kind, before, after, before_mode=before_mode, after_mode=after_mode
        )
        note_effect(effect)


def _entries(native: FakeSandbox, directory: str) -> Iterator[res.FileEntry]:
    above = "" if directory == "." else directory + "/"
    below = [path.removeprefix(above) for path in native.files if path.startswith(above)]
    for name in sorted({path.partition("/")[0] for path in below}):
        yield res.FileEntry(name, posixpath.join(_ROOT, above, name), name not in below)


def _relative(path: str) -> str:
    whole = posixpath.normpath(posixpath.join(_ROOT, path))
    if whole != _ROOT and not whole.startswith(_ROOT + "/"):
        raise PermissionError(f"{path!r} leads out of the workspace {_ROOT!r}")
    return posixpath.relpath(whole, _ROOT)
