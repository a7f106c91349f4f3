"""What a tool server sees of the program's environment, and `${NAME}` in its settings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from rath.errors import ConfigError

__all__ = ["INHERITED", "REFERENCE", "expanded", "named_value", "secrets_of", "server_environment"]

INHERITED = frozenset(
    {
        "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
        "VIRTUAL_ENV",
        "APPDATA", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROCESSOR_ARCHITECTURE",
        "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "USERNAME", "USERPROFILE",
    }
)  # fmt: skip
"""Variables of this process that servers see, with all `LC_*`; keys and tokens stay out."""

REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A variable of the environment in a setting."""

_MIN_WORD_CHARS = 8
"""Shortest word of a setting that is kept secret by itself: `Bearer` is none. A guess."""


def server_environment(added: Mapping[str, str]) -> dict[str, str]:
    """Return what a server sees: the few inherited variables, then `added`, its references read.

    Raises:
        ConfigError: A value refers to a variable that is not set.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        # A value of this form is a function of a shell, which some shells run when they start.
        if (name in INHERITED or name.startswith("LC_")) and not value.startswith("()")
    }
    return inherited | {name: expanded(value, f"env.{name}") for name, value in added.items()}


def expanded(value: str, where: str) -> str:
    """Return `value` with `${NAME}` replaced by that variable of the environment.

    Args:
        value: A setting.
        where: What it is, for the error.

    Raises:
        ConfigError: Such a variable is not set; its name is told, never a value.
    """
    return REFERENCE.sub(lambda match: named_value(match[1], where), value)


def secrets_of(settings: Mapping[str, str]) -> list[str]:
    """Return what no text may hold of settings: the values, and the parts that are told alone.

    A server that is sent `Bearer TOKEN` may say `TOKEN` again.

    Raises:
        ConfigError: A variable that they refer to is not set.
    """
    found: list[str] = []
    for name, value in settings.items():
        whole = expanded(value, name)
        found += [whole, *(word for word in whole.split() if len(word) >= _MIN_WORD_CHARS)]
        found += [named_value(match[1], name) for match in REFERENCE.finditer(value)]
    return found


def named_value(name: str, where: str) -> str:
    """Return a variable of the environment.

    Raises:
        ConfigError: It is not set, or empty.
    """
    value = os.environ.get(name)
    if not value:
        raise ConfigError(
            f"{where} of an MCP server refers to the environment variable {name!r}, which is not "
            "set; set it before the program starts, or correct the name"
        )
    return value
