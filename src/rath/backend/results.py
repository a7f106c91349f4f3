"""Results of sandbox operations: frozen values, failures among them."""

from __future__ import annotations

from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass


class ToolResult:
    """Base of all answers except that to `BackendToolFilesExists`, which is a bool."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class CommandResult(ToolResult):
    """A command has ended, well or badly."""

    exit_code: int
    """Status of the process; minus the signal's number where a signal ended it."""

    stdout: bytes
    stderr: bytes
    elapsed_ms: float
    stdout_full: Blob | None = None
    """All that it printed, where that is more than 20,000 bytes. While the sandbox is open it can
    be read under the path `output:` with the first twelve digits of its digest, or more. Without
    its data where that was too much to keep; a backend that cuts `stdout` itself must give it."""

    stderr_full: Blob | None = None


@dataclass(frozen=True, slots=True)
class FileContent(ToolResult):
    """Content of a file or of a part of it, bytes where no encoding was asked for."""

    data: str | bytes
    next_offset: int | None = None
    """The `offset` at which to read on, None where `data` reaches to the end."""

    total: int | None = None
    """Lines, or bytes, of the whole file, where only a part was asked for."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One name in a directory."""

    name: str
    path: str
    """A path under which the same sandbox finds the entry."""

    is_dir: bool


@dataclass(frozen=True, slots=True)
class FileEntries(ToolResult):
    """Entries of a directory, sorted by name."""

    entries: tuple[FileEntry, ...]


@dataclass(frozen=True, slots=True)
class FileWriteResult(ToolResult):
    """A file was written."""

    bytes_written: int


@dataclass(frozen=True, slots=True)
class FileEditResult(ToolResult):
    """A file was edited."""

    n_replaced: int
    """How many times the text stood there."""

    diff: str
    """The change as a unified diff."""


@dataclass(frozen=True, slots=True)
class CodeResult(ToolResult):
    """A piece of code has ended, well or badly."""

    text: str | None
    """Value of its last expression, where the interpreter tells it."""

    stdout: bytes
    stderr: bytes
    error: str | None
    """The message of a failure; None without one."""

    stdout_full: Blob | None = None
    """All that it printed, where that is more than 20,000 bytes. While the sandbox is open it can
    be read under the path `output:` with the first twelve digits of its digest, or more."""

    stderr_full: Blob | None = None


@dataclass(frozen=True, slots=True)
class ToolExecutionFailure(ToolResult):
    """An operation could not be done, said in words that a model can act on."""

    kind: str
    """A short, stable word: `timeout`, `os_error`, `file_not_found`, `path_outside_workspace`..."""

    message: str
    detail: str | None = None


def tool_failure_from(
    kind: str, exc: BaseException, detail: str | None = None
) -> ToolExecutionFailure:
    """Return the failure that tells of `exc`; its detail is the name of its class by default."""
    return ToolExecutionFailure(kind, str(exc), type(exc).__name__ if detail is None else detail)


PRINTED_IN_DETAIL = "; detail is what it had printed"


def timeout_failure(seconds: float, printed: str, outcome: str) -> ToolExecutionFailure:
    """Return the failure of a run that was ended at its deadline.

    Args:
        seconds: The deadline.
        printed: Its output until then.
        outcome: A predicate that says how it was ended.
    """
    message = f"it did not end within {seconds:g} s and {outcome}"
    message += PRINTED_IN_DETAIL if printed else ""
    return ToolExecutionFailure("timeout", message, printed or None)


def truncation_note(n_bytes: int, rest: str = "") -> bytes:
    """Return the note in the place of output that was left out; `fallbacks` knows it again.

    Args:
        n_bytes: How much that is.
        rest: What else to say of it.
    """
    return f"\n[... output truncated: {n_bytes} bytes left out{rest} ...]\n".encode()
