"""When a token budget has been reached."""

from __future__ import annotations

from rath.errors import BudgetExceededError

__all__ = ["BudgetExceededError", "crosses_budget", "is_at_budget"]


def crosses_budget(cap: int | None, *, before: int, after: int) -> bool:
    """Tell whether one call took a total over its cap: `before <= cap < after`.

    So it is true once, for the call that crosses it, and never without a cap.
    """
    return cap is not None and before <= cap < after


def is_at_budget(cap: int | None, *, total: int) -> bool:
    """Tell whether a total has reached its cap before a call is made."""
    return cap is not None and total >= cap
