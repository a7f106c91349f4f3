"""What is recorded because what is around it is: a tool call in a run, a call of a server."""

from __future__ import annotations

import contextvars
from collections.abc import Generator
from contextlib import contextmanager
from uuid import UUID

from rath.session.log.store import SessionStore, default_store
from rath.session.recorder.shelf import being_written

_store: contextvars.ContextVar[SessionStore | None] = contextvars.ContextVar(
    "rath_store_beside", default=None
)


@contextmanager
def recorded_in(store: SessionStore) -> Generator[None]:
    """Have runs and derivations that are made inside recorded in `store`."""
    token = _store.set(store)
    try:
        yield
    finally:
        _store.reset(token)


@contextmanager
def recorded_beside(session: UUID) -> Generator[None]:
    """Have what is made inside recorded as the run of `session` is.

    So a call that is made again when that run goes on finds what it had made. Nothing changes
    where that run is not recorded.
    """
    writer = being_written(session)
    if writer is None:
        yield
        return
    # A file of its own holds no other session: theirs are where all others are.
    with recorded_in(default_store() if writer.is_alone else writer.store):
        yield


def store_beside() -> SessionStore | None:
    """Return where what is made here is recorded because of what is around it, None if nowhere."""
    return _store.get()
