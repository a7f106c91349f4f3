"""Calls of a served workflow, and the answer that a client reads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, assert_never
from uuid import UUID

import anyio

from rath._async.deferred import Nested, nesting
from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath._core.text import cut_middle
from rath.errors import PersistenceError, RathError, SessionBusy, SessionChanged
from rath.flow.serving.serve import ServeOptions
from rath.flow.workflow import Workflow
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session import Session
from rath.session.content import AssistantTurn
from rath.session.graph.kind import LineageKind
from rath.session.graph.recording import Edge, LineageRecorder
from rath.session.log.index.database import OUTCOME_STATES
from rath.session.log.store import SessionStore, default_store
from rath.session.outcome import (
    BudgetExceeded,
    Cancelled,
    Completed,
    DeadlineExceeded,
    NeedsApproval,
    NeedsDecision,
    NeedsInput,
    Outcome,
    OutputMissing,
    RoundLimit,
    Suspended,
)
from rath.session.output import plain_answer
from rath.session.record import Entry, report_to
from rath.session.scope import recording_scope

OPERATOR = "serve_mcp"
"""Lineage operator of the sessions with which calls begin."""

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


class RefusedCall(Exception):
    """A call cannot be made as it was asked for; the text is for the client."""


_OWNED_BY = ("served", "principal")


@dataclass(frozen=True, slots=True)
class SessionOwner:
    """Whose the sessions of a served workflow are: written into the lineage of the first one."""

    served: str
    """The name under which the workflow is served."""

    principal: str | None = None
    """The client; None where a server has clients without names."""

    def own(self, session: Session) -> Session:
        """Stamp the session with which a call begins, and return it."""
        LineageRecorder.stamp_new_session(
            session,
            parent_session_ids=(),
            lineage_operator=OPERATOR,
            lineage_kind=LineageKind.LEAF_USER,
            lineage_extras=self._extras,
        )
        return session

    def owns(self, session: Session) -> bool:
        """Tell whether a session comes from one of this owner; O(sessions above it)."""
        return any(self._is_first(edge) for edge in _above(session.core.as_parent()))

    def find(self, session_id: UUID, store: SessionStore) -> Session | None:
        """Return a stored session of this owner, None where there is none; blocks.

        Whether there is one that is another's is not told.
        """
        session = load_stored(session_id, store)
        return session if session is not None and self.owns(session) else None

    @property
    def _extras(self) -> tuple[tuple[str, str], ...]:
        served = (("served", self.served),)
        return served if self.principal is None else (*served, ("principal", self.principal))

    def _is_first(self, edge: Edge) -> bool:
        provenance = edge.provenance
        return (
            provenance is not None
            and provenance.operator == OPERATOR
            and tuple(each for each in provenance.extras if each[0] in _OWNED_BY) == self._extras
        )


def load_stored(session_id: UUID, store: SessionStore) -> Session | None:
    """Return a session of a store, None where there is none that can be loaded; blocks."""
    try:
        return Session.load(session_id, store=store)
    except PersistenceError as exc:
        if store.holds(session_id):
            _log.warning("session %s cannot be loaded: %s", session_id, exc)
        return None


def runs_elsewhere(session: Session, store: SessionStore) -> bool:
    """Tell whether another run, of whatever process, writes a stored session now; blocks."""
    return isinstance(session.outcome, Suspended) and store.is_being_written(session.id)


class Calls:
    """Makes the calls of clients; each has a session of its own, and any number run at once.

    Args:
        workflow: What is served.
        name: Under which name: a client goes on only with sessions that were served under it.
        options: What was chosen.
        owner: Whose the sessions are; by default of all clients under this name.
        report: Is told of each entry of the runs, on the runtime thread.
    """

    def __init__(
        self,
        workflow: Workflow,
        name: str,
        options: ServeOptions,
        *,
        owner: SessionOwner | None = None,
        report: Callable[[Entry], None] | None = None,
    ) -> None:
        self._workflow = workflow
        self._name = name
        self._owner = owner or SessionOwner(name)
        self._options = options
        self._report = report
        self._running: set[RunningCall] = set()
        self._own_sessions: set[UUID] = set()

    async def call(
        self, arguments: Mapping[str, Any], tell: Callable[[Entry], None]
    ) -> ServedAnswer:
        """Make a call and return what the client reads; on the runtime thread.

        Args:
            arguments: What the client gave, unchecked.
            tell: Is told of each entry of the runs, on the runtime thread.
        """
        running = RunningCall()
        self._running.add(running)
        try:
            message, session_id = _check_message(arguments, self._options.max_message_chars)
            begin = partial(self._begin, message, session_id, tell)
            begun = asyncio.ensure_future(runtime().call_in_worker(partial(running.begin, begin)))
            await cancel_late(begun, running.cancel, self._options.run_seconds)
            await begun
            session = running.session
            assert session is not None, "it has begun"
            self._own_sessions.add(session.id)
            await self._wait(running, session)
            return await runtime().call_in_worker(partial(run_answer, session))
        except RefusedCall as exc:
            return refusal_answer(str(exc))
        except (SessionBusy, SessionChanged) as exc:
            return refusal_answer(_in_use(exc.session))
        except asyncio.CancelledError:
            running.cancel()
            await end_run(running.session)
            raise
        except Exception as exc:  # noqa: BLE001  # a tool's lane: the client reads what went wrong
            _log.warning("a call of %r failed: %s: %s", self._name, type(exc).__name__, exc)
            return failure_answer(running.session, exc)
        finally:
            self._running.discard(running)

    async def _wait(self, running: RunningCall, session: Session) -> None:
        """Wait for the end of a run, which is cancelled where it takes too long.

        Raises:
            RefusedCall: It does not end though it was cancelled.
        """
        seconds = self._options.run_seconds
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await session
        except TimeoutError:
            if not limit.expired():
                raise
            running.cancel()
            await end_run(session)
            if session.is_pending:
                raise RefusedCall(
                    f"session {session.id} took longer than {seconds:g} s and is being cancelled; "
                    "go on with it later, with an empty message"
                ) from None

    def cancel_all(self) -> None:
        """End all calls; returns at once."""
        for running in list(self._running):
            running.cancel()

    def _tell(self, entry: Entry, tell: Callable[[Entry], None]) -> None:
        tell(entry)
        if self._report is not None:
            self._report(entry)

    def _begin(
        self, message: str, session_id: UUID | None, tell: Callable[[Entry], None]
    ) -> Session:
        """Begin the run of a call; blocks, and runs what the user wrote.

        Raises:
            Refused: There is no such session for this client, or it cannot go on like this.
        """
        store = self._store()
        with ExitStack() as stack:
            stack.enter_context(report_to(lambda entry, _: self._tell(entry, tell)))
            if self._options.persist:
                stack.enter_context(recording_scope(store))
            if session_id is None:
                if not message:
                    raise RefusedCall("the message is empty; say what to do")
                return self._workflow(self._message_session(message))
            stored = self._stored(session_id, store)
            if message:
                _require_end(stored)
                return self._workflow(stored.merge(self._message_session(message)))
            if not isinstance(stored.outcome, Suspended):
                raise RefusedCall(
                    f"session {session_id} has ended; give a message to go on with it"
                )
            return self._workflow.resume(stored, store=store, cancelled="go_on")

    def _message_session(self, message: str) -> Session:
        return self._owner.own(Session.from_user_message(message))

    def _store(self) -> SessionStore:
        return self._options.store or default_store()

    def _stored(self, session_id: UUID, store: SessionStore) -> Session:
        session = load_stored(session_id, store)
        is_free = self._options.sessions == "any" or session_id in self._own_sessions
        if session is None or not (is_free or self._owner.owns(session)):
            raise RefusedCall(
                f"this server has no session {session_id}; leave session_id out to begin"
            )
        if runs_elsewhere(session, store):
            raise RefusedCall(_in_use(session_id))
        return session


class RunningCall:
    """The session of a call, which may be given up before it is there."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self._runs: Nested | None = None
        self._is_cancelled = False
        self._lock = threading.Lock()

    def begin(self, begin: Callable[[], Session]) -> None:
        """Take the session that a call begins with; on a worker thread."""
        with nesting() as runs:
            with self._lock:
                self._runs, is_cancelled = runs, self._is_cancelled
            if is_cancelled:
                runs.end()
            session = begin()
        with self._lock:
            self.session = session
            is_cancelled = self._is_cancelled
        if is_cancelled:
            self.cancel()

    def cancel(self) -> None:
        """End the runs of the call, also those that come; returns at once."""
        with self._lock:
            self._is_cancelled = True
            session, runs = self.session, self._runs
        if session is not None:
            session.cancel()
        if runs is not None:
            runs.end()


