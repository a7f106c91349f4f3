"""The contract of sandbox backends."""

from __future__ import annotations

from rath.conformance.sandbox.contract import check_backend
from rath.conformance.sandbox.table import capability_table

__all__ = ["capability_table", "check_backend"]
