r"""Lines whose checksums are chained, so that a changed line is named and never believed.

A line is a JSON object whose last member is `"sum"`: the first 16 hex digits of the sha256 over
the sum of the line before (ASCII, "" for the first line) and the bytes of this line without that
member, from `{` to the last value.

    {"event":"row","index":0,...,"sum":"0f3a..."}\n

Logs of version 2 and bundles have a space after each comma and colon.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256

from rath.errors import PersistenceError

SUM_DIGITS = 16
"""64 bits: a change goes unseen once in 10^19 times."""

_TAIL = re.compile(rb', ?"sum": ?"[0-9a-f]{16}"\}')
_COMPACT, _SPACED = b',"sum":"%s"}', b', "sum": "%s"}'
SUM_BYTES = len(_COMPACT % b"") + SUM_DIGITS
"""How long the end of a compact line is."""


def chained(lines: Iterable[bytes], after: str, *, is_compact: bool = False) -> tuple[bytes, str]:
    """Return lines with their sums, each ending in a line feed, and the sum of the last one.

    Args:
        lines: JSON objects with at least one member, without sum and line feed.
        after: The sum of the line before, "" at the beginning.
        is_compact: Whether no spaces stand between members.
    """
    form = b"%s" + (_COMPACT if is_compact else _SPACED) + b"\n"
    made: list[bytes] = []
    for line in lines:
        after = _sum(after, line[:-1])
        made.append(form % (line[:-1], after.encode()))
    return b"".join(made), after


def checked_sum(line: bytes, after: str, *, is_compact: bool = False) -> str:
    """Return the sum of a line, without its line feed, that stands after one with sum `after`.

    Raises:
        PersistenceError: It has no sum, or was changed, or does not stand where it was written.
    """
    form, n_bytes = (_COMPACT, SUM_BYTES) if is_compact else (_SPACED, SUM_BYTES + 2)
    end = line[-n_bytes:]
    expected = _sum(after, line[:-n_bytes])
    if end == form % expected.encode():
        return expected
    if _TAIL.fullmatch(end) is None:
        raise PersistenceError("the line has no checksum at its end; it was cut or changed")
    raise PersistenceError(
        "the checksum does not fit: this line was changed, or one before it was changed, "
        "removed or added"
    )


def _sum(after: str, body: bytes) -> str:
    # The last value and not the closing brace: so that nothing has to be put together again.
    return sha256(after.encode() + body).hexdigest()[:SUM_DIGITS]
