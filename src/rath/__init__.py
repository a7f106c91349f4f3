"""Agents over sessions: the session is the value that flows, and the record of what happened."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rath import backend, data, eval, flow, memory, optim, profiler, session
    from rath._async.runtime import at_exit
    from rath.flow.parameters import Prompt, load, save
    from rath.flow.tool.function import tool
    from rath.llm.offline import offline
    from rath.session.autosave import autosave
    from rath.session.run.cassette import cassette, replay
    from rath.session.tooling import ask

__version__ = "1.3.0.dev0"

__all__ = [
    "Prompt",
    "ask",
    "at_exit",
    "autosave",
    "backend",
    "cassette",
    "data",
    "eval",
    "flow",
    "load",
    "memory",
    "offline",
    "optim",
    "profiler",
    "replay",
    "save",
    "session",
    "tool",
]

_FUNCTIONS = {
    "Prompt": "rath.flow.parameters",
    "ask": "rath.session.tooling",
    "at_exit": "rath._async.runtime",
    "autosave": "rath.session.autosave",
    "cassette": "rath.session.run.cassette",
    "load": "rath.flow.parameters",
    "offline": "rath.llm.offline",
    "replay": "rath.session.run.cassette",
    "save": "rath.flow.parameters",
    "tool": "rath.flow.tool.function",
}
"""By name, the module that has it."""


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that `import rath` stays cheap (PEP 562)."""
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    if name in __all__:
        return importlib.import_module(f"rath.{name}")
    raise AttributeError(f"module 'rath' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
