"""The scope of an operation: the record that serves it, and the run that is resumed.

Sessions are no types here: their class is built on this.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from rath._async.deferred import runs_above
from rath._core.dataclasses import dataclass
from rath._core.options import ValueScope
from rath.session.body import Body
from rath.session.operation import next_place

if TYPE_CHECKING:
    from uuid import UUID

    from rath._async.deferred import Deferred
    from rath.llm.base import ChatClient
    from rath.llm.provider import Provider
    from rath.session.bindings import Placement
    from rath.session.calls.requests import ProviderCandidate
    from rath.session.chunk import RowId
    from rath.session.content import ToolCall
    from rath.session.graph.recording import Provenance
    from rath.session.log.store import SessionStore
    from rath.session.operation import Place
    from rath.session.record import Entry, Record


ServedKind = Literal["loop", "compress", "select"]
DerivedKind = Literal["fork", "detach", "merge", "delegate", "input"]


class RecordedServing(Protocol):
    """A run of a model that is served from the record of one that was made."""

    place: Place
    """Where the recorded one was made, and which session it made."""

    run_id: UUID
    """Its operation."""

    rounds: Callable[..., Any]
    """Makes what stands for the tools; takes what `ToolRounds` takes."""

    offered: frozenset[str]
    """Names of the tools that the recorded one offered."""

    def recall(self, given: Any) -> Any:
        """Return a recall of the recorded notes; lets go of the one that was given."""
        ...

    def changes_of(self, row: RowId) -> Sequence[Entry]:
        """Return the changes of hooks to the answer that a row holds."""
        ...

    def result_order(self, calls: Sequence[ToolCall]) -> Sequence[int]:
        """Return the places of the calls of a turn in the order in which their results stand."""
        ...

    def cut_off(self, latest: Body, session: UUID) -> Body:
        """Return the content of a run that was ended where its record ends, or by a caller."""
        ...


class ReplayContext(Protocol):
    """Serves operations from a record; each method raises ReplayDifference where it cannot."""

    def client(self, provider: Provider) -> ChatClient:
        """Return a client that can write the requests of a provider; it need not have a key."""
        ...

    def candidates(self, given: tuple[ProviderCandidate, ...]) -> tuple[ProviderCandidate, ...]:
        """Return models that answer from the record once `begin` has said which run it is."""
        ...

    def begin(
        self,
        kind: ServedKind,
        place: Place,
        sessions: tuple[Any, Any],
        candidates: Sequence[ProviderCandidate],
    ) -> RecordedServing:
        """Return the recorded run that was made at a place, of a user's and an agent's session."""
        ...

    def call(self, segment: str, session: Any) -> UUID | None:
        """Return which recorded workflow call is made now, None where it is not known."""
        ...

    def derive(self, kind: DerivedKind, place: Place, parents: Sequence[Any]) -> Place:
        """Return the place of a derivation: the recorded one, or as it is where there is none."""
        ...

    def check(self, session: Any, name: str, judge: str) -> tuple[Entry, ...]:
        """Return the entries of a recorded check: operation, command and verdict."""
        ...

    def remember(self, what: str) -> None:
        """Refuse an operation on a memory: what it would give is in no record."""
        ...


CancelledRuns = Literal["keep", "go_on"]
"""Policy for a run that was cancelled when its program runs again."""


@dataclass(frozen=True, slots=True)
class RecordedSession:
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
        """The content its run had written; it has written something."""
        body = self.body.latest
        assert body is not None
        return body

    @property
    def content(self) -> Body | None:
        """Its content, with late entries; None where there is none yet."""
        body = self.body.latest
        if body is None or self.late is None:
            return body
        return Body(body.table, self.late, body.outcome, body.given, body.unfinished)


class ResumeSource(Protocol):
    """The sessions of an earlier run."""

    cancelled: CancelledRuns

    @property
    def store(self) -> SessionStore | None:
        """Where what is made is written too, None where it need not be."""
        ...

    def find(self, session: UUID) -> RecordedSession | None:
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

    def note_run(self, session: UUID, cell: Deferred[Body]) -> None:
        """Note a run that goes on, for others that do the same work."""
        ...


class Scope(NamedTuple):
    """Source that serves the operations made here, and listener to their sessions."""

    context: ReplayContext | None = None
    """Serves them in a replay."""

    source: ResumeSource | None = None
    """Earlier work, where a program is resumed."""

    take: Callable[[Any], None] | None = None
    """Gets the sessions that are made."""

    store: SessionStore | None = None
    """Has the runs and derivations recorded that are made."""


_scope: contextvars.ContextVar[Scope] = contextvars.ContextVar("rath_scope", default=Scope())  # noqa: B039  # a tuple


def current_replay() -> ReplayContext | None:
    """Return the replay that serves operations here, None where they are really made."""
    return _scope.get().context


def current_source() -> ResumeSource | None:
    """Return the source of earlier sessions, None where no program is resumed."""
    return _scope.get().source


def replaying_in(context: ReplayContext) -> AbstractContextManager[None]:
    """Have the operations that are made inside served by `context`."""
    return ValueScope(_scope, _scope.get()._replace(context=context))


def resuming_from(source: ResumeSource) -> AbstractContextManager[None]:
    """Let what is made inside be looked for in `source` first."""
    return ValueScope(_scope, _scope.get()._replace(source=source))


def gathering(take: Callable[[Any], None]) -> AbstractContextManager[None]:
    """Let `take` have every session that an operation makes or serves inside."""
    return ValueScope(_scope, _scope.get()._replace(take=take))


def recording_scope(store: SessionStore) -> AbstractContextManager[None]:
    """Have runs and derivations that are made inside recorded in `store`."""
    return ValueScope(_scope, _scope.get()._replace(store=store))


def recording_store() -> SessionStore | None:
    """Return where what is made here is recorded because of what is around it, None if nowhere."""
    return _scope.get().store


def begin_operation(
    kind: ServedKind, user: Any, agent: Any, candidates: Sequence[ProviderCandidate]
) -> tuple[Place, RecordedServing | None]:
    """Return the place of a run that begins now, and the recorded run that serves it, if one does.

    Raises:
        ReplayDifference: The record that is replayed has no such run.
    """
    context, place = current_replay(), next_place()
    if context is None:
        return place, None
    served = context.begin(kind, place, (user, agent), candidates)
    return served.place, served


def recorded_call(segment: str, session: Any) -> UUID | None:
    """Return which recorded call of a workflow is made now; None without a context.

    Args:
        segment: How the workflow is named in the places of its operations.
        session: What it is called with.
    """
    context = current_replay()
    return None if context is None else context.call(segment, session)


def derived_place(kind: DerivedKind, *parents: Any) -> Place:
    """Return the place of a derivation made now, in a replay the one it recorded."""
    context, place = current_replay(), next_place()
    return place if context is None else context.derive(kind, place, parents)


def collect_session(*sessions: Any) -> None:
    """Tell of sessions that an operation made or served, if anybody gathers them."""
    take = _scope.get().take
    # What is made inside a run belongs to that one.
    if take is not None and not runs_above.get():
        for session in sessions:
            take(session)
