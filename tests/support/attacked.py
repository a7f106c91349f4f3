"""A workspace under attack, and beside it what must stay untouched and unread."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from rath.backend import (
    BackendSandbox,
    BackendSandboxSpec,
    BackendTool,
    BackendToolCommandRun,
    CommandResult,
    ToolExecutionFailure,
    get,
    get_class,
)

__all__ = ["CANARY", "HOST_BACKENDS", "Target", "attacked", "said"]

CANARY = "canary-7f3a91"
"""Stands in every file outside; nothing inside may ever show it."""

HOST_BACKENDS = ("local", "bubblewrap")


@dataclass(frozen=True, slots=True)
class Target:
    """An open sandbox, and the directory beside its workspace."""

    sandbox: BackendSandbox
    workspace: Path
    outside: Path

    @property
    def secret(self) -> Path:
        """A file outside."""
        return self.outside / "secret.txt"

    def run(self, call: BackendTool) -> object:
        """Return what the sandbox answers."""
        return self.sandbox.dispatch(call)

    def shell(self, line: str, *, timeout: float = 50.0) -> object:
        """Return what a command line of bash comes to."""
        return self.run(BackendToolCommandRun(["bash", "-c", line], timeout=timeout))


@contextmanager
def attacked(backend: str, base: Path, spec: BackendSandboxSpec | None = None) -> Generator[Target]:
    """Open a sandbox under `base`; afterwards what is outside must be as it was."""
    reason = get_class(backend).unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    workspace, outside = base / "ws", base / "outside"
    for directory in (workspace, outside, base / "ws-sibling"):
        directory.mkdir()
        (directory / "secret.txt").write_text(CANARY)
    (workspace / "secret.txt").unlink()
    spec = spec or BackendSandboxSpec()
    spec.working_dir = str(workspace)
    before = {path: _state(path) for path in (outside, base / "ws-sibling")}
    sandbox = get(backend).open(spec)
    try:
        yield Target(sandbox, workspace, outside)
    finally:
        sandbox.backend.close(sandbox)
    assert {path: _state(path) for path in before} == before


def said(result: object) -> str:
    """Return all that a result shows, whatever it is."""
    if isinstance(result, CommandResult):
        return (result.stdout + result.stderr).decode(errors="replace")
    if isinstance(result, ToolExecutionFailure):
        return f"{result.message} {result.detail}"
    return repr(result)


def _state(directory: Path) -> list[tuple[str, int, int, str]]:
    """Return names, modes, link counts and digests of what stands in a directory."""
    return [
        (
            str(path.relative_to(directory)),
            os.lstat(path).st_mode,
            os.lstat(path).st_uid,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in sorted(directory.rglob("*"))
    ]
