"""Evaluation: a workflow over a dataset, and scores that stand in the record of its sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath.eval.dataset import Example, read_dataset
    from rath.eval.evaluation import Evaluation, Suite, evaluate, load_evaluation
    from rath.eval.inspect_log import export_inspect
    from rath.eval.page import write_page
    from rath.eval.report import Comparison, Report, ScoreSummary
    from rath.eval.scorers import (
        Command,
        Contains,
        Exact,
        JSONSchema,
        ModelJudge,
        Numeric,
        Regex,
        Score,
        Scorer,
    )
else:
    from rath._core.lazy_imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "dataset": ("Example", "read_dataset"),
            "evaluation": ("Evaluation", "Suite", "evaluate", "load_evaluation"),
            "inspect_log": ("export_inspect",),
            "page": ("write_page",),
            "report": ("Comparison", "Report", "ScoreSummary"),
            "scorers": (
                *("Command", "Contains", "Exact", "JSONSchema", "ModelJudge", "Numeric"),
                *("Regex", "Score", "Scorer"),
            ),
        },
    )

__all__ = [
    "Command",
    "Comparison",
    "Contains",
    "Evaluation",
    "Exact",
    "Example",
    "JSONSchema",
    "ModelJudge",
    "Numeric",
    "Regex",
    "Report",
    "Score",
    "ScoreSummary",
    "Scorer",
    "Suite",
    "evaluate",
    "export_inspect",
    "load_evaluation",
    "read_dataset",
    "write_page",
]