async def cancel_late(
    begun: asyncio.Future[None], cancel: Callable[[], None], seconds: float | None
) -> None:
    """Cancel a run that has not begun in time: a `forward` may wait for what it makes."""
    done, _ = await asyncio.wait((begun,), timeout=seconds)
    if not done:
        cancel()


async def end_run(session: Session | None) -> None:
    """Wait a little for the end of a run that was cancelled, though the waiting is cancelled."""
    if session is None or not session.is_pending:
        return
    with anyio.move_on_after(END_SECONDS, shield=True) as waiting, contextlib.suppress(Exception):
        await session
    if waiting.cancelled_caught:
        _log.warning("session %s did not end within %g s", session.id, END_SECONDS)


def _check_message(arguments: Mapping[str, Any], max_chars: int) -> tuple[str, UUID | None]:
    """Return message and session of a call.

    Raises:
        Refused: They are no such things.
    """
    unknown = sorted(set(arguments) - {"message", "session_id"})
    if unknown:
        raise RefusedCall(f"unknown arguments {unknown!r:.200}; expected message and session_id")
    message, session_id = arguments.get("message"), arguments.get("session_id")
    if not isinstance(message, str):
        raise RefusedCall(f"message must be a text, not {type(message).__name__}")
    if len(message) > max_chars:
        raise RefusedCall(
            f"the message has {len(message)} characters, and at most {max_chars} are read"
        )
    if session_id is None:
        return message, None
    try:
        if not isinstance(session_id, str):
            raise TypeError
        return message, UUID(session_id)
    except (TypeError, ValueError):
        raise RefusedCall(
            f"session_id {session_id!r:.80} is no id of a session; expected one that an earlier "
            "call gave"
        ) from None


