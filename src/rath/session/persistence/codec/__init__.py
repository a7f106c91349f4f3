"""The lines of a session file as bytes: encoded in groups, read back one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath.session.persistence.codec.encode import Batch, Encoder
    from rath.session.persistence.codec.reader import LineReader, LogLines, read_lines, session_in
else:
    from rath._core.late import late_names

    __getattr__, __dir__ = late_names(
        __name__,
        {
            "encode": (
                "Batch",
                "Encoder",
            ),
            "reader": (
                "LineReader",
                "LogLines",
                "read_lines",
                "session_in",
            ),
        },
    )

__all__ = ["Batch", "Encoder", "LineReader", "LogLines", "read_lines", "session_in"]
