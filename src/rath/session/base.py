"""The base of a session: identity, content, and where it came from."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self
from uuid import UUID, uuid4

from rath._async.deferred import Deferred
from rath._core.lazy_imports import lazy_function
from rath.backend.abc import BackendSandbox, BackendSandboxSpec
from rath.errors import PersistenceError
from rath.llm.provider import Provider
from rath.session.bindings import Placement
from rath.session.body import Body
from rath.session.chunk import ChunkTable
from rath.session.graph.legacy import SessionLineage
from rath.session.graph.recording import Edge, Provenance
from rath.session.open_calls import OpenCall, current_outcome, open_calls
from rath.session.outcome import Outcome
from rath.session.record import Entry, Record

_add_late = lazy_function("rath.session.loading", "add_late")
_late_lock = threading.Lock()
"""Guards the few instructions in which late record entries are added."""


class SessionCore:
    """The parts of a session that its operations are made of; programs need none of them.

    Args:
        id: Identity of the session.
        body: The content, for code that awaits it on the runtime.
        provenance: Operation and parents that the session came from.
        placement: Backend, spec and lease of its sandbox together.
        provider: Model to use where an operation is given none.
        lineage: The documented DTO of the run that made it.
    """

    __slots__ = (
        "body", "depth", "id", "late", "lineage", "placement", "provenance", "provider",
        "was_placed",
    )  # fmt: skip

    def __init__(
        self,
        id: UUID,
        body: Deferred[Body],
        provenance: Provenance,
        placement: Placement,
        provider: Provider | None = None,
        lineage: SessionLineage | None = None,
    ) -> None:
        self.id: UUID = id
        self.body: Deferred[Body] = body
        self.provenance: Provenance = provenance
        self.placement: Placement = placement
        self.provider: Provider | None = provider
        self.lineage: SessionLineage | None = lineage
        self.late: Record | None = None
        """The record where late entries have made it longer than that of the body."""

        self.was_placed: bool = False
        """Whether somebody has placed the session since it was made or loaded."""

        self.depth: int = 0
        """How often the session was entered by `with`."""

    def as_parent(self) -> Edge:
        """Return the edge by which a derived session knows this one."""
        place = self.placement.whereabouts
        return Edge(self.id, self.body, self.provenance, self.late, place)

    def inherited(self, body: Body) -> Body:
        """Return `body`, this session's content, with the late entries that came since."""
        return with_late(self.late, body)

    def inheritor(self) -> Callable[[Body], Body]:
        """Return `inherited` as it is now, without holding this session."""
        return _as_it_is if self.late is None else partial(with_late, self.late)

    def place(self, placement: Placement) -> None:
        """Work somewhere else from now on, and give back what was held."""
        self.placement.drop()
        self.placement = placement
        self.was_placed = True

    def place_like(self, other: SessionCore) -> None:
        """Work where another session works from now on."""
        self.place(other.placement.share())

    def add_entries(self, *entries: Entry) -> None:
        """Add late entries to the record, next to each other; waits for the run.

        Where the session is stored they are added there too, and forced to disk.

        Raises:
            PersistenceError: A log of it cannot be written, or somebody else has changed it; then
                nothing is added.
        """
        body = self.body.result()
        with _late_lock:
            before = self.late
            self.late = (body.record if before is None else before).extend(entries)
            late = self.late
        try:
            _add_late(self.body, late)
        except PersistenceError:
            with _late_lock:
                newest = self.late
                if newest is late:
                    self.late = before
            if newest is late:
                raise
            # Another thread has added more since, and may have written ours with it.
            _add_late(self.body, newest)


class _Unsaid(str):
    """A default that can be told from the same word said by the caller."""

    __slots__ = ()


_LOCAL = _Unsaid("local")


