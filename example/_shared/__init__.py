"""What the examples share: which model answers, where files go, and how results are shown."""

from __future__ import annotations

from _shared.home import own_home
from _shared.provider import provider_from_env
from _shared.show import rows_before, show_recalled, show_rows, show_seen, show_usage

__all__ = [
    "own_home",
    "provider_from_env",
    "rows_before",
    "show_recalled",
    "show_rows",
    "show_seen",
    "show_usage",
]
