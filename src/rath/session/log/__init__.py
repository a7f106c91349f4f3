"""The log of a session: its lines as bytes, stores and their drivers, bundles and retention."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath.session.log.format import Batch, Encoder
    from rath.session.log.reader import LineReader, LogLines, read_lines, session_in
else:
    from rath._core.lazy_imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "format": ("Batch", "Encoder"),
            "reader": ("LineReader", "LogLines", "read_lines", "session_in"),
        },
    )

__all__ = ["Batch", "Encoder", "LineReader", "LogLines", "read_lines", "session_in"]
