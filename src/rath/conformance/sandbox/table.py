"""What backends can do, as a table made from their reports."""

from __future__ import annotations

from collections.abc import Mapping

from rath.conformance.report import Report
from rath.conformance.sandbox.contract import CHECKS

__all__ = ["capability_table"]


def capability_table(reports: Mapping[str, Report]) -> str:
    """Return a Markdown table: a row for each feature of the contract, a column for each backend.

    Args:
        reports: What `check_backend` found, by the name that heads the column.

    Returns:
        A cell says `yes` where every check of the feature passed, `no` where none was asked, and
        `partly` where some were, and `fails` where one of them did not hold.
    """
    columns = {name: _statuses(report) for name, report in reports.items()}
    lines = ["| Feature | " + " | ".join(f"`{name}`" for name in columns) + " |"]
    lines.append("| --- |" + " --- |" * len(columns))
    for feature in dict.fromkeys(check.feature for check in CHECKS):
        checks = [check.name for check in CHECKS if check.feature == feature]
        cells = [_cell([found[name] for name in checks]) for found in columns.values()]
        lines.append(f"| {feature} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _statuses(report: Report) -> dict[str, str]:
    return {finding.check: finding.status for finding in report.findings}


def _cell(statuses: list[str]) -> str:
    if "failed" in statuses:
        return "fails"
    passed = statuses.count("passed")
    return "yes" if passed == len(statuses) else "partly" if passed else "no"
