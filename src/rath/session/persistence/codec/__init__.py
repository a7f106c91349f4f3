"""The lines of a session file as bytes: encoded in groups, read back one by one."""

from __future__ import annotations

from rath.session.persistence.codec.encode import Batch, Encoder
from rath.session.persistence.codec.reader import LineReader, LogLines, read_lines

__all__ = ["Batch", "Encoder", "LineReader", "LogLines", "read_lines"]
