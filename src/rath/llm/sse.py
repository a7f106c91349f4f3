"""Server-sent events from a byte stream, whatever pieces it comes in (WHATWG HTML, 9.2.6)."""

from __future__ import annotations

__all__ = ["EventParser"]


class EventParser:
    """Takes bytes and gives the data of each whole event.

    Comments, event names, ids and retry times are left out; several data lines of one event are
    joined by line feeds; lines end with LF, CRLF or CR.
    """

    __slots__ = ("_after_cr", "_data", "_line")

    def __init__(self) -> None:
        self._line: list[bytes] = []
        """Pieces of a line whose end has not come."""

        self._data: list[bytes] = []
        """Data lines of an event whose end has not come."""

        self._after_cr = False

    def feed(self, chunk: bytes) -> list[str]:
        """Return the data of the events that `chunk` completes."""
        chunk = self._with_line_feeds(chunk)
        if b"\n" not in chunk:
            self._line.append(chunk)
            return []
        lines = chunk.split(b"\n")
        lines[0] = b"".join((*self._line, lines[0]))
        self._line = [lines.pop()]
        events: list[str] = []
        data = self._data
        for line in lines:
            if not line:
                if data:
                    events.append(b"\n".join(data).decode("utf-8", "replace"))
                    data.clear()
            elif line.startswith(b"data:"):
                data.append(line[6:] if line.startswith(b" ", 5) else line[5:])
            elif line == b"data":
                data.append(b"")
        return events

    def close(self) -> list[str]:
        """Return the data of an event that lacks only the line ends behind it."""
        self._after_cr = False
        return self.feed(b"\n\n")

    def _with_line_feeds(self, chunk: bytes) -> bytes:
        if self._after_cr and chunk:
            self._after_cr = False
            # The other half of a CRLF whose first half was taken as a whole line end.
            chunk = chunk.removeprefix(b"\n")
        if b"\r" not in chunk:
            return chunk
        self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
