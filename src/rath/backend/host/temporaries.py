"""Files that this process puts into workspaces for a moment, and that are no effects."""

from __future__ import annotations

import os

_names: set[str] = set()


def new_temporary(prefix: str, suffix: str) -> str:
    """Return a name that nobody can guess; scans pass over it until `forget_temporary`."""
    name = f"{prefix}{os.urandom(8).hex()}{suffix}"
    _names.add(name)
    return name


def forget_temporary(name: str) -> None:
    """Tell that the file is gone."""
    _names.discard(name)


def is_temporary(name: str) -> bool:
    """Tell whether this process made the name and still uses it."""
    return name in _names
