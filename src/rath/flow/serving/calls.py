"""Calls of a served workflow: which session each begins with, and what ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any
from uuid import UUID

import anyio

from rath._async.deferred import Nested, nesting
from rath._async.runtime import runtime
from rath.errors import PersistenceError
from rath.flow.serving.answer import Answer, answered, failed, refused
from rath.flow.serving.options import ServeOptions
from rath.flow.workflow import Workflow
from rath.session import Session
from rath.session.graph.kind import LineageKind
from rath.session.graph.recording import Edge, LineageRecorder
from rath.session.log.store import SessionStore, default_store
from rath.session.outcome import Cancelled, Suspended
from rath.session.record import Entry, report_to
from rath.session.scope import recording_scope

OPERATOR = "serve_mcp"
"""Lineage operator of the sessions with which calls begin."""

MAX_MESSAGE_CHARS = 1_000_000
"""Longest message of a client; a guess above what models read."""

END_SECONDS = 1.0
"""How long a call that is cut off may take to end, so that its session is written whole."""

INPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "What to do, or what to say next."},
        "session_id": {
            "type": ["string", "null"],
            "description": "The session of an earlier call, to go on with it; with an empty "
            "message where its run waited or was cancelled.",
        },
    },
    "required": ["message"],
    "additionalProperties": False,
}

_log = logging.getLogger("rath.serving")


class Refused(Exception):
    """A call cannot be made as it was asked for; the text is for the client."""


class Calls:
    """Makes the calls of clients; each has a session of its own, and any number run at once.

    Args:
        workflow: What is served.
        name: Under which name: a client goes on only with sessions that were served under it.
        options: What was chosen.
    """

    def __init__(self, workflow: Workflow, name: str, options: ServeOptions) -> None:
        self._workflow = workflow
        self._name = name
        self._options = options
        self._running: set[_Begun] = set()
        self._given: set[UUID] = set()

    async def call(self, arguments: Mapping[str, Any], tell: Callable[[Entry], None]) -> Answer:
        """Make a call and return what the client reads; on the runtime thread.

        Args:
            arguments: What the client gave, unchecked.
            tell: Is told of each entry of the runs, on the runtime thread.
        """
        begun = _Begun()
        self._running.add(begun)
        try:
            message, session_id = _checked(arguments)
            begin = partial(self._begin, message, session_id, tell)
            await runtime().call_in_worker(partial(begun.begin, begin))
            session = begun.session
            assert session is not None, "it has begun"
            await session
            self._given.add(session.id)
            return await runtime().call_in_worker(partial(answered, session))
        except Refused as exc:
            return refused(str(exc))
        except asyncio.CancelledError:
            begun.cancel()
            await _end(begun.session)
            raise
        except Exception as exc:  # noqa: BLE001  # a tool's lane: the client reads what went wrong
            _log.warning("a call of %r failed: %s: %s", self._name, type(exc).__name__, exc)
            return failed(begun.session, exc)
        finally:
            self._running.discard(begun)

    def cancel_all(self) -> None:
        """End all calls; returns at once."""
        for begun in list(self._running):
            begun.cancel()

    def _begin(
        self, message: str, session_id: UUID | None, tell: Callable[[Entry], None]
    ) -> Session:
        """Begin the run of a call; blocks, and runs what the user wrote.

        Raises:
            Refused: There is no such session for this client, or it cannot go on like this.
        """
        store = self._store()
        with ExitStack() as stack:
            stack.enter_context(report_to(lambda entry, _: tell(entry)))
            if self._options.persist:
                stack.enter_context(recording_scope(store))
            if session_id is None:
                if not message:
                    raise Refused("the message is empty; say what to do")
                return self._workflow(self._said(message))
            stored = self._stored(session_id, store)
            if message:
                _require_end(stored)
                return self._workflow(stored.merge(self._said(message)))
            if not isinstance(stored.outcome, Suspended):
                raise Refused(f"session {session_id} has ended; give a message to go on with it")
            return self._workflow.resume(stored, store=store, cancelled="go_on")

    def _said(self, message: str) -> Session:
        session = Session.from_user_message(message)
        LineageRecorder.stamp_new_session(
            session,
            parent_session_ids=(),
            lineage_operator=OPERATOR,
            lineage_kind=LineageKind.LEAF_USER,
            lineage_extras=(("served", self._name),),
        )
        return session

    def _store(self) -> SessionStore:
        return self._options.store or default_store()

    def _stored(self, session_id: UUID, store: SessionStore) -> Session:
        # Whether there is one that is not this client's is not told.
        problem = Refused(f"this server has no session {session_id}; leave session_id out to begin")
        try:
            session = Session.load(session_id, store=store)
        except PersistenceError as exc:
            if store.holds(session_id):
                _log.warning("session %s cannot be loaded: %s", session_id, exc)
            raise problem from exc
        if self._options.sessions == "any" or session_id in self._given:
            return session
        if not any(self._is_ours(edge) for edge in _above(session.as_parent())):
            raise problem
        return session

    def _is_ours(self, edge: Edge) -> bool:
        made = edge.provenance
        return (
            made is not None and made.operator == OPERATOR and ("served", self._name) in made.extras
        )


class _Begun:
    """The session of a call, which may be given up before it is there."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self._runs: Nested | None = None
        self._is_given_up = False
        self._lock = threading.Lock()

    def begin(self, begin: Callable[[], Session]) -> None:
        """Take the session that a call begins with; on a worker thread."""
        with nesting() as runs:
            with self._lock:
                self._runs = runs
            session = begin()
        with self._lock:
            self.session = session
            is_given_up = self._is_given_up
        if is_given_up:
            self.cancel()

    def cancel(self) -> None:
        """End the runs of the call, also those that come; returns at once."""
        with self._lock:
            self._is_given_up = True
            session, runs = self.session, self._runs
        if session is not None:
            session.cancel()
        if runs is not None:
            runs.cancel()


