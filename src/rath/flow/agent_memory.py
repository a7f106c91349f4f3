"""The memory of an agent: open, remember, recall and commit."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard
from uuid import UUID

import rath.memory
from rath import config
from rath._async.plane import HandleLease
from rath._async.runtime import runtime
from rath.errors import MemoryStoreClosed
from rath.flow.memory_inject import DefaultRecallInjection, MemoryInjectionPolicy
from rath.memory import (
    MemoryCommitResult,
    MemoryExecutionFailure,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpForget,
    MemoryResult,
    MemoryStore,
    MemoryStoreSpec,
)
from rath.memory.notes import note_op
from rath.session import ChunkRow, Session
from rath.session.body import Body, suspension
from rath.session.calls.requests import offload
from rath.session.content import AssistantTurn, SystemText, UserText
from rath.session.recall import HoldingRecall, Note, Recall
from rath.session.record import ModelCall, Record
from rath.session.scope import current_replay

if TYPE_CHECKING:
    from rath.flow.agent_param import AgentParam

MemoryArg: TypeAlias = MemoryStore | MemoryStoreSpec | str | None
_Commit = Callable[[HandleLease, Session], Coroutine[Any, Any, MemoryResult]]

_log = logging.getLogger("rath.flow.agent")

_NOT_MADE = MemoryCommitResult(task_id=None, archived_uri=None, extracted_count=0)
"""What a commit gives in a replay, where nothing is written."""


def open_memory(memory: MemoryStore | MemoryStoreSpec | str) -> HandleLease:
    """Return a lease on the memory that an agent was given.

    Args:
        memory: A store; a spec for the default backend; or the name of a configured memory, else
            of a backend. "local" is the store of the project: the same one in every run.

    Raises:
        MemoryBackendNotFound: No memory and no backend has that name.
        TypeError: It is none of these.
    """
    match memory:
        case MemoryStore():
            return HandleLease(memory)
        case MemoryStoreSpec():
            return HandleLease(rath.memory.current().open(memory))
        case str():
            return HandleLease(_open_named(memory))
        case _:
            raise TypeError(
                f"memory must be a MemoryStore, a MemoryStoreSpec or a name such as 'local', got "
                f"{type(memory).__name__}"
            )


class Remembering:
    """The operations of an agent on its memory."""

    __slots__ = ()

    if TYPE_CHECKING:
        agent: AgentParam

    @property
    def memory(self) -> MemoryStore | None:
        """The agent's memory, None once it is closed."""
        return self.agent.memory

    def remember_memory(
        self,
        content: str,
        *,
        scope: str = "user",
        category: str = "preferences",
        wait: bool = False,
        ttl: timedelta | float | None = None,
    ) -> MemoryResult:
        """Write a note to the agent's memory; an identical note is stored once.

        Args:
            content: The note.
            scope: "user", "agent", "session" or "resources".
            category: Directory of the note within the scope.
            wait: Wait until the store has indexed it too.
            ttl: Seconds, or a timedelta, after which the note is forgotten; it is kept for ever
                by default. Of a note that is written again the longer time counts.

        Raises:
            RuntimeError: The agent has no memory.
            ValueError: `ttl` is not above 0, or beyond the year 9999.
        """
        store = self._require_memory()
        _refuse_in_replay("remember_memory")
        given: object = ttl
        if isinstance(given, bool) or not isinstance(given, timedelta | float | int | None):
            raise TypeError(f"ttl must be seconds or a timedelta, got {type(ttl).__name__}")
        return store.dispatch(note_op(content, scope=scope, category=category, wait=wait, ttl=ttl))

    def forget_memory(
        self,
        uri: str | None = None,
        *,
        session: Session | UUID | str | None = None,
        recursive: bool = False,
    ) -> MemoryResult:
        """Remove what the agent's memory holds, so that nothing of it is left in the store.

        Give either `uri` or `session`. What is committed or written later is stored again: for a
        session whose run goes on, wait for the run and its commit first.

        Args:
            uri: A note; or a directory, with `recursive`.
            session: A session, or its id: its transcripts are erased, and the notes that come
                from it alone. A note that has other sources only loses that one.
            recursive: Whether a directory is removed with all that is below it.

        Raises:
            RuntimeError: The agent has no memory.
            ValueError: Neither or both were given.
            UnsupportedMemoryOp: The store cannot forget.
        """
        store = self._require_memory()
        _refuse_in_replay("forget_memory")
        if not isinstance(uri, str | None):
            raise TypeError(f"uri must be a str, got {type(uri).__name__}")
        match session:
            case Session(id=identity):
                session_id: str | None = str(identity)
            case UUID():
                session_id = str(session)
            case str() | None:
                session_id = session
            case _:
                raise TypeError(
                    f"session must be a Session or the id of one, got {type(session).__name__}"
                )
        return store.dispatch(MemoryOpForget(uri, session_id, recursive))

    def recall_memory(
        self, query: str, *, top_k: int = 4, target_uri: str | None = None
    ) -> MemoryResult:
        """Return the notes that are nearest to `query`, best first.

        Args:
            query: Words to look for.
            top_k: Most notes to return.
            target_uri: Part of the memory to search; all of it by default.

        Raises:
            RuntimeError: The agent has no memory.
        """
        store = self._require_memory()
        _refuse_in_replay("recall_memory")
        return store.dispatch(MemoryOpFind(query, target_uri, top_k))

    def commit_memory(self, session: Session, *, wait: bool = False) -> MemoryResult:
        """Store what was said in `session` in the agent's memory.

        A pending session is not waited for: the commit happens when its run has ended, and a
        failure of it is logged.

        Args:
            session: Its tool results are left out.
            wait: Wait for the run, the storing, and what the store learns from the transcript.

        Raises:
            RuntimeError: The agent has no memory.
        """
        store = self._require_memory()
        if current_replay() is not None:
            return _NOT_MADE
        if session.is_pending and not wait:
            return _submit(store, session, _acommit)
        lease = HandleLease(store)
        return runtime().run(partial(_acommit, lease, session, wait=wait), label=_label(session))

    def _require_memory(self) -> MemoryStore:
        if self.memory is None:
            raise RuntimeError(
                "agent has no memory store; give it one with Agent(..., memory='local'), and use "
                "it before close()"
            )
        return self.memory


