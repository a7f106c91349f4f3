"""A sandbox under its contract: what a check is, and how it asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Literal, TypeVar

from rath.backend.abc import Backend, BackendSandbox
from rath.backend.results import CommandResult, FileContent, ToolExecutionFailure
from rath.backend.tool_types import (
    BackendTool,
    BackendToolCommandRun,
    BackendToolFilesExists,
    BackendToolFilesRead,
    BackendToolFilesWrite,
)
from rath.conformance.report import Skipped, Unlike, expect

R = TypeVar("R")

Offer = Literal["supports_workspace_copy", "observes_effects", "confines_commands"]

FILES = (BackendToolFilesRead, BackendToolFilesWrite)
COMMANDS = (BackendToolCommandRun,)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a backend must do, asked of an open sandbox of its own."""

    feature: str
    """The row of the capability table that it belongs to."""

    run: Callable[[BackendSandbox], None]
    needs: Sequence[type[BackendTool]] = ()
    offer: Offer | None = None
    """What `capabilities()` must say for the check to be asked."""

    @property
    def name(self) -> str:
        """What is checked, in words joined by underscores."""
        return self.run.__name__

    def missing(self, backend: Backend) -> str | None:
        """Return why it cannot be asked of `backend`, None if it can."""
        calls = backend.supported_calls()
        names = [each.__name__ for each in self.needs if each not in calls]
        if names:
            return f"no {', '.join(names)}"
        if self.offer is not None and not getattr(backend.capabilities(), self.offer):
            return f"capabilities say {self.offer}=False"
        return None


def give(sandbox: BackendSandbox, call: BackendTool, kind: type[R]) -> R:
    """Return the result of a call, which must be of that kind."""
    result = sandbox.dispatch(call)
    if not isinstance(result, kind):
        raise Unlike(f"expected {kind.__name__} for {call!r}, got {result!r}")
    return result


def fail(sandbox: BackendSandbox, call: BackendTool, kind: str) -> ToolExecutionFailure:
    """Return the failure of a call, which must be of that kind."""
    failure = give(sandbox, call, ToolExecutionFailure)
    expect(failure.kind == kind, f"a failure of kind {kind!r} for {call!r}, got {failure!r}")
    expect(bool(failure.message), f"a failure with a message for {call!r}")
    return failure


def write(sandbox: BackendSandbox, path: str, data: str | bytes) -> None:
    """Write a file, which must not fail."""
    result = sandbox.dispatch(BackendToolFilesWrite(path, data))
    expect(not isinstance(result, ToolExecutionFailure), f"{path} to be written, got {result!r}")


def read(sandbox: BackendSandbox, path: str) -> str:
    """Return the text of a file, which must be there."""
    return str(give(sandbox, BackendToolFilesRead(path), FileContent).data)


def exists(sandbox: BackendSandbox, path: str) -> bool:
    """Tell whether a path exists."""
    return sandbox.dispatch(BackendToolFilesExists(path)) is True


def shell(sandbox: BackendSandbox, line: str, *, timeout: float | None = None) -> CommandResult:
    """Run a command line, which must come to an end."""
    return give(sandbox, BackendToolCommandRun(line, timeout=timeout), CommandResult)


def need_shell(sandbox: BackendSandbox) -> None:
    """Skip a check whose command lines would not be run by a shell, as where they are scripted."""
    if shell(sandbox, "test $((1 + 1)) = 2 && printf shell").stdout != b"shell":
        raise Skipped("its command lines are not those of a shell")


def new_name(stem: str) -> str:
    """Return the name of a file that no earlier run on the same workspace has left."""
    return f"{stem}-{token_hex(4)}.txt"
