"""Agents over sessions: the session is the value that flows, and the record of what happened."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rath import backend, data, eval, flow, memory, optim, profiler, session
    from rath._async.runtime import at_exit
    from rath.flow.agent import Agent
    from rath.flow.parameters import Prompt, load, save
    from rath.flow.tool.function import tool
    from rath.flow.workflow import Workflow
    from rath.llm.offline import offline
    from rath.llm.provider import Provider
    from rath.session.autosave import autosave
    from rath.session.run.cassette import cassette, replay
    from rath.session.session import Session
    from rath.session.tooling import ask

__version__ = "1.3.0.dev0"

__all__ = [
    "Agent",
    "Prompt",
    "Provider",
    "Session",
    "Workflow",
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

_HOMES = {
    "Agent": "rath.flow.agent",
    "Prompt": "rath.flow.parameters",
    "Provider": "rath.llm.provider",
    "Session": "rath.session.session",
    "Workflow": "rath.flow.workflow",
    "ask": "rath.session.tooling",
    "at_exit": "rath._async.runtime",
    "autosave": "rath.session.autosave",
    "cassette": "rath.session.run.cassette",
    "load": "rath.flow.parameters",
    "offline": "rath.llm.offline",
    "replay": "rath.session.run.cassette",
    "save": "rath.flow.parameters",
    "tool": "rath.flow.tool.function",
    # IPython looks for them here: `%load_ext rath`.
    "load_ipython_extension": "rath.notebook",
    "unload_ipython_extension": "rath.notebook",
}
"""By name, the module that has it."""


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that `import rath` stays cheap (PEP 562)."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:
        return importlib.import_module(f"rath.{name}")
    raise AttributeError(f"module 'rath' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
