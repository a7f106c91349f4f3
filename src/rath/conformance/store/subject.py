"""A store under its contract: what a check is, and how it asks."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ParamSpec
from uuid import UUID, uuid4

from rath.conformance.report import Unlike, expect
from rath.errors import PersistenceError
from rath.session.log.store import SessionLog, SessionStore, StoredLog

P = ParamSpec("P")

StoreOpener = Callable[[], SessionStore]
"""Opens the store under its contract, the same one each time."""

FIRST = b'{"line": 1}\n'
SECOND = b'{"line": 2, "text": "\xc3\xa4\xe2\x82\xac"}\n'
THIRD = b'{"line": 3}\n'


@dataclass(frozen=True, slots=True)
class Subject:
    """A store that is opened twice, as two programs would."""

    store: SessionStore
    other: SessionStore
    opener: StoreOpener


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a store must do; each takes sessions of its own."""

    feature: str
    """The row of the capability table that it belongs to."""

    run: Callable[[Subject], str | None]
    """May return what was seen besides, for the report."""

    @property
    def name(self) -> str:
        """What is checked, in words joined by underscores."""
        return self.run.__name__


@contextmanager
def writing(store: SessionStore, session: UUID | None = None) -> Generator[SessionLog]:
    """Begin a log, and let go of it in the end whatever happens."""
    log = store.create(uuid4() if session is None else session)
    try:
        yield log
    finally:
        log.abandon()


@contextmanager
def going_on(
    store: SessionStore, session: UUID, keep: int, *, size: int | None = None
) -> Generator[SessionLog]:
    """Go on with a log, and let go of it in the end whatever happens."""
    log = store.reopen(session, keep, size=size)
    try:
        yield log
    finally:
        log.abandon()


def finished(store: SessionStore, *lines: bytes, session: UUID | None = None) -> UUID:
    """Write a whole log and return its session."""
    with writing(store, session) as log:
        for line in lines or (FIRST,):
            log.append(line)
        log.finish()
        return log.session


def cut_off(store: SessionStore, *lines: bytes) -> UUID:
    """Write a log that is not finished and return its session."""
    with writing(store) as log:
        for line in lines or (FIRST,):
            log.append(line)
        return log.session


def stored(store: SessionStore, session: UUID) -> StoredLog:
    """Return the log of a session, which must be there."""
    found = store.read(session)
    if found is None:
        raise Unlike(f"expected the log of session {session} to be there, read gave None")
    return found


def expect_log(store: SessionStore, session: UUID, data: bytes, *, is_finished: bool) -> None:
    """Read a log, which must hold that and stand so."""
    found = stored(store, session)
    expect(found.session == session, f"the session {session}, got {found.session}")
    expect(found.data == data, f"{shown(data)} in the log, got {shown(found.data)}")
    expect(found.is_finished == is_finished, f"is_finished={is_finished}, got {found.is_finished}")


def expect_refused(what: str, ask: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Ask for what must be a PersistenceError that says something."""
    try:
        given = ask(*args, **kwargs)
    except PersistenceError as exc:
        expect(bool(str(exc)), f"an error with a text for {what}")
        return
    if isinstance(given, SessionLog):
        given.abandon()
    raise Unlike(f"expected a PersistenceError for {what}, got {given!r}")


def shown(data: bytes) -> str:
    """Return the begin of what long data looks like."""
    text = repr(data)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(data)} bytes)"
