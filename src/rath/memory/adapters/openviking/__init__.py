"""The memory backend that keeps notes on a server of OpenViking."""

from __future__ import annotations

from rath.memory.adapters.openviking.backend import OpenVikingMemoryBackend

__all__ = ["OpenVikingMemoryBackend"]
