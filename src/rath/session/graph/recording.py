"""Whether lineage is recorded, and the journal of the sessions that were made."""

from __future__ import annotations

import contextlib
import json
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import field, replace
from typing import Any, NamedTuple
from uuid import UUID

from rath._async.deferred import Deferred
from rath._core.dataclasses import dataclass
from rath._core.options import ValueScope
from rath.session.graph.kind import LineageKind

Extras = tuple[tuple[str, Any], ...]


@dataclass(slots=True)
class LineageJournal:
    """The ids of sessions in the order in which they were made.

    A journal holds the content of its sessions, and not the sessions: their sandboxes close as if
    there were no journal.
    """

    visit_order: list[UUID] = field(default_factory=list[UUID])
    _sessions: dict[UUID, tuple[weakref.ref[Any], Any]] = field(
        default_factory=dict[UUID, tuple["weakref.ref[Any]", Any]],
        init=False,
        repr=False,
        compare=False,
    )
    """For each session a weak reference to it, and another session over the same content."""

    def record(self, session_id: UUID) -> None:
        """Add an id at the end."""
        self.visit_order.append(session_id)

    def append(self, session_id: UUID) -> LineageJournal:
        """Add an id at the end and return the journal; `record` is the plainer form."""
        self.record(session_id)
        return self

    def hold(self, session: Any, content: Any) -> None:
        """Hold `content` in the place of a session, for the time after that one."""
        self._sessions[session.id] = (weakref.ref(session), content)

    def find(self, session_id: UUID) -> Any:
        """Return the session of an id, or what holds its content; None where neither is known."""
        entry = self._sessions.get(session_id)
        return None if entry is None else entry[0]() or entry[1]


@dataclass(frozen=True, slots=True)
class LineageStamp:
    """Provenance of a new session."""

    parent_session_ids: tuple[UUID, ...]
    operator: str
    kind: LineageKind
    extras: Extras = ()


def note_content(session: Any) -> None:
    """Let the current journal, if there is one, hold the content of a session that was just made.

    What makes a session calls it, and not its constructor, which makes snapshots as well.
    """
    journal = lineage_journal_optional()
    if journal is not None and session_graph_mode():
        content = session.from_body(
            session.core.body, session.provenance, id=session.id, lineage=session.lineage
        )
        journal.hold(session, content)


class _Recording(NamedTuple):
    """How lineage is recorded inside a `with` block."""

    is_on: bool
    journal: LineageJournal | None


_recording: ContextVar[_Recording] = ContextVar("rath_lineage", default=_Recording(True, None))  # noqa: B039  # a tuple


def session_graph_mode() -> bool:
    """Return whether lineage is recorded here; true unless it was switched off."""
    return _recording.get().is_on


@contextlib.contextmanager
def session_graph_mode_override(enabled: bool) -> Generator[None]:
    """Switch the recording of lineage on or off inside a `with` block."""
    with ValueScope(_recording, _recording.get()._replace(is_on=enabled)):
        yield


def lineage_journal_optional() -> LineageJournal | None:
    """Return the journal of the enclosing `lineage_journal_tracking`, or None outside of one."""
    return _recording.get().journal


@contextlib.contextmanager
def lineage_journal_tracking(*, journal: LineageJournal | None = None) -> Generator[LineageJournal]:
    """Write every session made inside the `with` block into a journal.

    Runs that are submitted inside write there too, also after the block has ended. An inner block
    has a journal of its own, and what it sees does not reach the outer one.

    Args:
        journal: Where to write; a new journal by default.
    """
    current = LineageJournal() if journal is None else journal
    with ValueScope(_recording, _recording.get()._replace(journal=current)):
        yield current


class LineageRecorder:
    """Notes where new sessions come from."""

    @staticmethod
    def record_operation(
        session_id: UUID,
        *,
        parent_session_ids: tuple[UUID, ...],
        operator: str,
        kind: LineageKind,
        extras: Extras = (),
    ) -> LineageStamp | None:
        """Write a session that is being made into the journal and return its stamp.

        Returns None, and writes nothing, where the graph mode is off.
        """
        if not session_graph_mode():
            return None
        journal = lineage_journal_optional()
        if journal is not None:
            journal.record(session_id)
        return LineageStamp(parent_session_ids, operator, kind, extras)

    @staticmethod
    def stamp_new_session(
        session: object,
        *,
        parent_session_ids: tuple[UUID, ...],
        lineage_operator: str,
        lineage_kind: LineageKind,
        lineage_extras: Extras = (),
    ) -> None:
        """Give a session that was made by hand its place in the graph.

        Does nothing where the graph mode is off.

        Raises:
            TypeError: `session` is not a Session.
        """
        core: Any = getattr(session, "core", None)
        if core is None:
            raise TypeError(
                f"cannot stamp a value of type {type(session).__name__} with lineage; "
                "expected a Session"
            )
        stamp = LineageRecorder.record_operation(
            core.id,
            parent_session_ids=parent_session_ids,
            operator=lineage_operator,
            kind=lineage_kind,
            extras=lineage_extras,
        )
        if stamp is not None:
            edges = tuple(Edge(parent) for parent in stamp.parent_session_ids)
            core.provenance = Provenance(stamp.operator, stamp.kind, edges, stamp.extras)
            note_content(session)


