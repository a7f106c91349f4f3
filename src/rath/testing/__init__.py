"""Public doubles for tests and examples: a scripted model; sandbox, memory and store in memory."""

from __future__ import annotations

from rath.testing.chat import ScriptedClient, Turn, tool_call
from rath.testing.memory import FakeMemory, MemoryAnswer
from rath.testing.sandbox import CommandAnswer, FakeBackend, FakeSandbox
from rath.testing.store import FakeSessionStore

__all__ = [
    "CommandAnswer",
    "FakeBackend",
    "FakeMemory",
    "FakeSandbox",
    "FakeSessionStore",
    "MemoryAnswer",
    "ScriptedClient",
    "Turn",
    "tool_call",
]
