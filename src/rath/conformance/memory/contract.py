"""The contract of memory backends: its checks, run one by one."""

from __future__ import annotations

from uuid import uuid4

from rath.conformance.memory import (
    addresses,
    finding,
    forgetting,
    lifetime,
    listings,
    notes,
    together,
    transcripts,
)
from rath.conformance.memory.subject import Check, Place
from rath.conformance.report import Finding, Report, concluded, found_by
from rath.memory import registry
from rath.memory.abc import MemoryBackend, MemoryStoreSpec

__all__ = ["CHECKS", "check_memory"]

CHECKS: tuple[Check, ...] = (
    *lifetime.CHECKS,
    *notes.CHECKS,
    *addresses.CHECKS,
    *listings.CHECKS,
    *finding.CHECKS,
    *forgetting.CHECKS,
    *transcripts.CHECKS,
    *together.CHECKS,
)


def check_memory(backend: MemoryBackend | str, *, spec: MemoryStoreSpec | None = None) -> Report:
    """Run the contract of a memory backend against it and return what was found.

    Every check opens a store and closes it, and works below a new directory of that store. What
    `supported_ops` or `capabilities` leave out is skipped. About twenty of its writes wait until
    the store has processed the note; two hundred do not.

    Args:
        backend: An instance, or the name under which it is registered.
        spec: Which store to open; it is written to, and what is written stays.

    Raises:
        AssertionError: Some checks failed; the text is the whole report.
        MemoryBackendNotFound: No backend has that name.
    """
    subject = registry.get(backend) if isinstance(backend, str) else backend
    findings = tuple(_run(check, subject, spec) for check in CHECKS)
    return concluded(f"{type(subject).__name__} {subject.name!r}", findings)


def _run(check: Check, backend: MemoryBackend, spec: MemoryStoreSpec | None) -> Finding:
    missing = check.missing(backend)
    if missing is not None:
        return Finding(check.name, "skipped", missing, check.feature)

    def ask() -> str | None:
        store = backend.open(spec)
        try:
            return check.run(Place(store, f"memory://agent/conformance/{uuid4().hex}", spec))
        finally:
            backend.close(store)

    return found_by(check.name, ask, feature=check.feature)