def _in_use(session_id: UUID) -> str:
    return f"session {session_id} is in use by another run; wait for its end, and try again"


def _require_end(session: Session) -> None:
    outcome = session.outcome
    if isinstance(outcome, Suspended):
        how = "was cancelled" if isinstance(outcome, Cancelled) else "waits, or was cut off"
        raise RefusedCall(
            f"the run of session {session.id} {how}; go on with it first, with an empty message, "
            "or leave session_id out to begin anew"
        )


def _above(edge: Edge) -> list[Edge]:
    """Return an edge and all above it, each once."""
    edges: list[Edge] = []
    seen: set[UUID] = set()
    todo = [edge]
    while todo:
        each = todo.pop()
        if each.id in seen:
            continue
        seen.add(each.id)
        edges.append(each)
        todo += () if each.provenance is None else each.provenance.parents
    return edges


MAX_ERROR_CHARS = 4_000
"""How much of an error a client reads; a guess."""

OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "The answer."},
        "output": {"description": "The typed answer, where the workflow gives one."},
        "session_id": {
            "type": ["string", "null"],
            "description": "Go on with this session by giving its id with the next message.",
        },
        "outcome": {
            "type": "string",
            "enum": [*OUTCOME_STATES.values(), "failed", "refused"],
            "description": "How the run ended, or what it waits for.",
        },
        "waits_for": {"type": ["string", "null"]},
        "usage": {
            "type": ["object", "null"],
            "properties": {
                "prompt_tokens": {"type": "integer"},
                "completion_tokens": {"type": "integer"},
                "total_tokens": {"type": "integer"},
            },
        },
    },
    "required": ["text", "session_id", "outcome", "usage"],
}