def commit_later(store: MemoryStore, session: Session, *, run: UUID) -> MemoryCommitResult:
    """Submit the commit of a run that may still go on; a failure of it is logged.

    The store stays open until then, whoever closes the agent meanwhile. A run that was cancelled
    or waits for somebody is not committed: it may go on, and then it is. One that is served to a
    program which goes on is committed once, however often that happens.

    Args:
        store: The memory.
        session: What is committed of it.
        run: The session that the run made.
    """
    if current_replay() is not None:
        return _NOT_MADE
    return _submit(store, session, partial(_acommit_ended, run=run))


def recall_for_run(store: MemoryStore, policy: MemoryInjectionPolicy) -> Recall | None:
    """Return what the session loop calls to recall, holding the store open for it."""
    try:
        lease = HandleLease(store)
    except MemoryStoreClosed as exc:
        _log.warning("nothing is recalled: %s", exc)
        return None
    return _RunRecall(lease, policy)


class _RunRecall(HoldingRecall):
    """Recalls for one run, and holds the store open until that has ended."""

    def __init__(self, lease: HandleLease, policy: MemoryInjectionPolicy) -> None:
        self._lease = lease
        # The finder of the default policy keeps uri and score, which rows have no place for; but
        # what a subclass says in an `inject` of its own counts.
        self._find = policy.notes if _finds_notes(policy) else policy.inject

    def __call__(self, session: Session) -> Sequence[Note] | Awaitable[Sequence[Note]]:
        return self._find(session, _store_of(self._lease))

    def close(self) -> None:
        self._lease.drop()


