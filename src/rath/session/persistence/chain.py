r"""Lines whose checksums are chained, so that a changed line is named and never believed.

A line is a JSON object whose last member is `"sum"`: the first 16 hex digits of the sha256 over
the sum of the line before (ASCII, "" for the first line) and the bytes of this line without that
member, from `{` to the last value.

    {"record_type": "chunk", "index": 0, ..., "sum": "0f3a..."}\n
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256

from rath.errors import PersistenceError

SUM_DIGITS = 16
"""64 bits: a change goes unseen once in 10^19 times."""

_TAIL = re.compile(rb', "sum": "([0-9a-f]{16})"\}\Z')
_TAIL_BYTES = len(', "sum": ""}') + SUM_DIGITS


def chained(lines: Iterable[bytes], after: str) -> tuple[bytes, str]:
    """Return lines with their sums, each ending in a line feed, and the sum of the last one.

    Args:
        lines: JSON objects with at least one member, without sum and line feed.
        after: The sum of the line before, "" at the beginning.
    """
    made: list[bytes] = []
    for line in lines:
        after = _sum(after, line[:-1])
        made.append(b'%s, "sum": "%s"}\n' % (line[:-1], after.encode()))
    return b"".join(made), after


def checked_sum(line: bytes, after: str) -> str:
    """Return the sum of a line, without its line feed, that stands after one with sum `after`.

    Raises:
        PersistenceError: It has no sum, or was changed, or does not stand where it was written.
    """
    found = _TAIL.search(line, max(0, len(line) - _TAIL_BYTES))
    if found is None:
        raise PersistenceError("the line has no checksum at its end; it was cut or changed")
    said = found.group(1).decode()
    if said != _sum(after, line[: found.start()]):
        raise PersistenceError(
            "the checksum does not fit: this line was changed, or one before it was changed, "
            "removed or added"
        )
    return said


def _sum(after: str, body: bytes) -> str:
    # The last value and not the closing brace: so that nothing has to be put together again.
    return sha256(after.encode() + body).hexdigest()[:SUM_DIGITS]