@dataclass(frozen=True, slots=True)
class ServedAnswer:
    """The answer to a client."""

    text: str
    structured: dict[str, Any]
    is_error: bool = False


def refusal_answer(problem: str) -> ServedAnswer:
    """Return what is said of a call that nothing was made of."""
    structured = {"text": problem, "session_id": None, "outcome": "refused", "usage": None}
    return ServedAnswer(problem, structured, is_error=True)


def failure_answer(session: Session | None, error: Exception) -> ServedAnswer:
    """Return what is said of a run that failed, or did not begin."""
    kind = "" if isinstance(error, RathError) else f"{type(error).__name__}: "
    answer_text = cut_middle(f"the run failed: {kind}{error}", MAX_ERROR_CHARS)[0]
    session_id = None if session is None else str(session.id)
    structured = {"text": answer_text, "session_id": session_id, "outcome": "failed", "usage": None}
    return ServedAnswer(answer_text, structured, is_error=True)


def run_answer(session: Session) -> ServedAnswer:
    """Return what is said of a run that has ended or waits."""
    outcome = session.outcome
    note = outcome_note(session)
    answer_text = plain_answer(session)
    if isinstance(outcome, NeedsApproval | NeedsInput | NeedsDecision):
        text = last_turn_text(session)
    else:
        text = answer_text if isinstance(answer_text, str) else session.text()
    reply = "\n\n".join(filter(None, (text, note)))
    structured: dict[str, Any] = {
        "text": text,
        "session_id": str(session.id),
        "outcome": OUTCOME_STATES[type(outcome).__name__],
        "usage": _usage(session.cumulative_usage),
    }
    if isinstance(outcome, NeedsApproval | NeedsInput | NeedsDecision):
        structured["waits_for"] = note
    if answer_text is not None and not isinstance(answer_text, str):
        structured["output"] = answer_text
    return ServedAnswer(reply or "(no answer)", structured)


def last_turn(session: Session) -> AssistantTurn | None:
    """Return the last turn of a model."""
    turns = (row.content for row in reversed(session.chunk_table))
    return next((turn for turn in turns if isinstance(turn, AssistantTurn)), None)


def last_turn_text(session: Session) -> str:
    """Return the text of the last turn: an answer before the calls that wait is none to them."""
    turn = last_turn(session)
    return "" if turn is None else turn.text or ""


def outcome_note(session: Session) -> str:
    """Return what is to be said beside the answer; nothing of a run that was completed."""
    outcome: Outcome = session.outcome
    match outcome:
        case Completed(OutputMissing(problem)):
            return f"(no answer of the type that was asked for: {problem})"
        case Completed():
            return ""
        case RoundLimit(n_rounds):
            return f"(the run was not done after {n_rounds} model calls)"
        case BudgetExceeded():
            return f"(the run was stopped by its budget: {outcome})"
        case DeadlineExceeded(seconds):
            return f"(the run was not done after {seconds:g} s)"
        case Cancelled():
            return "(the run was cancelled)"
        case NeedsDecision(calls=()):
            return "(the run failed, or was cut off)"
        case NeedsApproval() | NeedsInput() | NeedsDecision():
            return _waiting(session, outcome)
        case _:
            assert_never(outcome)


def _waiting(session: Session, outcome: NeedsApproval | NeedsInput | NeedsDecision) -> str:
    match outcome:
        case NeedsInput():
            what = f"an answer to the question: {outcome.question}"
        case NeedsApproval():
            what = f"somebody to allow the calls {', '.join(outcome.calls)}"
        case _:
            what = f"somebody to decide about the calls {', '.join(outcome.calls)}"
    return (
        f"Session {outcome.session} waits for {what}. Once that is said where the server runs, "
        f"call again with session_id {session.id} and an empty message to go on."
    )


def _usage(usage: RathLLMTokenUsage | None) -> dict[str, int] | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