async def _end(session: Session | None) -> None:
    """Wait a little for the end of a run that was cancelled, though the waiting is cancelled."""
    if session is None or not session.is_pending:
        return
    with anyio.move_on_after(END_SECONDS, shield=True) as waiting, contextlib.suppress(Exception):
        await session
    if waiting.cancelled_caught:
        _log.warning("session %s did not end within %g s", session.id, END_SECONDS)


def _checked(arguments: Mapping[str, Any]) -> tuple[str, UUID | None]:
    """Return message and session of a call.

    Raises:
        Refused: They are no such things.
    """
    unknown = sorted(set(arguments) - {"message", "session_id"})
    if unknown:
        raise Refused(f"unknown arguments {unknown!r:.200}; expected message and session_id")
    message, session_id = arguments.get("message"), arguments.get("session_id")
    if not isinstance(message, str):
        raise Refused(f"message must be a text, not {type(message).__name__}")
    if len(message) > MAX_MESSAGE_CHARS:
        raise Refused(
            f"the message has {len(message)} characters, and at most {MAX_MESSAGE_CHARS} are read"
        )
    if session_id is None:
        return message, None
    try:
        if not isinstance(session_id, str):
            raise TypeError
        return message, UUID(session_id)
    except (TypeError, ValueError):
        raise Refused(
            f"session_id {session_id!r:.80} is no id of a session; expected one that an earlier "
            "call gave"
        ) from None


def _require_end(session: Session) -> None:
    outcome = session.outcome
    if isinstance(outcome, Suspended):
        how = "was cancelled" if isinstance(outcome, Cancelled) else "waits, or was cut off"
        raise Refused(
            f"the run of session {session.id} {how}; go on with it first, with an empty message, "
            "or leave session_id out to begin anew"
        )


def _above(edge: Edge) -> list[Edge]:
    """Return an edge and all above it, each once."""
    found: list[Edge] = []
    seen: set[UUID] = set()
    todo = [edge]
    while todo:
        each = todo.pop()
        if each.id in seen:
            continue
        seen.add(each.id)
        found.append(each)
        todo += () if each.provenance is None else each.provenance.parents
    return found
