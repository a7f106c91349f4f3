"""Stored sessions as their files tell them, in the documented form."""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from rath._async.deferred import Deferred
from rath._core.dataclasses import dataclass
from rath.errors import PersistenceError
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session.body import Body
from rath.session.chunk import ChunkKind, ChunkRow, ChunkTable
from rath.session.content import SystemText
from rath.session.graph.kind import LineageKind
from rath.session.graph.recording import nearest_first, parents_of
from rath.session.loading import Loaded, load, load_file, placement_of
from rath.session.log.build import LogSource, ParsedLog
from rath.session.log.files import FileStore
from rath.session.log.header import PersistedSessionHeader, header_of
from rath.session.log.index.store_index import ListedLog, StoreIndex
from rath.session.log.paths import checked_id
from rath.session.log.store import SessionStore, default_store
from rath.session.log.verify import delete_session, prune_sessions
from rath.session.outcome import Outcome
from rath.session.record import Operation, Record
from rath.session.session import Session

__all__ = [
    "PersistedSession",
    "PersistedSessionHeader",
    "PersistedSessionMeta",
    "delete_session",
    "list_persisted_sessions",
    "load_session",
    "prune_sessions",
]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistedSessionMeta:
    """One stored session in a listing."""

    id: UUID
    path: Path
    """Its file; where the store is no directory, its address there."""

    created_at: datetime
    lineage_operator: str
    lineage_kind: LineageKind
    chunk_count: int
    closed: bool
    """Whether its run has ended; without that its writer is at work, or was cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistedSession:
    """A session as its file tells it."""

    header: PersistedSessionHeader
    chunk_table: ChunkTable
    cumulative_usage: RathLLMTokenUsage | None
    closed: bool
    """Whether its run has ended; without that its writer is at work, or was cut off."""

    path: Path
    """Its file; where the store is no directory, its address there."""

    trailer_raw: dict[str, Any] | None = None
    """The line with which the run has ended, as it stands there."""

    loaded: Loaded | None = None
    """What was read, with what the run has left open and where its log is gone on with; None for
    an object that was made by hand."""

    @property
    def record(self) -> Record:
        """The recorded entries; empty for a file of version 1, which did not keep them."""
        return self.session().record

    @property
    def outcome(self) -> Outcome:
        """Outcome of the run."""
        return self.session().outcome

    def session(self) -> Session:
        """Return the stored session itself: same id, record, outcome, and all it came from."""
        if self.loaded is not None:
            return self.loaded.session
        header = self.header
        return Session(
            self.chunk_table,
            id=header.id,
            sandbox_backend=header.sandbox_backend,
            sandbox_spec=header.sandbox_spec,
            parent_session_ids=header.parent_session_ids,
            lineage_operator=header.lineage_operator,
            lineage_kind=header.lineage_kind,
            lineage_extras=header.lineage_extras,
            cumulative_usage=self.cumulative_usage,
        )

    def to_resumable_pair(self, *, agent_prompt: str | None = None) -> tuple[Session, Session]:
        """Return a new user session with these rows, and an agent session to go on with.

        The user session has the backend, spec, record, usage and lineage of the stored one: the
        same parents, operator, kind and extras. Its id is its own, and the stored session is none
        of its parents: the extra `resumed_from` names it.

        Where the file names a remote sandbox by its id in the registry, the user session is
        attached to that one, which waits for its backend. If that fails, the rows can be read all
        the same: a warning is logged, and tools are refused until the session is placed again, as
        nothing runs in another place unasked.

        Args:
            agent_prompt: Instructions of the agent; by default the rows of the agent that the last
                loop ran with, as the log or that of the agent session holds them, else the text of
                the first system row, where there is one. Version 1 stored only that.
        """
        stored = self.session()
        user = Session.from_body(
            Deferred.of(Body(self.chunk_table, self.record, given=stored.core.body.result().given)),
            stored.provenance.copied_from(stored.id),
            placement=placement_of(self.loaded.place)
            if self.loaded
            else stored.core.placement.share(),
            lineage=stored.lineage,
        )
        if agent_prompt is not None:
            return user, Session.from_agent_prompt(agent_prompt)
        first = (row for row in self.chunk_table if row.kind is ChunkKind.SYSTEM)
        texts = ((row,) for row in first if isinstance(row.content, SystemText))
        return user, Session(ChunkTable(_agent_rows(stored) or next(texts, ())))


def load_session(
    session_id: UUID | str, *, path: Path | None = None, recover: bool = False
) -> PersistedSession:
    """Read a stored session, and those that it came from.

    Contents of files and images are read when somebody wants them. An image whose bytes are
    missing or damaged then stays known by its digest; what would show it to a model raises an
    error that says so.

    Args:
        session_id: Which one to read from the store of the home; where it was never finished, what
            there is of it is read.
        path: Read this file instead, and what it came from beside it.
        recover: Where a log cannot be believed, take what stands before.

    Raises:
        PersistenceError: There is no such session, or it cannot be read.
        SessionDamaged: A complete line of it or of one it came from is not what was written; a
            last line without line feed was cut off and is left out.
        ValueError: `session_id` is not a UUID.
    """
    wanted = checked_id(session_id)
    if path is None:
        return _persisted(load(default_store(), wanted, recover=recover))
    file = Path(path)
    return _persisted(load_file(file, FileStore(file.parent), recover=recover))


def list_persisted_sessions() -> list[PersistedSessionMeta]:
    """List the sessions in the store of the home, oldest first; the unreadable is logged.

    Cost: the first time every log is read, then those that have changed since; see `StoreIndex`.
    """
    source = LogSource(default_store())
    sessions: list[PersistedSessionMeta] = []
    with StoreIndex(source.store) as index:
        logs = index.logs()
    for session, log in logs.items():
        try:
            facts = log or _listing_of(source.find(session))
        except PersistenceError as exc:
            _logger.warning("left out of the list: %s", exc)
            continue
        if facts is not None:
            sessions.append(_meta(session, facts, source.store))
    return sorted(sessions, key=lambda meta: meta.created_at)


def _persisted(loaded: Loaded) -> PersistedSession:
    session, reader = loaded.session, loaded.reader
    body = session.core.body.result()
    return PersistedSession(
        header=header_of(loaded.header),
        chunk_table=body.table,
        cumulative_usage=body.usage(),
        closed=loaded.unfinished is None,
        path=Path(loaded.where),
        trailer_raw=reader.trailer,
        loaded=loaded,
    )


def _listing_of(log: ParsedLog | None) -> ListedLog | None:
    if log is None:
        return None
    header, n_rows = log.header, log.state.n_rows
    is_open = log.state.trailer is None
    return ListedLog(log.where, header.created_at, header.operator, header.kind, n_rows, is_open)


def _meta(session: UUID, log: ListedLog, store: SessionStore) -> PersistedSessionMeta:
    path = Path(log.where)
    return PersistedSessionMeta(
        id=session,
        # The directory may have been moved since, with its index.
        path=store.directory / path.name if isinstance(store, FileStore) else path,
        created_at=log.created_at,
        lineage_operator=log.operator,
        lineage_kind=log.kind,
        chunk_count=log.n_rows,
        closed=not log.is_open,
    )


def _agent_rows(session: Session) -> tuple[ChunkRow, ...]:
    """Return the agent's rows of the last loop behind a session, itself included."""
    loops = {
        operation.session: operation.head
        for operation in session.record
        if isinstance(operation, Operation) and operation.kind == "loop"
    }
    for operation in nearest_first(session.core.as_parent()):
        if operation.id in loops:
            return loops[operation.id]
        parents = parents_of(operation)
        if (
            operation.provenance is None
            or operation.provenance.kind is not LineageKind.OP_SESSION_LOOP
        ):
            continue
        if len(parents) == 2 and parents[1].body is not None:
            # What a writer has left without its record may still name a stored agent.
            agent: Body = parents[1].body.result()
            return agent.table.rows
    return ()
