"""Commands in a sandbox, and what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from rath.backend import (
    BackendSandbox,
    SandboxLimits,
)
from tests.support.workspaces import run


class Open(Protocol):
    """Opens a sandbox, on the workspace of the test unless told otherwise."""

    def __call__(
        self,
        *,
        working_dir: Path | str | None = None,
        env: dict[str, str] | None = None,
        network: bool = False,
        limits: SandboxLimits | None = None,
    ) -> BackendSandbox: ...


def printed(sandbox: BackendSandbox, cmd: str | list[str]) -> str:
    """Return what a command prints that succeeds."""
    result = run(sandbox, cmd)
    assert (result.exit_code, result.stderr) == (0, b"")
    return result.stdout.decode().strip()
