"""What an agent does with its memory: open it, remember, recall and commit."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias

import rath.memory
from rath import config
from rath._async.plane import Lease
from rath._async.runtime import runtime
from rath.errors import MemoryStoreClosed
from rath.flow.memory_inject import DefaultRecallInjection, MemoryInjectionPolicy
from rath.memory import (
    MemoryCommitResult,
    MemoryExecutionFailure,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryResult,
    MemoryStore,
    MemoryStoreSpec,
)
from rath.memory.notes import note_op
from rath.session import ChunkTable, Session
from rath.session.content import AssistantTurn, SystemText, UserText
from rath.session.recall import Recall

MemoryArg: TypeAlias = MemoryStore | MemoryStoreSpec | str | None

_log = logging.getLogger("rath.flow.agent")


def open_memory(memory: MemoryStore | MemoryStoreSpec | str) -> Lease:
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
            return Lease(memory)
        case MemoryStoreSpec():
            return Lease(rath.memory.current().open(memory))
        case str():
            return Lease(_open_named(memory))
        case _:
            raise TypeError(
                f"memory must be a MemoryStore, a MemoryStoreSpec or a name such as 'local', got "
                f"{type(memory).__name__}"
            )


def remember(
    store: MemoryStore, content: str, *, scope: str, category: str, wait: bool
) -> MemoryResult:
    """Write a note; the same words in the same category are one note, however often written."""
    return store.dispatch(note_op(content, scope=scope, category=category, wait=wait))


def recall(store: MemoryStore, query: str, *, top_k: int, target_uri: str | None) -> MemoryResult:
    """Search the notes."""
    return store.dispatch(MemoryOpFind(query, target_uri, top_k))


def commit(store: MemoryStore, session: Session, *, wait: bool) -> MemoryResult:
    """Store a transcript; with `wait=False` a pending session is not waited for.

    Returns:
        The result of the store; for a session that is still pending and not waited for, a
        MemoryCommitResult that names the task.
    """
    if session.is_pending and not wait:
        return commit_later(store, session)
    lease = Lease(store)
    return runtime().run(partial(_acommit, lease, session, wait), label=_label(session))


def commit_later(store: MemoryStore, session: Session) -> MemoryCommitResult:
    """Submit the commit of a session that may still be pending; a failure of it is logged.

    The store stays open until then, whoever closes the agent meanwhile.
    """
    label = _label(session)
    running = runtime().submit(
        partial(_acommit, Lease(store), session, False), label=label, at_exit="finish"
    )
    running.future.add_done_callback(partial(_log_failure, label))
    return MemoryCommitResult(task_id=str(session.id), archived_uri=None, extracted_count=-1)


def recall_for_run(store: MemoryStore, policy: MemoryInjectionPolicy) -> Recall | None:
    """Return what the session loop calls to recall, holding the store open for it."""
    try:
        lease = Lease(store)
    except MemoryStoreClosed as exc:
        _log.warning("nothing is recalled: %s", exc)
        return None
    # The finder of the default policy keeps uri and score, which rows have no place for.
    find = policy.notes if isinstance(policy, DefaultRecallInjection) else policy.inject
    return lambda session: find(session, _store_of(lease))


def _open_named(name: str) -> MemoryStore:
    if any(name in store.config.memory.providers for store in config.config_layers()):
        kind = config.find_memory_provider(name).entry.backend_kind
        return rath.memory.get(kind).open(MemoryStoreSpec.from_config(name))
    return rath.memory.get(name).open()


async def _acommit(lease: Lease, session: Session, wait: bool) -> MemoryResult:
    try:
        body = await session.body
        messages = _messages(body.table)
        operation = MemoryOpCommit(str(session.id), messages, wait=wait)
        return await _store_of(lease).adispatch(operation)
    finally:
        lease.drop()


def _messages(table: ChunkTable) -> tuple[dict[str, str], ...]:
    """Return what was said, as the documented messages; tool results are left out."""
    messages: list[dict[str, str]] = []
    for row in table:
        match row.content:
            case UserText() as said if said.described.strip():
                messages.append({"role": row.kind_name, "content": said.described})
            case SystemText(text) | AssistantTurn(str(text), _) if text.strip():
                messages.append({"role": row.kind_name, "content": text})
            case _:
                continue
    return tuple(messages)


def _store_of(lease: Lease) -> MemoryStore:
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
