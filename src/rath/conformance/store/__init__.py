"""The contract of session stores."""

from __future__ import annotations

from rath.conformance.store.contract import check_store

__all__ = ["check_store"]
