"""The contract of memory backends."""

from __future__ import annotations

from uuid import uuid4

from rath.conformance.contract import Report, run_on_handles
from rath.conformance.memory import notes, retrieval
from rath.conformance.memory.subject import LIFETIME, MemorySubject
from rath.memory import registry
from rath.memory.abc import MemoryBackend, MemoryStore, MemoryStoreSpec

__all__ = ["check_memory"]

CLAUSES = (
    *LIFETIME,
    *notes.NOTES,
    *notes.ADDRESSES,
    *notes.LISTINGS,
    *retrieval.FINDING,
    *retrieval.FORGETTING,
    *retrieval.TRANSCRIPTS,
    *notes.CONCURRENCY,
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
    driver = registry.get(backend) if isinstance(backend, str) else backend
    supported = driver.supported_ops()

    def subject(store: MemoryStore) -> MemorySubject:
        return MemorySubject(store, f"memory://agent/conformance/{uuid4().hex}", spec)

    return run_on_handles(driver, CLAUSES, subject, spec=spec, supported=supported)