def _refuse_in_replay(what: str) -> None:
    """Refuse what neither may be done in a replay nor stands in a record.

    Raises:
        ReplayDifference: There is a replay.
    """
    stage = current_replay()
    if stage is not None:
        stage.remember(what)


def _finds_notes(policy: MemoryInjectionPolicy) -> TypeGuard[DefaultRecallInjection]:
    own = type(policy)
    return issubclass(own, DefaultRecallInjection) and own.inject is DefaultRecallInjection.inject


def _open_named(name: str) -> MemoryStore:
    if any(name in store.config.memory.providers for store in config.config_layers()):
        found = config.find_memory_provider(name)
        spec = MemoryStoreSpec.from_config(name, store=found.store)
        return rath.memory.get(found.entry.backend_kind).open(spec)
    return rath.memory.get(name).open()


def _submit(store: MemoryStore, session: Session, acommit: _Commit) -> MemoryCommitResult:
    label = _label(session)
    running = runtime().submit(
        partial(acommit, HandleLease(store), session), label=label, at_exit="finish"
    )
    running.future.add_done_callback(partial(_log_failure, label))
    return MemoryCommitResult(task_id=str(session.id), archived_uri=None, extracted_count=-1)


async def _acommit(lease: HandleLease, session: Session, *, wait: bool = False) -> MemoryResult:
    try:
        body = await session.core.body
        return await _acommit_body(lease, session, body, wait=wait)
    finally:
        lease.drop()


async def _acommit_ended(lease: HandleLease, session: Session, *, run: UUID) -> MemoryResult:
    try:
        body = await session.core.body
        if (stopped := suspension(body)) is not None:
            _log.info("%s is left out: the run ended as %r", _label(session), stopped)
            return MemoryCommitResult(task_id=None, archived_uri=None, extracted_count=0)
        return await _acommit_body(lease, session, body, run=run)
    finally:
        lease.drop()


async def _acommit_body(
    lease: HandleLease, session: Session, body: Body, *, wait: bool = False, run: UUID | None = None
) -> MemoryResult:
    n_rows = len(body.table) + len(body.record)
    operation = await offload(n_rows, partial(_operation, session.id, body, wait=wait, run=run))
    return await _store_of(lease).adispatch(operation)


def _operation(session_id: UUID, body: Body, *, wait: bool, run: UUID | None) -> MemoryOpCommit:
    """Return the commit of what was said, with the row of each message; no tool results."""
    said = [
        (index, {"role": row.kind_name, "content": text})
        for index, row in enumerate(body.table)
        if (text := _row_text(row)).strip()
    ]
    return MemoryOpCommit(
        str(session_id),
        tuple(message for _, message in said),
        used_uris=_recalled(body.record),
        wait=wait,
        rows=tuple(index for index, _ in said),
        run=None if run is None else str(run),
    )


def _row_text(row: ChunkRow) -> str:
    match row.content:
        case UserText() as said:
            return said.described
        case SystemText(text) | AssistantTurn(str(text), _):
            return text
        case _:
            return ""


def _recalled(record: Record) -> tuple[str, ...]:
    """Return the notes that models were shown, each once, in the order of their first use."""
    calls = (entry.seen for entry in record if isinstance(entry, ModelCall))
    notes = (note.uri for seen in calls if seen is not None for note in seen.recalled)
    # Notes of a policy that makes rows have no URI.
    return tuple(dict.fromkeys(uri for uri in notes if uri))


def _store_of(lease: HandleLease) -> MemoryStore:
    assert isinstance(lease.handle, MemoryStore)
    return lease.handle


def _log_failure(label: str, done: Future[MemoryResult]) -> None:
    error = done.exception()
    if error is not None:
        _log.error("%s failed: %r", label, error)
    elif isinstance(failure := done.result(), MemoryExecutionFailure):
        _log.error("%s failed: %s", label, failure.message)


def _label(session: Session) -> str:
    return f"memory commit of session {session.id}"
