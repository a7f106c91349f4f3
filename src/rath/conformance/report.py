"""What a contract found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Report", "Skipped", "Unlike", "concluded", "expect", "found_by"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check."""

    check: str
    status: Literal["passed", "failed", "skipped"]
    detail: str = ""
    """What was expected and what happened, why it was skipped, or what was seen besides."""
    feature: str = ""
    """The row of the capability table that it belongs to, where there is one."""


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of all checks of one subject."""

    subject: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """Those that did not hold."""
        return tuple(finding for finding in self.findings if finding.status == "failed")

    def __str__(self) -> str:
        lines = (
            f"  {finding.status:7} {finding.check}"
            + (f": {finding.detail}" if finding.detail else "")
            for finding in self.findings
        )
        return "\n".join([f"{self.subject}:", *lines])


class Unlike(Exception):
    """Something is not as a contract wants it."""


class Skipped(Exception):
    """Something cannot be asked of a subject; the text says why."""


def expect(holds: bool, expectation: str) -> None:
    """Raise `Unlike` unless an expectation holds."""
    if not holds:
        raise Unlike(f"expected {expectation}")


def found_by(check: str, ask: Callable[[], str | None], *, feature: str = "") -> Finding:
    """Run a check and return what came of it.

    Args:
        check: Its name.
        ask: Raises `Unlike` or anything else where it does not hold, `Skipped` where it cannot be
            asked, and may return what was seen besides.
        feature: The row of the capability table that it belongs to.
    """
    try:
        seen = ask()
    except Skipped as exc:
        return Finding(check, "skipped", str(exc), feature)
    except Exception as exc:  # noqa: BLE001  # whatever the subject raises is the finding
        detail = str(exc) if isinstance(exc, Unlike) else repr(exc)
        return Finding(check, "failed", detail, feature)
    return Finding(check, "passed", seen or "", feature)


def concluded(subject: str, findings: tuple[Finding, ...]) -> Report:
    """Return the report of all checks of a subject.

    Raises:
        AssertionError: Some of them failed; the text is the whole report.
    """
    report = Report(subject, findings)
    if report.failed:
        raise AssertionError(str(report))
    return report
