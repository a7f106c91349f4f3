"""What a contract found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Report", "Skipped", "Unlike", "expect"]


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
