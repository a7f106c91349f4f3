"""What backends can do, as a table made from their reports."""

from __future__ import annotations

from collections.abc import Mapping

from rath.conformance.report import Report

__all__ = ["capability_table"]


def capability_table(reports: Mapping[str, Report]) -> str:
    """Return a Markdown table: a row for each feature of the contract, a column for each backend.

    Args:
        reports: What `check_backend` or `check_memory` found, by the name that heads the column;
            those of one table are of one contract.

    Returns:
        A cell says `yes` where every check of the feature passed, `no` where none was asked, and
        `partly` where some were, and `fails` where one of them did not hold.
    """
    lines = ["| Feature | " + " | ".join(f"`{name}`" for name in reports) + " |"]
    lines.append("| --- |" + " --- |" * len(reports))
    features = dict.fromkeys(
        each.feature for report in reports.values() for each in report.findings
    )
    for feature in features:
        cells = [_cell(_statuses(report, feature)) for report in reports.values()]
        lines.append(f"| {feature} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _statuses(report: Report, feature: str) -> list[str]:
    return [finding.status for finding in report.findings if finding.feature == feature]


def _cell(statuses: list[str]) -> str:
    if "failed" in statuses:
        return "fails"
    passed = statuses.count("passed")
    return "yes" if passed == len(statuses) else "partly" if passed else "no"
