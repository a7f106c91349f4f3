"""The contract of session stores: its checks, run one by one."""

from __future__ import annotations

from functools import partial

from rath.conformance.report import Report, concluded, found_by
from rath.conformance.store import appending, going_on, looking, trash, writers
from rath.conformance.store.subject import Check, StoreOpener, Subject
from rath.session.log.store import SessionStore, stores

__all__ = ["CHECKS", "check_store"]

CHECKS: tuple[Check, ...] = (
    *appending.CHECKS,
    *writers.CHECKS,
    *going_on.CHECKS,
    *trash.CHECKS,
    *looking.CHECKS,
)


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
    opener = partial(_opened, store) if isinstance(store, str) else store
    subject = Subject(opener(), opener(), opener)
    try:
        findings = tuple(
            found_by(check.name, partial(check.run, subject), feature=check.feature)
            for check in CHECKS
        )
    finally:
        subject.store.close()
        subject.other.close()
    return concluded(f"{type(subject.store).__name__} {subject.store.name!r}", findings)


def _opened(url: str) -> SessionStore:
    # Not by `open_store`, which gives one process one instance.
    return stores.get(url.partition("://")[0])(url)
