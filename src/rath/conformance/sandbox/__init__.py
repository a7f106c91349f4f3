"""The contract of sandbox backends."""

from __future__ import annotations

from rath.conformance.sandbox.contract import check_backend

__all__ = ["check_backend"]
