"""Contracts: tables of named clauses, the runner of all of them, and its report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, Literal, ParamSpec, TypeVar

from rath._core.dataclasses import dataclass

__all__ = [
    "Clause",
    "Clauses",
    "Finding",
    "HandleSubject",
    "Report",
    "Skipped",
    "Unlike",
    "capability_table",
    "excerpt",
    "expect",
    "expect_equal",
    "expect_error",
    "expect_failure",
    "expect_kind",
    "run_clauses",
    "run_on_handles",
]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
H = TypeVar("H", bound="HandleSubject")

_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check."""

    check: str
    status: Literal["passed", "failed", "skipped"]
    detail: str = ""
    """Expectation and observation, the reason for skipping, or a remark."""
    feature: str = ""
    """The row of the capability table that it belongs to, where there is one."""


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of all checks of one subject."""

    subject: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The clauses that did not hold."""
        return tuple(finding for finding in self.findings if finding.status == "failed")

    def __str__(self) -> str:
        lines = (
            f"  {finding.status:7} {finding.check}"
            + (f": {finding.detail}" if finding.detail else "")
            for finding in self.findings
        )
        return "\n".join([f"{self.subject}:", *lines])


class Unlike(Exception):
    """A subject behaves otherwise than a contract wants it."""


class Skipped(Exception):
    """Something cannot be asked of a subject; the text says why."""


# ---------------------------------------------------------------- clauses


@dataclass(frozen=True, slots=True)
class Clause(Generic[S]):
    """One promise of a contract."""

    name: str
    """The promise, in words joined by underscores."""

    feature: str
    """The row of the capability table that it belongs to."""

    run: Callable[[S], str | None]
    """Raises where the promise does not hold; may return what was seen besides."""

    needs: tuple[type, ...] = ()
    """Types of operations that a driver must support for the clause to be asked."""

    offer: str | None = None
    """The field of its capabilities that must be true for that."""

    def missing(self, supported: Collection[type], capabilities: object) -> str | None:
        """Return why it cannot be asked of a driver, None if it can."""
        names = [each.__name__ for each in self.needs if each not in supported]
        if names:
            return f"no {', '.join(names)}"
        if self.offer is not None and not getattr(capabilities, self.offer):
            return f"capabilities say {self.offer}=False"
        return None


class Clauses(list[Clause[S]]):
    """A table of clauses, a row for each function that is added to it."""

    def add(
        self, feature: str, *needs: type, offer: str | None = None, name: str | None = None
    ) -> Callable[[Callable[[S], str | None]], Callable[[S], str | None]]:
        """Return a decorator that adds a function under its name, or another one."""

        def add_clause(run: Callable[[S], str | None]) -> Callable[[S], str | None]:
            self.append(Clause(name or run.__name__, feature, run, needs, offer))
            return run

        return add_clause


def run_clauses(
    title: str,
    clauses: Iterable[Clause[S]],
    subject: Callable[[], AbstractContextManager[S]],
    *,
    supported: Collection[type] = (),
    capabilities: object = None,
    redact: Callable[[str], str] = str,
) -> Report:
    """Run the clauses of a contract one by one and return the report.

    Args:
        title: The subject, for the report.
        clauses: What to check, in order.
        subject: Gives each clause what it checks, for as long as it does.
        supported: The types of operations that the driver supports.
        capabilities: Its capabilities.
        redact: Changes the texts of findings.

    Raises:
        AssertionError: Some of them failed; the text is the whole report.
    """

    def find(clause: Clause[S]) -> tuple[Literal["passed", "failed", "skipped"], str]:
        missing = clause.missing(supported, capabilities)
        if missing is not None:
            return "skipped", missing
        try:
            with subject() as each:
                return "passed", clause.run(each) or ""
        except Skipped as exc:
            return "skipped", str(exc)
        except Exception as exc:  # noqa: BLE001  # whatever the subject raises is the finding
            return "failed", str(exc) if isinstance(exc, Unlike) else repr(exc)

    findings: list[Finding] = []
    for clause in clauses:
        status, detail = find(clause)
        findings.append(Finding(clause.name, status, redact(detail), clause.feature))
    report = Report(title, tuple(findings))
    if report.failed:
        raise AssertionError(str(report))
    return report


def capability_table(reports: Mapping[str, Report]) -> str:
    """Return a Markdown table: a row for each feature of the contract, a column for each backend.

    Args:
        reports: What `check_backend` or `check_memory` found, by the name that heads the column;
            those of one table are of one contract.

    Returns:
        A cell says `yes` where every check of the feature passed, `no` where none was asked, and
        `partly` where some were, and `fails` where one of them did not hold.
    """

    def cell(report: Report, feature: str) -> str:
        statuses = [each.status for each in report.findings if each.feature == feature]
        passed = statuses.count("passed")
        if "failed" in statuses:
            return "fails"
        return "yes" if passed == len(statuses) else "partly" if passed else "no"

    lines = ["| Feature | " + " | ".join(f"`{name}`" for name in reports) + " |"]
    lines.append("| --- |" + " --- |" * len(reports))
    found = [each.feature for report in reports.values() for each in report.findings]
    for feature in dict.fromkeys(found):
        cells = " | ".join(cell(report, feature) for report in reports.values())
        lines.append(f"| {feature} | {cells} |")
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- expectations


