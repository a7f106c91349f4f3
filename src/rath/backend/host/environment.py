"""The variables that commands on this host see."""

from __future__ import annotations

import os
from collections.abc import Mapping

INHERITED = frozenset(
    {
        "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
        "VIRTUAL_ENV",
    }
)  # fmt: skip
"""Variables of this process that commands see, with all `LC_*`; keys and tokens stay out."""


def environment(*added: Mapping[str, str] | None) -> dict[str, str]:
    """Return what a command sees: the few inherited variables, then each of `added` in turn."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name in INHERITED or name.startswith("LC_")
    }
    for more in added:
        variables.update(more or {})
    return variables
