"""The contract of sandbox backends."""

from __future__ import annotations

from rath.backend import registry
from rath.backend.abc import Backend, BackendSandboxSpec
from rath.conformance.contract import Report, run_on_handles
from rath.conformance.sandbox import commands, files
from rath.conformance.sandbox.subject import LIFETIME, SandboxSubject

__all__ = ["check_backend"]

CLAUSES = (*LIFETIME, *files.FILES, *commands.COMMANDS, *files.WORKSPACES, *commands.CONFINEMENT)


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
    driver = registry.get(backend) if isinstance(backend, str) else backend
    supported = driver.supported_calls()
    return run_on_handles(driver, CLAUSES, SandboxSubject, spec=spec, supported=supported)