class Bindings:
    """Placement and provider of a session; `to` and its kin move them and return the session."""

    __slots__ = ("_core",)

    _core: SessionCore

    @property
    def core(self) -> SessionCore:
        """The inner parts of the session, for this package and for extensions of it."""
        return self._core

    @property
    def sandbox(self) -> BackendSandbox | None:
        """The sandbox once it was opened, else None."""
        return self.core.placement.sandbox

    @property
    def sandbox_backend(self) -> str | None:
        """Name of the backend on which tools run, or None."""
        return self.core.placement.backend

    @property
    def sandbox_spec(self) -> BackendSandboxSpec | None:
        """The requested sandbox, or None for the backend's default."""
        return self.core.placement.spec

    @property
    def provider(self) -> Provider | None:
        """Model to use where an operation is given none."""
        return self.core.provider

    def to(
        self,
        backend: str | Provider = _LOCAL,
        *,
        spec: BackendSandboxSpec | str | None = None,
        provider: str | Provider | None = None,
    ) -> Self:
        """Place the session on a sandbox backend, or bind it to a provider, or both.

        Args:
            backend: Name of a registered backend, or a Provider to bind only that.
            spec: What the sandbox shall be; a string is its working directory.
            provider: A Provider, or the name of one in the config; given alone it leaves the
                placement as it is.

        Returns:
            This session: placement is a binding, so the result need not be kept.

        Raises:
            BackendNotFound: No backend has that name.
            ValueError: A Provider was given twice.
        """
        if isinstance(backend, Provider):
            if provider is not None:
                raise ValueError(
                    "two providers were given, as first argument and as provider=; give one"
                )
            self.core.provider = backend
            return self
        if provider is not None:
            self.core.provider = (
                provider if isinstance(provider, Provider) else Provider.from_config(provider)
            )
            if isinstance(backend, _Unsaid) and spec is None:
                return self
        wanted = BackendSandboxSpec(working_dir=spec) if isinstance(spec, str) else spec
        placement = Placement(str(backend), wanted)
        placement.held()
        self.core.place(placement)
        return self

    def bind_sandbox(self, sandbox: BackendSandbox) -> Self:
        """Hold `sandbox` from now on and give back what was held; returns this session."""
        if self.core.placement.sandbox is not sandbox:
            self.core.place(Placement(sandbox=sandbox))
        return self

    def close_sandbox(self) -> Self:
        """Give the sandbox back; backend and spec stay. Returns this session."""
        self.core.placement.drop()
        return self

    def require_sandbox(self) -> BackendSandbox:
        """Return the open sandbox, opening it on first use; waits for the opening.

        Raises:
            RuntimeError: The session has no backend, or its sandbox was closed.
        """
        return self.core.placement.held().ensure_open()

    def __enter__(self) -> Self:
        if self.core.depth == 0:
            self.core.placement.drop_if_closed()
            self.require_sandbox()
        self.core.depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.core.depth -= 1
        if self.core.depth == 0:
            self.close_sandbox()


class SessionBase(Bindings):
    """A session without its operations: what they read, and late entries they add."""

    __slots__ = ()

    @classmethod
    def from_body(
        cls,
        body: Deferred[Body],
        provenance: Provenance,
        *,
        id: UUID | None = None,
        placement: Placement | None = None,
        provider: Provider | None = None,
        lineage: SessionLineage | None = None,
    ) -> Self:
        """Return a session over content that is there or still being made."""
        session = cls.__new__(cls)
        core = SessionCore(
            id or uuid4(), body, provenance, placement or Placement(), provider, lineage
        )
        # Sessions refuse to have their attributes set.
        object.__setattr__(session, "_core", core)
        return session

    @property
    def id(self) -> UUID:
        """Identity of the session, and of its file."""
        return self.core.id

    @property
    def provenance(self) -> Provenance:
        """Operation and parents that this session came from."""
        return self.core.provenance

    @property
    def lineage(self) -> SessionLineage | None:
        """The documented DTO: user and agent session of the run that made this one, or None."""
        return self.core.lineage

    @property
    def chunk_table(self) -> ChunkTable:
        """The rows; waits for the run that makes them."""
        return self.core.body.result().table

    @property
    def record(self) -> Record:
        """The typed entries in order; waits for the run."""
        record = self.core.body.result().record
        return record if self.core.late is None else self.core.late

    @property
    def outcome(self) -> Outcome:
        """Outcome of the run, or what it waits for by now; waits for it."""
        body = self.core.body.result()
        return current_outcome(body.outcome, body, self.id, self.core.late)

    @property
    def open_calls(self) -> tuple[OpenCall, ...]:
        """The calls of the last turn that have no result, and what is known of each; waits."""
        return open_calls(self.core.body.result(), self.id, late=self.record)

    def synchronize(self) -> Self:
        """Wait for the run, raise its error if it failed, and return this session."""
        self.core.body.result()
        return self

    @property
    def is_pending(self) -> bool:
        """Whether the run that makes this session is still going."""
        return not self.core.body.done()

    @property
    def partial_table(self) -> ChunkTable:
        """The rows so far, also of a failed or cancelled run; never waits, never raises."""
        body = self.core.body.latest
        return ChunkTable() if body is None else body.table

    @property
    def partial_record(self) -> Record:
        """The record so far, also of a failed run; never waits, never raises."""
        body = self.core.body.latest
        return Body(ChunkTable()).record if body is None else body.record

    def add_entry(self, *entries: Entry) -> None:
        """Add late entries to the record: a verdict, a decision, a selection; waits for the run.

        Rows are never touched; what is derived later inherits the entries. Where the session is
        stored they are added there too, and forced to disk.

        Raises:
            PersistenceError: A log of it cannot be written, or somebody else has changed it; then
                nothing is added.
        """
        self.core.add_entries(*entries)


def _as_it_is(body: Body) -> Body:
    return body


def with_late(late: Record | None, body: Body) -> Body:
    """Return a session's content with the record that late entries have made longer."""
    return body if late is None else replace(body, record=late)