def excerpt(value: object) -> str:
    """Return the start of a value's representation."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def expect(holds: bool, expectation: str) -> None:
    """Raise `Unlike` unless an expectation holds."""
    if not holds:
        raise Unlike(f"expected {expectation}")


def expect_equal(found: object, expected: object, place: str = "") -> None:
    """Raise `Unlike` unless two values are equal; `place` says where it was found."""
    expect(found == expected, f"{excerpt(expected)}{place and f' {place}'}, got {excerpt(found)}")


def expect_kind(found: object, kind: type[R], request: object) -> R:
    """Return the result of a request, which must be of that type."""
    if not isinstance(found, kind):
        raise Unlike(f"expected {kind.__name__} for {excerpt(request)}, got {found!r}")
    return found


def expect_failure(found: object, failure: type[Any], kind: str, request: object) -> None:
    """Expect that a request failed in that way, and that its failure says something."""
    failed: Any = expect_kind(found, failure, request)
    expect(failed.kind == kind, f"a failure of kind {kind!r} for {excerpt(request)}, got {found!r}")
    expect(bool(failed.message), f"a failure with a message for {excerpt(request)}")


def expect_error(
    kind: type[Exception], request: str, ask: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> None:
    """Make a call that must raise that error, with a text."""
    try:
        result = ask(*args, **kwargs)
    except kind as exc:
        expect(bool(str(exc)), f"an error with a text for {request}")
        return
    raise Unlike(f"expected {kind.__name__} for {request}, got {result!r}")


# ---------------------------------------------------------------- handles


class HandleSubject(ABC):
    """An open handle of a plane, for the clauses that all planes with handles share."""

    backend: Any
    """The backend that opened it."""

    target: Any
    """The handle: a sandbox or a store."""

    @abstractmethod
    def count(self) -> int:
        """Return how many handles the backend counts."""

    @abstractmethod
    def samples(self) -> list[Any]:
        """Return supported operations that a new handle can do, the harmless ones first."""

    @abstractmethod
    def flags(self) -> Mapping[str, type]:
        """Return which capability says whether which type of operation is supported."""

    @abstractmethod
    def supported(self) -> Collection[type]:
        """Return the types of operations that the backend supports."""

    def has_handle_and_no_holder(self) -> None:
        """Expect what is true of a handle that was just opened."""
        expect(bool(self.target.handle), "a handle that is not empty")
        expect(not self.target.closed, "an open handle")
        expect_equal(self.target.refcount, 0, "as refcount")
        expect(self.count() >= 1, "the backend to count it")

    def opens_on_first_use(self) -> None:
        """Expect of a lazy handle that it opens when it is used, and not before."""
        lazy = self.backend.lazy(self.target.spec)
        expect_equal(lazy.handle, "", "as handle before the first use")
        for operation in self.samples()[:1]:
            lazy.dispatch(operation)
            expect(bool(lazy.handle), "a handle after the first use")
        self.backend.close(lazy)

    def closes_once(self) -> None:
        """Expect that closing is counted once, however often it is asked for."""
        before = self.count()
        self.backend.close(self.target)
        self.backend.close(self.target)
        expect(self.target.closed, "a closed handle")
        expect_equal(self.count(), before - 1, "as the backend's count afterwards")

    def last_holder_closes(self) -> None:
        """Expect that the last release closes."""
        with self.target, self.target:
            expect_equal(self.target.refcount, 2, "as refcount")
        expect(self.target.closed, "a closed handle after the last release")

    def capabilities_agree(self) -> None:
        """Expect that capabilities and supported operations say the same."""
        offers = self.backend.capabilities()
        for flag, kind in self.flags().items():
            agrees = getattr(offers, flag) == (kind in self.supported())
            expect(agrees, f"{flag} to say whether {kind.__name__} is supported")


def run_on_handles(
    driver: Any,
    clauses: Iterable[Clause[H]],
    subject: Callable[[Any], H],
    *,
    spec: object,
    supported: Collection[type],
) -> Report:
    """Run the clauses of a contract, each on a handle of its own that is closed afterwards.

    Args:
        driver: The backend, which opens `spec`.
        clauses: What to check, in order.
        subject: Makes the subject of a clause out of a handle.
        spec: What to open; may be None.
        supported: The types of operations that the driver supports.

    Raises:
        AssertionError: Some of them failed; the text is the whole report.
    """

    @contextmanager
    def opened() -> Generator[H]:
        handle = driver.open(spec)
        try:
            yield subject(handle)
        finally:
            driver.close(handle)

    title, offers = f"{type(driver).__name__} {driver.name!r}", driver.capabilities()
    return run_clauses(title, clauses, opened, supported=supported, capabilities=offers)
