"""What the examples share: which model answers, where files go, and how results are shown."""

from __future__ import annotations

from _shared.home import own_home
from _shared.provider import failing_before, provider_from_env, providers_of_two_vendors
from _shared.show import rows_before, show_calls, show_recalled, show_rows, show_seen, show_usage

__all__ = [
    "failing_before",
    "own_home",
    "provider_from_env",
    "providers_of_two_vendors",
    "rows_before",
    "show_calls",
    "show_recalled",
    "show_rows",
    "show_seen",
    "show_usage",
]
