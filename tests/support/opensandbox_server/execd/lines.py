"""Output as the daemon reports it: one text per line."""

from __future__ import annotations

import re


class Lines:
    """Cuts output into the texts of events: lines without their ends, an empty line as a newline.

    Both CR and LF end a line, the two together end one. An incomplete line waits for `rest()`.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._after_return = False

    def feed(self, data: bytes) -> list[str]:
        """Texts of the lines that end in `data`."""
        parts = re.split(rb"([\r\n])", self._pending + data)
        self._pending = parts.pop()
        texts: list[str] = []
        for line, end in zip(parts[::2], parts[1::2], strict=True):
            if line:
                texts.append(line.decode("utf-8", "replace"))
            elif end == b"\r" or not self._after_return:
                texts.append("\n")
            self._after_return = end == b"\r"
        return texts

    def rest(self) -> list[str]:
        """The incomplete last line, if there is one."""
        pending, self._pending = self._pending, b""
        return [pending.decode("utf-8", "replace")] if pending else []
