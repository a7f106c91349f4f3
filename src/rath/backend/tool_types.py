"""What a sandbox can be asked to do: six operations as frozen payloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = [
    "BackendTool",
    "BackendToolCodeRun",
    "BackendToolCommandRun",
    "BackendToolFilesExists",
    "BackendToolFilesList",
    "BackendToolFilesRead",
    "BackendToolFilesWrite",
]


class BackendTool:
    """Base of all payloads; a backend of your own may add some of its own."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class BackendToolCommandRun(BackendTool):
    """Run a command and wait for its end; the result is a `CommandResult`."""

    cmd: str | Sequence[str]
    """A line for the shell, or an argument list that no shell sees."""

    env: Mapping[str, str] | None = field(default=None, repr=False)
    """Variables to add to those of the sandbox. Left out of `repr`: values may be secret."""

    cwd: str | None = None
    """Directory to start in; the root of the workspace by default."""

    stdin: bytes | None = None
    """What the command reads; by default its input is empty."""

    timeout: float | None = None
    """Seconds until it is ended; the backend's own deadline by default."""


@dataclass(frozen=True, slots=True)
class BackendToolFilesRead(BackendTool):
    """Read a whole file; the result is a `FileContent`."""

    path: str
    encoding: str | None = "utf-8"
    """How to decode the content; None gives bytes."""


@dataclass(frozen=True, slots=True)
class BackendToolFilesWrite(BackendTool):
    """Write a whole file and the directories above it; the result is a `FileWriteResult`."""

    path: str
    data: bytes | str
    """The new content; a string is encoded as UTF-8."""

    mode: int = 0o644
    """Permission bits of the file afterwards."""


@dataclass(frozen=True, slots=True)
class BackendToolFilesList(BackendTool):
    """List one directory, not what is below it; the result is a `FileEntries`."""

    path: str


@dataclass(frozen=True, slots=True)
class BackendToolFilesExists(BackendTool):
    """Tell whether a path exists; the result is a plain bool."""

    path: str


@dataclass(frozen=True, slots=True)
class BackendToolCodeRun(BackendTool):
    """Run a piece of code in an interpreter; the result is a `CodeResult`."""

    code: str
    language: str = "python"
    timeout: float | None = None
    """Seconds until it is ended; the backend's own deadline by default."""


def require_payload(op: object) -> None:
    """Refuse what is not a payload, in the caller's thread.

    Raises:
        TypeError: `op` is something else.
    """
    if not isinstance(op, BackendTool):
        raise TypeError(
            f"expected a payload such as BackendToolCommandRun(...), got {type(op).__name__}"
        )
