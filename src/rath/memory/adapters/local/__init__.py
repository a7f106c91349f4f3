"""The memory backend that keeps notes in a directory of this machine."""

from __future__ import annotations

from rath.memory.adapters.local.backend import META_SCHEMA_VERSION, LocalMemoryBackend

__all__ = ["META_SCHEMA_VERSION", "LocalMemoryBackend"]
