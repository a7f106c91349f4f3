"""Sandboxes of the test server: calls that must go well or fail, and copies of others' files."""

from __future__ import annotations

import gc
import stat
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from rath.backend import (
    BackendSandbox,
    BackendTool,
    BackendToolCommandRun,
    CommandResult,
    FrozenWorkspace,
    NewFile,
    Seed,
    ToolExecutionFailure,
)
from rath.backend.opensandbox import OpenSandboxBackend
from tests.support.opensandbox_server import OpenSandboxServer, unavailable_reason
from tests.support.waiting import wait_until

T = TypeVar("T")

FILE = stat.S_IFREG | 0o644

Changes = Mapping[str, NewFile | None]


@pytest.fixture
def opensandbox_server(tmp_path: Path) -> Iterator[OpenSandboxServer]:
    """A server for one test, whose temporary directory may be bound into sandboxes."""
    reason = unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    with OpenSandboxServer() as server:
        server.allowed_host_paths.append(tmp_path)
        yield server


@dataclass(frozen=True)
class Service:
    """A server, and a backend for it."""

    backend: OpenSandboxBackend
    server: OpenSandboxServer


@dataclass(frozen=True)
class Remote(Service):
    """A server, a backend for it, and a sandbox that is open there."""

    sandbox: BackendSandbox


def end_of(sandbox: BackendSandbox, call: BackendTool) -> CommandResult:
    """Return the end of a command, which must be known."""
    result = sandbox.dispatch(call)
    assert isinstance(result, CommandResult), result
    return result


def failed(sandbox: BackendSandbox, call: BackendTool) -> ToolExecutionFailure:
    """Return the failure of a call, which must fail."""
    result = sandbox.dispatch(call)
    assert isinstance(result, ToolExecutionFailure), result
    return result


def stdout(sandbox: BackendSandbox, line: str) -> bytes:
    """Return what a command line prints on stdout."""
    return end_of(sandbox, BackendToolCommandRun(line)).stdout


def printed(sandbox: BackendSandbox, line: str) -> str:
    """Return what a command line prints."""
    result = end_of(sandbox, BackendToolCommandRun(line))
    return (result.stdout + result.stderr).decode()


def lazy_copy(
    backend: OpenSandboxBackend, frozen: FrozenWorkspace, changes: Changes | None = None
) -> BackendSandbox:
    """Return a sandbox that begins with frozen files once it is opened."""

    async def origin() -> Seed:
        return Seed(frozen, changes or {})

    return backend.lazy(origin=origin)


@contextmanager
def opened_copy(
    source: BackendSandbox, changes: Changes | None = None
) -> Generator[BackendSandbox]:
    """Give an open copy of a sandbox, and close it at the end."""
    backend = source.backend
    assert isinstance(backend, OpenSandboxBackend)
    copy = lazy_copy(backend, source.freeze(), changes).ensure_open()
    yield copy
    backend.close(copy)


def settle(server: OpenSandboxServer, n_snapshots: int) -> None:
    """Wait until so many snapshots were deleted in all."""

    def are_deleted() -> bool:
        # What ends on the runtime meanwhile may hold frozen files in a cycle.
        gc.collect()
        return len(server.matching("DELETE", "/v1/snapshots/*")) >= n_snapshots

    wait_until(are_deleted, f"{n_snapshots} snapshots are deleted")
