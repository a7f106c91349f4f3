"""Times and durations as people write them on a command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from rath.cli.terminal import Misuse

__all__ = ["duration", "time_of"]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def duration(option: str, text: str) -> float:
    """Return the seconds that a text such as `30d` says.

    Raises:
        Misuse: It says none; the text names the option.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise Misuse(
            f"{option} {text!r} is no time; expected a number with s, m, h, d or w, as 30d"
        )
    return float(found[1]) * _SECONDS[found[2]]


def time_of(option: str, text: str) -> datetime:
    """Return the time that a date says, or an age such as `7d`; dates without a zone are UTC.

    Raises:
        Misuse: It is neither; the text names the option.
    """
    now = datetime.now(UTC)
    if _DURATION.fullmatch(text.strip()):
        try:
            return now - timedelta(seconds=duration(option, text))
        except OverflowError:
            return datetime.min.replace(tzinfo=UTC)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise Misuse(
            f"{option} {text!r} is no time; expected an age such as 12h or 7d, or a date such as "
            "2026-11-01 or 2026-11-01T12:30"
        ) from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
