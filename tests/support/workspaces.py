"""Sandboxes with a workspace of their own, and short ways to use any."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from rath._async.runtime import runtime
from rath.backend import (
    Backend,
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolCommandRun,
    BackendToolFilesExists,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    CommandResult,
    FileContent,
    FileWriteResult,
    ToolExecutionFailure,
)
from rath.backend.changes import Manifest
from rath.backend.local import LocalBackend
from rath.backend.persistence.paths import forks_root
from rath.backend.snapshots import FrozenWorkspace, NewFile, Origin, Seed, WorkspaceSnapshot
from rath.errors import BackendError
from tests.support.waiting import PATIENCE

T = TypeVar("T")


class CopyingBackend(LocalBackend):
    """Copies where others mount an overlay."""

    mounts_layers = False


def wait_for(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return runtime().run(make, label="a test")


def origin_of(
    frozen: FrozenWorkspace, changes: Mapping[str, NewFile | None] | None = None
) -> Origin:
    async def origin() -> Seed:
        return Seed(frozen, changes or {})

    return origin


_held: list[weakref.ref[BackendSandbox]] = []
"""Not held themselves: some tests look at what goes with the last holder."""


def close_all() -> None:
    """Close what `opened`, `forked` and `begun` gave since the last time."""
    while _held:
        sandbox = _held.pop()()
        if sandbox is not None:
            with suppress(BackendError):  # a test may have broken it
                sandbox.backend.close(sandbox)


def opened(backend: Backend, directory: Path | None = None) -> BackendSandbox:
    given = None if directory is None else str(directory)
    sandbox = backend.lazy(BackendSandboxSpec(working_dir=given)).acquire()
    _held.append(weakref.ref(sandbox))
    return sandbox.ensure_open()


def forked(
    source: BackendSandbox, changes: Mapping[str, NewFile | None] | None = None
) -> BackendSandbox:
    return begun(source.backend, source.freeze(), changes)


def begun(
    backend: Backend, frozen: FrozenWorkspace, changes: Mapping[str, NewFile | None] | None = None
) -> BackendSandbox:
    sandbox = backend.lazy(origin=origin_of(frozen, changes)).acquire()
    _held.append(weakref.ref(sandbox))
    return sandbox


def put(sandbox: BackendSandbox, path: str, text: str) -> None:
    result = sandbox.dispatch(BackendToolFilesWrite(path, text))
    assert isinstance(result, FileWriteResult), result


def text_of(sandbox: BackendSandbox, path: str) -> str:
    result = sandbox.dispatch(BackendToolFilesRead(path))
    assert isinstance(result, FileContent), result
    assert isinstance(result.data, str)
    return result.data


def content_of(frozen: FrozenWorkspace, path: str) -> bytes:
    return wait_for(lambda: frozen.aread(path))


def has(sandbox: BackendSandbox, path: str) -> bool:
    result = sandbox.dispatch(BackendToolFilesExists(path))
    assert isinstance(result, bool), result
    return result


def run(
    sandbox: BackendSandbox,
    cmd: str | Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    stdin: bytes | None = None,
) -> CommandResult:
    """Return the end of a command, which must be known."""
    result = sandbox.dispatch(BackendToolCommandRun(cmd, env=env, cwd=cwd, stdin=stdin))
    assert isinstance(result, CommandResult), result
    return result


def failure(result: object) -> ToolExecutionFailure:
    """Return a result that must be a failure."""
    assert isinstance(result, ToolExecutionFailure), result
    return result


def sh(sandbox: BackendSandbox, line: str) -> str:
    result = run(sandbox, line)
    assert result.exit_code == 0, result
    return result.stdout.decode()


def fork_directories() -> set[str]:
    """Return the directories of forks that this process has made in its home."""
    root = forks_root()
    return {each.name for each in root.iterdir()} if root.is_dir() else set()


def wait_until_removed(names: set[str] | None = None) -> None:
    """Wait until these directories of forks are gone, all by default; removal is submitted."""
    deadline = time.monotonic() + PATIENCE
    backend = LocalBackend()
    while left := fork_directories() & (names or fork_directories()):
        assert time.monotonic() < deadline, left
        backend.close(backend.open())


class EmptySnapshot(WorkspaceSnapshot):
    """A snapshot of no files, which is secured when it is told to be."""

    _is_copied = False

    @property
    def is_secured(self) -> bool:
        return self._is_copied

    async def asecure(self) -> None:
        self._is_copied = True

    async def ascan(self) -> Manifest:
        return {}

    async def aread(self, path: str) -> bytes:
        raise FileNotFoundError(path)
