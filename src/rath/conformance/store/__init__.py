"""The contract of session stores."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

from rath.conformance.contract import Report, run_clauses
from rath.conformance.store import logs, writers
from rath.conformance.store.subject import StoreOpener, StoreSubject
from rath.session.log.store import SessionStore, stores

__all__ = ["check_store"]

CLAUSES = (*logs.LOGS, *writers.WRITERS, *logs.REOPENED, *logs.RETENTION, *logs.STAMPS)


def check_store(store: StoreOpener | str) -> Report:
    """Run the contract of session stores against one and return what was found.

    Sessions of its own are written to it, and its trash is emptied: give it a store without any.

    Args:
        store: Its URL, or what opens it: called several times, each time for the same store, and
            pickled for another process. What cannot be pickled skips the checks that need one.

    Raises:
        AssertionError: Some checks failed; the text is the whole report.
        StoreNotFound: No store has the scheme of that URL.
    """
    opener = partial(_open_anew, store) if isinstance(store, str) else store
    subject = StoreSubject(opener(), opener(), opener)
    title = f"{type(subject.store).__name__} {subject.store.name!r}"
    try:
        return run_clauses(title, CLAUSES, lambda: nullcontext(subject))
    finally:
        subject.store.close()
        subject.other.close()


def _open_anew(url: str) -> SessionStore:
    # Not by `open_store`, which gives one process one instance.
    return stores.get(url.partition("://")[0])(url)
