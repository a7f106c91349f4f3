"""What a sandbox says of a run, freed of the SDK: its parts, and how text becomes bytes again."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rath.backend.opensandbox.defaults import MAX_OUTPUT_BYTES

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
"""ECMA-48 control sequences, as interpreters colour their tracebacks with."""

_SIGNALS = {
    "hangup": 1, "interrupt": 2, "quit": 3, "illegal instruction": 4, "trace/breakpoint trap": 5,
    "aborted": 6, "bus error": 7, "floating point exception": 8, "killed": 9,
    "user defined signal 1": 10, "segmentation fault": 11, "user defined signal 2": 12,
    "broken pipe": 13, "alarm clock": 14, "terminated": 15,
}  # fmt: skip
"""Numbers on Linux, where sandboxes run, by the names that Go prints."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is at a path of a sandbox."""

    path: str
    kind: str
    """ "file", "directory", "symlink" or another word of the server."""

    size: int
    mode: int
    """Permission bits."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """The error with which a run ended."""

    name: str
    value: str
    traceback: tuple[str, ...] = ()

    def text(self) -> str:
        """Return it as a person reads it: the traceback, and what is wrong."""
        head = ": ".join(part for part in (self.name, self.value) if part)
        if not self.name and self.value.isdigit():  # a shell tells nothing else
            head = f"exit code {self.value}"
        lines = _ESCAPES.sub("", "\n".join(self.traceback)).strip()
        if not lines:
            return head or "the sandbox says that it failed, and not why"
        return lines if not head or head in lines else f"{lines}\n{head}"


@dataclass(frozen=True, slots=True)
class Answer:
    """How a run ended."""

    is_complete: bool
    """Whether the sandbox said that it has ended."""

    trouble: Trouble | None
    texts: tuple[str, ...] = ()
    """Values of code, in the order they were told."""

    @property
    def exit_code(self) -> int | None:
        """Status of a command, minus the number of the signal that ended it; None for unknown."""
        if self.trouble is None:
            return 0 if self.is_complete else None
        try:
            code = int(self.trouble.value)
        except ValueError:
            return None
        return self._signal_code() if code == -1 else code

    def _signal_code(self) -> int:
        said = " ".join(self.trouble.traceback if self.trouble is not None else ()).lower()
        found = re.search(r"signal: ([a-z0-9/ ]+)", said)
        return -_SIGNALS.get(found[1].strip(), signal.SIGKILL) if found else -1


class _Error(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def traceback(self) -> list[str]: ...


class _Result(Protocol):
    @property
    def text(self) -> str | None: ...


class _Execution(Protocol):
    @property
    def complete(self) -> object: ...
    @property
    def error(self) -> _Error | None: ...
    @property
    def result(self) -> Sequence[_Result]: ...


def answer_of(execution: _Execution) -> Answer:
    """Return what the SDK collected of a run."""
    error = execution.error
    trouble = None
    if error is not None:
        trouble = Trouble(error.name, error.value, tuple(error.traceback))
    texts = tuple(each.text for each in execution.result if each.text)
    return Answer(execution.complete is not None, trouble, texts)


class Printed:
    """What a run has printed so far, as the sandbox sends it.

    Args:
        events: "lines" where each event is a line without its end, "pieces" where text is sent as
            it was printed.
    """

    def __init__(self, events: Literal["lines", "pieces"]) -> None:
        self.run_id: str | None = None
        """By which it can be interrupted, once the sandbox has told."""
        self._stdout = Lines(events)
        self._stderr = Lines(events)

    def add_stdout(self, text: str) -> None:
        """Take one event of stdout."""
        self._stdout.add(text)

    def add_stderr(self, text: str) -> None:
        """Take one event of stderr."""
        self._stderr.add(text)

    @property
    def stdout(self) -> bytes:
        """What was printed there, with its middle left out where it is long."""
        return self._stdout.data()

    @property
    def stderr(self) -> bytes:
        """What was printed there, with its middle left out where it is long."""
        return self._stderr.data()


class Lines:
    r"""The text of events, put together again, with its middle left out where it is long.

    A server sends each line of a command without its end, and an empty one as "\n"; the last line
    has an end here, whether it had one or not.
    """

    def __init__(self, events: Literal["lines", "pieces"]) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._n_cut = 0
        self._adds_ends = events == "lines"

    def add(self, text: str) -> None:
        """Take the next event."""
        end = "\n" if self._adds_ends and not text.endswith("\n") else ""
        data = f"{text}{end}".encode(errors="replace")
        half = MAX_OUTPUT_BYTES // 2
        room = max(half - len(self._head), 0)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > half:
            self._n_cut += len(self._tail) - half
            del self._tail[:-half]

    def data(self) -> bytes:
        """Return what was kept."""
        note = cut_note(self._n_cut) if self._n_cut else b""
        return bytes(self._head) + note + bytes(self._tail)


def cut_note(n_bytes: int, where: str = "") -> bytes:
    """Return what stands in the place of output that was left out.

    Args:
        n_bytes: How much that is.
        where: File of the sandbox that has all of it.
    """
    rest = f"; all of it is in {where}" if where else ""
    return f"\n[... output truncated: {n_bytes} bytes left out{rest} ...]\n".encode()
