"""Executable contracts: what a backend, a memory or a chat client of anybody's must do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath.conformance.chat import check_chat_client
    from rath.conformance.contract import Finding, Report, capability_table
    from rath.conformance.engine import (
        EngineHarness,
        LocalProcessHarness,
        WorkerPlace,
        check_engine,
    )
    from rath.conformance.memory import check_memory
    from rath.conformance.sandbox import check_backend
    from rath.conformance.store import check_store
else:
    from rath._core.lazy_imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "chat": ("check_chat_client",),
            "contract": ("Finding", "Report", "capability_table"),
            "engine": ("EngineHarness", "LocalProcessHarness", "WorkerPlace", "check_engine"),
            "memory": ("check_memory",),
            "sandbox": ("check_backend",),
            "store": ("check_store",),
        },
    )

__all__ = [
    "EngineHarness",
    "Finding",
    "LocalProcessHarness",
    "Report",
    "WorkerPlace",
    "capability_table",
    "check_backend",
    "check_chat_client",
    "check_engine",
    "check_memory",
    "check_store",
]
