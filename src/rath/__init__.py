"""Agents over sessions: the session is the value that flows, and the record of what happened."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath import backend, flow, memory, session

__version__ = "1.3.0.dev0"

__all__ = ["backend", "flow", "memory", "session"]


def __getattr__(name: str) -> ModuleType:
    """Load a public subpackage on first use, so that `import rath` stays cheap (PEP 562)."""
    if name in __all__:
        return importlib.import_module(f"rath.{name}")
    raise AttributeError(f"module 'rath' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
