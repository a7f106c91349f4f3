"""Long outputs of a sandbox, kept in files so that the model can read the rest of them."""

from __future__ import annotations

import os
import re
import shutil
import threading
import weakref
from pathlib import Path

from rath.backend.host.owner import new_directory
from rath.backend.parts import read_part
from rath.backend.results import ToolExecutionFailure, ToolResult
from rath.backend.tool_types import BackendToolFilesRead

LONG_OUTPUT_BYTES = 20_000
"""An output of more than this is kept: a model is shown only the beginning and the end of it."""

MAX_KEPT = 32
MAX_KEPT_BYTES = 64 << 20
"""What is kept of one sandbox together; the oldest goes first."""

_PREFIX = "output:"
_PATH = re.compile(_PREFIX + "([0-9a-f]{12,64})")


def output_path(digest: str) -> str:
    """Return the path under which a kept output is read."""
    return f"{_PREFIX}{digest[:12]}"


class KeptOutputs:
    """The newest long outputs of one sandbox, by digest, in a directory of their own.

    Thread-safe; all methods block on the disk.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._directory: Path | None = None
        self._remove: weakref.finalize[[str, int], KeptOutputs] | None = None
        self._sizes: dict[str, int] = {}
        self._is_closed = False

    @staticmethod
    def holds(path: str) -> bool:
        """Tell whether `path` names an output and no file."""
        return _PATH.fullmatch(path) is not None

    def keep(self, digest: str, data: bytes) -> None:
        """Keep an output; the oldest ones go when there are too many."""
        with self._lock:
            if self._is_closed:
                return
            if self._directory is None:
                made = new_directory("output")
                # A handle that nobody closes leaves nothing either.
                self._remove = weakref.finalize(self, _remove_own, made, os.getpid())
                self._directory = Path(made)
            if self._sizes.pop(digest, None) is None:
                (self._directory / digest).write_bytes(data)
            self._sizes[digest] = len(data)
            while len(self._sizes) > MAX_KEPT or sum(self._sizes.values()) > MAX_KEPT_BYTES:
                oldest = next(iter(self._sizes))
                del self._sizes[oldest]
                (self._directory / oldest).unlink(missing_ok=True)

    def read(self, op: BackendToolFilesRead) -> ToolResult:
        """Read a kept output or a part of it; bytes that are no text are replaced."""
        named = _PATH.fullmatch(op.path)
        assert named is not None
        try:
            with self._lock:
                file = self._file(named[1]).open("rb")
            with file:
                return read_part(file, op, errors="replace")
        except (LookupError, OSError):
            return ToolExecutionFailure(
                "output_not_kept",
                f"no output {op.path!r} is kept; of a sandbox the newest {MAX_KEPT} are, as long "
                "as it is open; run the command again with its output in a file",
                op.path,
            )

    def close(self) -> None:
        """Remove all of them."""
        with self._lock:
            self._is_closed = True
            self._sizes.clear()
            self._directory = None
        if self._remove is not None:
            self._remove()

    def _file(self, digest: str) -> Path:
        found = next((known for known in self._sizes if known.startswith(digest)), None)
        if found is None or self._directory is None:
            raise LookupError(digest)
        return self._directory / found


def _remove_own(directory: str, pid: int) -> None:
    """Remove a directory, unless this is a forked child: what it inherited is its parent's."""
    if os.getpid() == pid:
        shutil.rmtree(directory, ignore_errors=True)