def lineage_extras_to_jsonable(extras: tuple[tuple[str, Any], ...]) -> list[list[Any]]:
    """Return extras as [name, value] pairs; a value that JSON cannot hold becomes its `str()`."""
    return [[name, value if _is_json(value) else str(value)] for name, value in extras]


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


PARENT_ROWS = "parent_rows"
"""The extra that says how many rows a parent had of which the session has none."""

RESUMED_FROM = "resumed_from"
"""The extra that says of which stored session this one is a copy: it has the lineage of that one,
and the operation in its record is not its own."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One parent, held by its content and never as a session, so that no sandbox stays open."""

    id: UUID
    body: Deferred[Any] | None = field(default=None, compare=False, repr=False)
    """The parent's content at that moment; None for a parent known by its id alone."""

    provenance: Provenance | None = field(default=None, compare=False, repr=False)
    """Where the parent itself came from."""

    late: Any = field(default=None, compare=False, repr=False)
    """The parent's record where late entries have made it longer than its body's, else None."""

    place: Any = field(default=None, compare=False, repr=False)
    """The `Whereabouts` of the parent at that moment, which keep no sandbox open, or None."""

    @property
    def n_rows(self) -> int | None:
        """The parent's row count at that moment; None while it is pending or when unknown."""
        body = self.body.latest if self.body is not None and self.body.done() else None
        return None if body is None else len(body.table)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Operation that made a session, and its parents."""

    operator: str = "implicit"
    kind: LineageKind = LineageKind.UNKNOWN
    parents: tuple[Edge, ...] = ()
    extras: tuple[tuple[str, Any], ...] = ()

    @property
    def parent_ids(self) -> tuple[UUID, ...]:
        """Ids of the parents, in the order of the operation's arguments."""
        return tuple(edge.id for edge in self.parents)

    @property
    def is_copy(self) -> bool:
        """Whether it is that of another session, of which the session is a copy."""
        return any(name == RESUMED_FROM for name, _ in self.extras)

    def copied_from(self, session: UUID) -> Provenance:
        """Return this provenance of `session` for a copy of that session."""
        own = tuple(extra for extra in self.extras if extra[0] != RESUMED_FROM)
        return replace(self, extras=(*own, (RESUMED_FROM, str(session))))


def stamped(
    session: UUID,
    operator: str,
    kind: LineageKind,
    parents: tuple[Edge, ...] = (),
    extras: tuple[tuple[str, Any], ...] = (),
) -> Provenance:
    """Note a new session in the current journal and return its provenance.

    While session graph mode is off nothing is noted, and the session has no parents.
    """
    stamp = LineageRecorder.record_operation(
        session,
        parent_session_ids=tuple(edge.id for edge in parents),
        operator=operator,
        kind=kind,
        extras=extras,
    )
    return Provenance() if stamp is None else Provenance(operator, kind, parents, extras)


def content_of(edge: Edge) -> Any:
    """Return the content of a session known by now, with late entries; None for nothing."""
    body = None if edge.body is None else edge.body.latest
    return body if body is None or edge.late is None else replace(body, record=edge.late)


def parents_of(edge: Edge) -> tuple[Edge, ...]:
    """Return the parents of a session, as far as they are known."""
    return () if edge.provenance is None else edge.provenance.parents


def ancestry(heads: Iterable[Edge]) -> Iterable[Edge]:
    """Return sessions and what they came from, each once, parents first.

    Of a session that is met at several moments the one counts at which most was known of it.
    """
    edges: dict[UUID, Edge] = {}
    for head in heads:
        # Chains may be longer than the stack of Python.
        stack: list[tuple[Edge, bool]] = [(head, False)]
        while stack:
            edge, has_parents = stack.pop()
            earlier = edges.get(edge.id)
            if has_parents or (earlier is not None and _n_known(earlier) < _n_known(edge)):
                edges[edge.id] = edge
            elif earlier is None:
                stack.append((edge, True))
                stack.extend((parent, False) for parent in reversed(parents_of(edge)))
    return edges.values()


def nearest_first(head: Edge) -> Iterator[Edge]:
    """Yield a session and what it came from, each once, the nearest first."""
    todo, visited = deque([head]), set[UUID]()
    while todo:
        edge = todo.popleft()
        if edge.id not in visited:
            visited.add(edge.id)
            yield edge
            todo.extend(parents_of(edge))


def _n_known(edge: Edge) -> int:
    body = content_of(edge)
    return 0 if body is None else 1 + len(body.record) + len(body.table)


__all__ = [
    "LineageJournal",
    "LineageRecorder",
    "LineageStamp",
    "lineage_journal_optional",
    "lineage_journal_tracking",
    "session_graph_mode",
    "session_graph_mode_override",
]
