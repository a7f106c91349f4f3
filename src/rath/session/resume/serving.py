"""A program that runs again: what it makes is looked for in what it had made, by its place."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, Protocol
from uuid import UUID

from rath._async.lazy import Deferred
from rath._core.text import short_id
from rath.session.body import Body
from rath.session.derivation import cancelled_body
from rath.session.graph.provenance import Provenance
from rath.session.log.store import SessionStore
from rath.session.operation import Place
from rath.session.placement import Placement
from rath.session.record import Record
from rath.session.resume.claims import claim, has_gone_on, newest, say_same
from rath.session.resume.open_calls import entries_since
from rath.session.running.uplink import is_inside_run, uplink

CancelledRuns = Literal["keep", "go_on"]
"""What becomes of a run that was cancelled when its program runs again."""


@dataclass(frozen=True, slots=True)
class Found:
    """A session that was made at a place before."""

    id: UUID
    body: Deferred[Body]
    provenance: Provenance
    late: Record | None = None
    """The record with what came after the run, None where nothing did."""

    placement: Placement | None = None
    """Where it works by its log; None where that is not known."""

    is_moved: bool = False
    """Whether somebody has placed it elsewhere since."""

    def placed(self, now: Placement) -> Placement:
        """Return where it goes on.

        What a program says of it when it runs again is less than where its files are.

        Args:
            now: Where the program that runs again places it.
        """
        own = self.placement
        if own is None or not own.is_chosen or own.is_in_workspace_of(now):
            return now
        return own if self.is_moved or own.has_files or not now.is_chosen else now

    @property
    def written(self) -> Body:
        """What its run had written; it has written something."""
        body = self.body.latest
        assert body is not None
        return body

    @property
    def content(self) -> Body | None:
        """What there is of it, with late entries; None where there is nothing yet."""
        body = self.body.latest
        if body is None or self.late is None:
            return body
        return Body(body.table, self.late, body.outcome, body.given, body.unfinished)


class Known(Protocol):
    """What a run had made before."""

    cancelled: CancelledRuns

    @property
    def store(self) -> SessionStore | None:
        """Where what is made is written too, None where it need not be."""
        ...

    def find(self, session: UUID) -> Found | None:
        """Return a session by its id, None where it was never made."""
        ...

    def drop(self, session: UUID) -> None:
        """Forget a session that is made anew."""
        ...

    def begin(
        self, session: UUID, start: Callable[[], Deferred[Body]]
    ) -> tuple[Deferred[Body], bool]:
        """Have a session made that was not found, unless that has begun meanwhile; see `claim`."""
        ...


_known: contextvars.ContextVar[Known | None] = contextvars.ContextVar("rath_known", default=None)


@contextmanager
def serving(known: Known) -> Generator[None]:
    """Let what is made inside be looked for in `known` first."""
    token = _known.set(known)
    try:
        yield
    finally:
        _known.reset(token)


def known_run() -> Known | None:
    """Return what is known of the run that goes on here, None where a program runs anew."""
    return _known.get()


def found_at(place: Place) -> Found | None:
    """Return the session that was made at a place before, None where there is none."""
    known = _known.get()
    found = None if known is None or place.run is None else known.find(place.new_id())
    if found is None or not has_gone_on(found.body):
        return found
    return replace(found, body=newest(found.body), late=None)


def begun_once(
    session: UUID, origin: Deferred[Body] | None, start: Callable[[], Deferred[Body]]
) -> tuple[Deferred[Body], bool]:
    """Submit a run, unless the same one was submitted meanwhile.

    Args:
        session: What it makes.
        origin: With what it goes on, or in whose place it is made anew; None where it is new.
        start: Submits it, and returns what it makes; must not wait.

    Returns:
        What the run makes, and whether it was started here.
    """
    if origin is not None:
        return claim(origin, start)
    known = _known.get()
    return (start(), True) if known is None else known.begin(session, start)


def make_anew(place: Place) -> None:
    """Forget the session that was made at a place before."""
    known = _known.get()
    assert known is not None, "found, so something is known"
    known.drop(place.new_id())


def served(
    found: Found,
    inputs: tuple[Deferred[Body], ...],
    check: Callable[..., None],
) -> Deferred[Body]:
    """Return the content of a session that was found, once it is sure that it is the same.

    Args:
        found: The session.
        inputs: What it is made of now.
        check: Gets their content; raises ResumeMismatch. It is called at once where the inputs are
            there, else when they are.
    """
    content = found.content
    assert content is not None, "what is served is there"
    told = entries_since(content.record, found.id) if is_inside_run() else ()
    if all(cell.done() and cell.error() is None for cell in inputs):
        check(*(cell.result() for cell in inputs))
        if not told:
            return found.body
    sink = uplink()

    async def wait_and_check(_: Deferred[Body]) -> Body:
        check(*[await cell for cell in inputs])
        for entry in told:
            sink(entry, None)
        return await found.body

    told_again: Deferred[Body] = Deferred.start(
        wait_and_check,
        owner=found.id,
        label=f"session {short_id(found.id)} (served from its record)",
        inputs=inputs,
        on_cancel=lambda latest: latest or cancelled_body(found.id, inputs),
    )
    say_same(told_again, found.body)
    return told_again
