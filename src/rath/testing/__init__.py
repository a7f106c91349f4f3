"""Public doubles for tests and examples: a scripted model, a sandbox and a memory without disk."""

from __future__ import annotations

from rath.testing.chat import ScriptedClient, Turn, tool_call
from rath.testing.memory import FakeMemory, MemoryAnswer
from rath.testing.sandbox import CommandAnswer, FakeBackend, FakeSandbox

__all__ = [
    "CommandAnswer",
    "FakeBackend",
    "FakeMemory",
    "FakeSandbox",
    "MemoryAnswer",
    "ScriptedClient",
    "Turn",
    "tool_call",
]
