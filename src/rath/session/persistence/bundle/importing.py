"""Bundles into stores: what is there is never overwritten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from rath._core.blobs import Blob
from rath.errors import PersistenceError
from rath.session.persistence.bundle.decode import Bundle
from rath.session.persistence.bundle.packing import look_into
from rath.session.persistence.store.abc import SessionStore, StoredLog


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import came to."""

    added: tuple[UUID, ...]
    """Sessions that the store did not hold."""

    grown: tuple[UUID, ...]
    """Sessions of which it held a beginning."""

    kept: tuple[UUID, ...]
    """Sessions that it held as they are in the bundle, or with more than that."""


def import_bundle(
    bundle: Bundle, store: SessionStore, *, report: Callable[[int, int], None] | None = None
) -> Imported:
    """Write the sessions of a bundle to a store, what they came from first; blocks.

    Everything is looked at before anything is written.

    Args:
        bundle: What is imported.
        store: Where to.
        report: Is told how many sessions are done, and of how many.

    Raises:
        PersistenceError: The store holds something else under one of the ids, or cannot be
            written. What was written by then stays.
        SessionDamaged: A log of the bundle is not what was written.
    """
    plans = [_plan(bundle, log, store) for log in bundle.logs.values()]
    for n_done, plan in enumerate(plans, start=1):
        _write(plan, store)
        if report is not None:
            report(n_done, len(plans))
    added = tuple(plan.log.session for plan in plans if plan.there is None)
    grown = tuple(plan.log.session for plan in plans if plan.there is not None and plan.is_needed)
    kept = tuple(plan.log.session for plan in plans if not plan.is_needed)
    return Imported(added, grown, kept)


@dataclass(frozen=True, slots=True)
class _Plan:
    log: StoredLog
    blobs: tuple[Blob, ...]
    there: StoredLog | None
    """What the store holds of it."""

    @property
    def is_needed(self) -> bool:
        return self.there is None or len(self.there.data) < len(self.log.data)


def _plan(bundle: Bundle, log: StoredLog, store: SessionStore) -> _Plan:
    contents = (bundle.blobs.get(digest) for digest in sorted(look_into(log).named))
    blobs = tuple(
        Blob.from_bytes(content, keep=len(content)) for content in contents if content is not None
    )
    there = store.read(log.session)
    if there is not None:
        shared = min(len(there.data), len(log.data))
        if there.data[:shared] != log.data[:shared]:
            raise PersistenceError(
                f"{store.where} holds another session {log.session} than the bundle; nothing was "
                "imported. Import into another store, or delete that session first"
            )
        if shared < len(log.data) and store.is_being_written(log.session):
            raise PersistenceError(
                f"session {log.session} is being written in {store.where}; nothing was imported. "
                "Wait for its run"
            )
    return _Plan(log, blobs, there)


def _write(plan: _Plan, store: SessionStore) -> None:
    log, there = plan.log, plan.there
    if not plan.is_needed:
        return
    if there is not None and there.is_finished and log.is_finished:
        size = len(there.data)
        added = store.append_to_finished(log.session, size, log.data[size:], blobs=plan.blobs)
        if not added:
            raise PersistenceError(
                f"session {log.session} was changed in {store.where} meanwhile; import again"
            )
        return
    if there is None:
        target, rest = store.create(log.session), log.data
    else:
        size = len(there.data)
        target, rest = store.reopen(log.session, size, size=size), log.data[size:]
    try:
        target.append(rest, blobs=plan.blobs, durable=True)
        if log.is_finished:
            target.finish()
    finally:
        target.abandon()
