"""The contract of sandbox backends: its checks, run one by one."""

from __future__ import annotations

from rath.backend import registry
from rath.backend.abc import Backend, BackendSandboxSpec
from rath.conformance.report import Finding, Report, Skipped, Unlike
from rath.conformance.sandbox import commands, confinement, effects, files, lifetime, workspaces
from rath.conformance.sandbox.subject import Check

__all__ = ["CHECKS", "check_backend"]

CHECKS: tuple[Check, ...] = (
    *lifetime.CHECKS,
    *files.CHECKS,
    *commands.CHECKS,
    *effects.CHECKS,
    *workspaces.CHECKS,
    *confinement.CHECKS,
)


def check_backend(backend: Backend | str, *, spec: BackendSandboxSpec | None = None) -> Report:
    """Run the contract of a sandbox backend against it and return what was found.

    Every check opens a sandbox of its own and closes it. What `supported_calls` or `capabilities`
    leave out is skipped.

    Args:
        backend: An instance, or the name under which it is registered.
        spec: What to open; its workspace is written to.

    Raises:
        AssertionError: Some checks failed; the text is the whole report.
        BackendNotFound: No backend has that name.
    """
    subject = registry.get(backend) if isinstance(backend, str) else backend
    findings = tuple(_run(check, subject, spec) for check in CHECKS)
    report = Report(f"{type(subject).__name__} {subject.name!r}", findings)
    if report.failed:
        raise AssertionError(str(report))
    return report


def _run(check: Check, backend: Backend, spec: BackendSandboxSpec | None) -> Finding:
    name, feature = check.name, check.feature
    missing = check.missing(backend)
    if missing is not None:
        return Finding(name, "skipped", missing, feature)
    try:
        sandbox = backend.open(spec)
        try:
            check.run(sandbox)
        finally:
            backend.close(sandbox)
    except Skipped as exc:
        return Finding(name, "skipped", str(exc), feature)
    except Exception as exc:  # noqa: BLE001  # whatever the subject raises is the finding
        detail = str(exc) if isinstance(exc, Unlike) else repr(exc)
        return Finding(name, "failed", detail, feature)
    return Finding(name, "passed", feature=feature)
