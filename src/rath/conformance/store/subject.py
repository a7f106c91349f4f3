"""A store under its contract: how it is written, read and asked for errors."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ParamSpec
from uuid import UUID, uuid4

from rath.conformance.contract import Unlike, expect, expect_equal
from rath.errors import PersistenceError
from rath.session.log.store import SessionLog, SessionStore, StoredLog

P = ParamSpec("P")

StoreOpener = Callable[[], SessionStore]
"""Opens the store under its contract, the same one each time."""

FIRST = b'{"line": 1}\n'
SECOND = b'{"line": 2, "text": "\xc3\xa4\xe2\x82\xac"}\n'
THIRD = b'{"line": 3}\n'


@dataclass(frozen=True, slots=True)
class StoreSubject:
    """A store that is opened twice, as two programs would; each clause writes its own sessions."""

    store: SessionStore
    other: SessionStore
    opener: StoreOpener

    @property
    def both(self) -> tuple[SessionStore, SessionStore]:
        """The store, opened by one program and by the other."""
        return self.store, self.other

    @contextmanager
    def writing(self, session: UUID | None = None) -> Generator[SessionLog]:
        """Create a log, and close it in the end whatever happens."""
        with _closing(self.store.create(session or uuid4())) as log:
            yield log

    @contextmanager
    def reopening(
        self, session: UUID, keep: int, *, size: int | None = None
    ) -> Generator[SessionLog]:
        """Reopen a log, and close it in the end whatever happens."""
        with _closing(self.store.reopen(session, keep, size=size)) as log:
            yield log

    def write(self, *lines: bytes, session: UUID | None = None, is_finished: bool = True) -> UUID:
        """Write a log, finished or cut off, and return its session."""
        with self.writing(session) as log:
            for line in lines or (FIRST,):
                log.append(line)
            if is_finished:
                log.finish()
            return log.session

    def stored(self, session: UUID) -> StoredLog:
        """Return the log of a session, which both programs must read alike."""
        found, again = (store.read(session) for store in (self.other, self.store))
        if found is None or again is None:
            raise Unlike(f"expected the log of session {session} to be there, read gave None")
        expect_equal(again.data, found.data, "as in the store that was opened again")
        return found

    def expect_data(self, session: UUID, data: bytes, place: str = "in the log") -> None:
        """Read a log, which must hold that."""
        expect_equal(self.stored(session).data, data, place)

    def expect_log(self, session: UUID, data: bytes, *, is_finished: bool) -> None:
        """Read a log, which must hold that and be finished or not."""
        found = self.stored(session)
        expect_equal(found.session, session, "as session")
        expect_equal(found.data, data, "in the log")
        expect_equal(found.is_finished, is_finished, "as is_finished")


@contextmanager
def _closing(log: SessionLog) -> Generator[SessionLog]:
    try:
        yield log
    finally:
        log.abandon()


def expect_refused(
    request: str, ask: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> None:
    """Make a call that must be a PersistenceError with a text."""
    try:
        result = ask(*args, **kwargs)
    except PersistenceError as exc:
        expect(bool(str(exc)), f"an error with a text for {request}")
        return
    if isinstance(result, SessionLog):
        result.abandon()
    raise Unlike(f"expected a PersistenceError for {request}, got {result!r}")
