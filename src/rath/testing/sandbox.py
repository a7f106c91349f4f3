"""A sandbox backend in memory."""

from __future__ import annotations

import itertools
import posixpath
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rath._core.blobs import Blob
from rath.backend.abc import Backend, BackendSandbox, BackendSandboxSpec, SandboxIdentity
from rath.backend.capabilities import Capabilities, IsolationLevel
from rath.backend.effects import EffectKind, FileEffect, note_effect
from rath.backend.results import (
    CommandResult,
    FileContent,
    FileEntries,
    FileEntry,
    FileWriteResult,
    ToolExecutionFailure,
    ToolResult,
    tool_failure_from,
)
from rath.backend.tool_types import (
    BackendTool,
    BackendToolCommandRun,
    BackendToolFilesExists,
    BackendToolFilesList,
    BackendToolFilesRead,
    BackendToolFilesWrite,
)

__all__ = ["CommandAnswer", "FakeBackend", "FakeSandbox"]

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
    """Content by path, relative to the root."""


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
        self.calls: list[BackendTool] = []
        """Every payload so far, in order."""

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(IsolationLevel.PROCESS, True, True, False)

    @classmethod
    def supported_calls(cls) -> frozenset[type[BackendTool]]:
        return frozenset(
            {
                BackendToolCommandRun,
                BackendToolFilesExists,
                BackendToolFilesList,
                BackendToolFilesRead,
                BackendToolFilesWrite,
            }
        )

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

    async def adispatch(self, native: FakeSandbox, op: BackendTool) -> ToolResult | bool:
        self.calls.append(op)
        try:
            match op:
                case BackendToolCommandRun():
                    return self._command(native, op)
                case BackendToolFilesRead():
                    data = native.files[_relative(op.path)]
                    return FileContent(data if op.encoding is None else data.decode(op.encoding))
                case BackendToolFilesWrite():
                    return _write(native, op)
                case BackendToolFilesList():
                    return FileEntries(tuple(_entries(native, _relative(op.path))))
                case BackendToolFilesExists():
                    path = _relative(op.path)
                    return path in native.files or any(_entries(native, path))
                case _:
                    return ToolExecutionFailure("unsupported_tool", type(op).__name__)
        except KeyError as exc:
            return ToolExecutionFailure("file_not_found", f"no file at {exc}")
        except PermissionError as exc:
            return tool_failure_from("path_outside_workspace", exc)
        except UnicodeDecodeError as exc:
            return tool_failure_from("decode_error", exc)

    def _command(self, native: FakeSandbox, op: BackendToolCommandRun) -> ToolResult:
        line = op.cmd if isinstance(op.cmd, str) else shlex.join(op.cmd)
        if line in self._commands:
            answer = self._commands[line]
        else:
            answer = _unscripted(native, op, line.split())
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
            return (op.stdin or b"").decode()
        case ["cat", path] if _relative(path) in native.files:
            return native.files[_relative(path)].decode()
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


def _write(native: FakeSandbox, op: BackendToolFilesWrite) -> FileWriteResult:
    path = _relative(op.path)
    data = op.data.encode() if isinstance(op.data, str) else op.data
    before = Blob.from_bytes(native.files[path]) if path in native.files else None
    native.files[path] = data
    after = Blob.from_bytes(data)
    if before != after:
        kind: EffectKind = "created" if before is None else "changed"
        note_effect(FileEffect(path, kind, before, after))
    return FileWriteResult(len(data))


def _entries(native: FakeSandbox, directory: str) -> Iterator[FileEntry]:
    above = "" if directory == "." else directory + "/"
    below = [path.removeprefix(above) for path in native.files if path.startswith(above)]
    for name in sorted({path.partition("/")[0] for path in below}):
        yield FileEntry(name, posixpath.join(_ROOT, above, name), name not in below)


def _relative(path: str) -> str:
    whole = posixpath.normpath(posixpath.join(_ROOT, path))
    if whole != _ROOT and not whole.startswith(_ROOT + "/"):
        raise PermissionError(f"{path!r} leads out of the workspace {_ROOT!r}")
    return posixpath.relpath(whole, _ROOT)
