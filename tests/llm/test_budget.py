"""The error of budgets is found where documents name it."""

from __future__ import annotations

import rath.errors
import rath.llm.budget


def test_the_error_of_budgets_is_one_class_under_all_its_names() -> None:
    assert rath.llm.budget.BudgetExceededError is rath.errors.BudgetExceededError
    assert rath.llm.BudgetExceededError is rath.errors.BudgetExceededError
