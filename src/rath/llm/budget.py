"""The error by which a budget callback ends its run, under the name that documents give."""

from __future__ import annotations

from rath.errors import BudgetExceededError

__all__ = ["BudgetExceededError"]
