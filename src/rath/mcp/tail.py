"""The last lines that a server printed, kept for messages."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rath._core.text import decode_output, valid_unicode
from rath.config.redaction import redact
from rath.config.secrets import HIDDEN

__all__ = ["Tail", "hidden", "printable"]

MAX_BYTES = 8192
"""How much of what a server prints is kept."""

SHOWN_LINES = 6
SHOWN_CHARS = 1000

_MIN_SECRET_CHARS = 4

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


class Tail:
    """The end of a stream of bytes."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = b""

    def add(self, data: bytes) -> None:
        """Add what was printed; the beginning of a long output is forgotten."""
        self._data = (self._data + data)[-MAX_BYTES:]

    def lines(self, secrets: Iterable[str] = ()) -> str:
        """Return the last lines, " | " between them, without escapes and without `secrets`."""
        text = printable(decode_output(self._data))
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return hidden(" | ".join(lines[-SHOWN_LINES:]), secrets)[-SHOWN_CHARS:]


def printable(text: str) -> str:
    """Return `text` without escapes and control characters, line breaks and tabs apart."""
    return _ESCAPES.sub("", valid_unicode(text))


def hidden(text: str, secrets: Iterable[str]) -> str:
    """Return `text` with each of `secrets` replaced by asterisks; very short ones are none."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= _MIN_SECRET_CHARS:
            text = redact(text.replace(secret, HIDDEN), secret)
    return text
