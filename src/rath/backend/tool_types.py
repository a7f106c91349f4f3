"""Operations of a sandbox, as frozen payloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import ClassVar

from rath._core.dataclasses import dataclass

__all__ = [
    "BackendTool",
    "BackendToolCodeRun",
    "BackendToolCommandRun",
    "BackendToolFilesEdit",
    "BackendToolFilesExists",
    "BackendToolFilesList",
    "BackendToolFilesRead",
    "BackendToolFilesWrite",
]


class BackendTool:
    """Base of all payloads; a backend of your own may add some of its own."""

    __slots__ = ()

    read_only: ClassVar[bool] = False
    """Whether it can change nothing in the workspace."""


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
    """Standard input of the command; empty by default."""

    timeout: float | None = None
    """Seconds until it is ended; the backend's own deadline by default."""


@dataclass(frozen=True, slots=True)
class BackendToolFilesRead(BackendTool):
    """Read a file or a part of it; the result is a `FileContent`."""

    read_only: ClassVar[bool] = True

    path: str
    """Path in the workspace; `output:` and a digest for a long output, see `CommandResult`."""

    encoding: str | None = "utf-8"
    """Encoding of the content; None gives bytes."""

    offset: int = 0
    """How much to leave out at the beginning: lines of text, or bytes where it is not decoded."""

    limit: int | None = None
    """How much to return at most, in the same unit; None for all that is left."""


@dataclass(frozen=True, slots=True)
class BackendToolFilesWrite(BackendTool):
    """Write a whole file and the directories above it; the result is a `FileWriteResult`."""

    path: str
    data: bytes | str
    """The new content; a string is encoded as UTF-8."""

    mode: int = 0o644
    """Permission bits of the file afterwards."""


@dataclass(frozen=True, slots=True)
class BackendToolFilesEdit(BackendTool):
    """Replace a text in a file by another; the result is a `FileEditResult`."""

    path: str
    old: str
    """The exact text to replace; it must occur once, unless `replace_all` is set."""

    new: str
    replace_all: bool = False


@dataclass(frozen=True, slots=True)
class BackendToolFilesList(BackendTool):
    """List one directory, not what is below it; the result is a `FileEntries`."""

    read_only: ClassVar[bool] = True

    path: str


@dataclass(frozen=True, slots=True)
class BackendToolFilesExists(BackendTool):
    """Tell whether a path exists; the result is a plain bool."""

    read_only: ClassVar[bool] = True

    path: str


@dataclass(frozen=True, slots=True)
class BackendToolCodeRun(BackendTool):
    """Run a piece of code in an interpreter; the result is a `CodeResult`."""

    code: str
    language: str = "python"
    """A language of the backend: `python`, and for `local` also `bash` and `javascript`."""

    timeout: float | None = None
    """Seconds until it is ended; the backend's own deadline by default."""


FileTool = (
    BackendToolFilesRead
    | BackendToolFilesWrite
    | BackendToolFilesEdit
    | BackendToolFilesList
    | BackendToolFilesExists
)
"""An operation on one path."""

ALL_CALLS: frozenset[type[BackendTool]] = frozenset(
    {
        BackendToolCodeRun,
        BackendToolCommandRun,
        BackendToolFilesEdit,
        BackendToolFilesExists,
        BackendToolFilesList,
        BackendToolFilesRead,
        BackendToolFilesWrite,
    }
)
"""Every payload there is."""


def require_payload(op: object) -> None:
    """Refuse what is not a payload, in the caller's thread.

    Raises:
        TypeError: `op` is something else.
    """
    if not isinstance(op, BackendTool):
        raise TypeError(
            f"expected a payload such as BackendToolCommandRun(...), got {type(op).__name__}"
        )
