"""The contract of memory backends."""

from __future__ import annotations

from rath.conformance.memory.contract import check_memory

__all__ = ["check_memory"]
