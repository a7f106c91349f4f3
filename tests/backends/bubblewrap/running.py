"""Commands in a sandbox, and what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from rath.backend import (
    BackendSandbox,
    BackendToolCommandRun,
    CommandResult,
    SandboxLimits,
    ToolExecutionFailure,
)


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


def run(
    sandbox: BackendSandbox,
    cmd: str | list[str],
    *,
    env: dict[str, str] | None = None,
    cwd: str | None = None,
    timeout: float | None = 15.0,
) -> CommandResult:
    result = sandbox.dispatch(BackendToolCommandRun(cmd, env=env, cwd=cwd, timeout=timeout))
    assert isinstance(result, CommandResult), result
    return result


def printed(sandbox: BackendSandbox, cmd: str | list[str]) -> str:
    """Return what a command prints that succeeds."""
    result = run(sandbox, cmd)
    assert (result.exit_code, result.stderr) == (0, b"")
    return result.stdout.decode().strip()


def failure(result: object) -> ToolExecutionFailure:
    assert isinstance(result, ToolExecutionFailure)
    return result
