"""The contract of sandbox backends: its checks, run one by one."""

from __future__ import annotations

from rath.backend import registry
from rath.backend.abc import Backend, BackendSandboxSpec
from rath.conformance.report import Finding, Report, concluded, found_by
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
    return concluded(f"{type(subject).__name__} {subject.name!r}", findings)


def _run(check: Check, backend: Backend, spec: BackendSandboxSpec | None) -> Finding:
    missing = check.missing(backend)
    if missing is not None:
        return Finding(check.name, "skipped", missing, check.feature)

    def ask() -> None:
        sandbox = backend.open(spec)
        try:
            check.run(sandbox)
        finally:
            backend.close(sandbox)

    return found_by(check.name, ask, feature=check.feature)
