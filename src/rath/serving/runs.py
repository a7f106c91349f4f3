"""Runs of served workflows: begun, continued, read, streamed and cancelled by their principal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import ExitStack
from dataclasses import field
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from rath._async.runtime import await_future, runtime
from rath._core.dataclasses import dataclass
from rath.errors import PersistenceError, SessionBusy, SessionChanged
from rath.flow.agent import CallerOptions, adding
from rath.flow.serving.calls import (
    MAX_ERROR_CHARS,
    RunningCall,
    SessionOwner,
    cancel_late,
    end_run,
    outcome_note,
    runs_elsewhere,
)
from rath.flow.tool.base import FlowToolCall
from rath.flow.tool.mcp_adapter import require_fit
from rath.flow.workflow import Workflow
from rath.llm.chat_response import RathLLMTokenUsage
from rath.mcp.schema import SchemaCheck
from rath.serving.principals import Limits, Principal
from rath.session import Session
from rath.session.chunk import ChunkRow, ChunkTable
from rath.session.content import AssistantTurn, json_digest
from rath.session.log.store import SessionStore, default_store
from rath.session.open_calls import OpenCall
from rath.session.outcome import NeedsInput, Suspended
from rath.session.record import Entry, ModelCall, report_to
from rath.session.scope import recording_scope
from rath.session.streaming import TextDelta
from rath.session.tooling import ToolEffects, ask

T = TypeVar("T")

CLIENT_TOOL_QUESTION = "The client runs this tool: its result is the answer."
"""By which the question of a tool of the client is known from one of the workflow's own tools."""

_log = logging.getLogger("rath.serving")


class UnknownSession(Exception):
    """A principal has no such session; whether somebody else has is not told."""


class Conflict(Exception):
    """A session cannot go on like this; the text says why and what can be done."""


class SessionInUse(Conflict):
    """Another run goes on with a session, or has done so just now; asked again it may be free."""


class MessageTooLong(Conflict):
    """What a principal says is longer than what is read."""


class RunFailed(Exception):
    """A run raised; the cause is what it raised."""


class ClientTool(FlowToolCall):
    """A tool that the client runs: a call of it is a question to the client.

    Its schema is checked within bounds, as that of an MCP server is: a regular expression of one
    client could hold up the server for all.

    Args:
        name: Of the tool.
        description: What it does, for the model.
        parameters: JSON Schema of its arguments.
    """

    parallel_safe: bool = True
    effects: ToolEffects = "read_only"

    def __init__(self, name: str, description: str | None, parameters: Mapping[str, Any]) -> None:
        self._name = name
        self._description = description
        self._parameters = dict(parameters) or {"type": "object", "properties": {}}
        self._check = SchemaCheck(self._parameters)

    @property
    def name(self) -> str:
        """The name that the client gave it."""
        return self._name

    @property
    def description(self) -> str | None:
        """The description that the client gave it."""
        return self._description

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The schema that the client gave it."""
        return self._parameters

    def check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Check arguments by the schema; see `SchemaCheck`.

        Raises:
            BadArguments: They do not fit.
        """
        require_fit(self._check, self._name, arguments)

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """Return a key for each call: the client is asked for all of a turn together."""
        return ("client", self._name, json_digest(dict(arguments)))

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        """Return what the client answers."""
        return ask(CLIENT_TOOL_QUESTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A run that a principal asks for."""

    principal: Principal
    workflow: str
    rows: tuple[ChunkRow, ...] = ()
    """What is said; none to go on with what waits or was cancelled."""

    session_id: UUID | None = None
    """The session that it goes on from."""

    results: Mapping[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    """Results of tools of the client, by row and place of the call."""

    tools: tuple[ClientTool, ...] = ()
    streaming: bool = False


class ServedRun:
    """One run of a principal.

    Args:
        request: What was asked for.
    """

    def __init__(self, request: RunRequest) -> None:
        self.request = request
        self.first_row = 0
        """Index of the first row that this run makes."""

        self.resumes: UUID | None = None
        """The session that waited or was cancelled, with which it goes on."""

        self._usage = RathLLMTokenUsage(0, 0, 0)
        self._call = RunningCall()
        self._n_readers = 0
        self._on_end: Callable[[], None] | None = None
        self._lock = threading.Lock()

    @property
    def session(self) -> Session:
        """The session that it makes; it has begun."""
        session = self._call.session
        assert session is not None, "it has begun"
        return session

    @property
    def usage(self) -> RathLLMTokenUsage:
        """Tokens of its model calls, those of runs inside it with them; once it has ended."""
        return self._usage

    def begin(self, begin: Callable[[], Session]) -> None:
        """Take the session of the run; blocks."""
        self._call.begin(begin)

    def cancel(self) -> None:
        """End the run and those inside it; returns at once."""
        self._call.cancel()

    async def wait(self) -> Session:
        """Wait for the end of the run.

        Raises:
            RunFailed: It failed.
            Conflict: Another process runs its session.
        """
        try:
            return await self.session
        except Exception as exc:
            raise run_error(exc) from exc
        finally:
            self.note_end()

    def when_ended(self, on_end: Callable[[], None]) -> None:
        """Have a function called once when the run has ended, before its client is told so."""
        self._on_end = on_end

    def note_end(self) -> None:
        """Note that the run has ended, if it has."""
        if self.session.is_pending:
            return
        with self._lock:
            on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    @contextlib.contextmanager
    def reading(self, grace: float | None) -> Generator[None]:
        """Read the run inside: it is cancelled when nobody has read it for `grace` seconds.

        Args:
            grace: In seconds; None to let a run go on though nobody reads it.
        """
        self._n_readers += 1
        try:
            yield
        finally:
            self._n_readers -= 1
            if grace is not None and self.session.is_pending and not self._n_readers:
                asyncio.get_running_loop().call_later(grace, self._cancel_unread)

    def _cancel_unread(self) -> None:
        if not self._n_readers and self.session.is_pending:
            self.cancel()

    async def end_now(self) -> None:
        """Cancel the run and wait a moment for its end, so that its session is written whole."""
        self.cancel()
        await end_run(self._call.session)

    def take(self, entry: Entry) -> None:
        """Count the tokens of a model call."""
        usage = entry.evidence.usage if isinstance(entry, ModelCall) else None
        if usage is not None:
            self._usage = added_usage(self._usage, usage)


class StoredRun(ServedRun):
    """A stored session as the run that made it, or that makes it in another process.

    Args:
        principal: Whose it is.
        workflow: That made it.
        session: The session; one that another process makes is followed.
        first_row: Index of the first row of its answer.
        streaming: Whether its answer is told as a stream.
    """

    def __init__(
        self,
        principal: Principal,
        workflow: str,
        session: Session,
        first_row: int = 0,
        *,
        streaming: bool = False,
    ) -> None:
        super().__init__(RunRequest(principal=principal, workflow=workflow, streaming=streaming))
        self.begin(lambda: session)
        self.first_row = first_row

    @property
    def usage(self) -> RathLLMTokenUsage:
        """Tokens of the whole session; waits for its end."""
        return self.session.cumulative_usage or RathLLMTokenUsage(0, 0, 0)


def still_runs(session_id: UUID) -> SessionInUse:
    """Return the error of a session with which a run goes on already."""
    return SessionInUse(f"session {session_id} still runs; wait for its end, or cancel it")


def run_error(error: Exception) -> RunFailed | Conflict:
    """Return the error of a run that raised; its client sees no path of the server."""
    match error:
        case SessionBusy():
            return still_runs(error.session)
        case SessionChanged():
            return SessionInUse(f"another run has gone on with session {error.session}; try again")
        case _:
            return RunFailed(f"the run failed: {type(error).__name__}: {error}"[:MAX_ERROR_CHARS])


def added_usage(one: RathLLMTokenUsage, other: RathLLMTokenUsage) -> RathLLMTokenUsage:
    """Return the sum of two usages, with what is known of cached and reasoning tokens."""
    return RathLLMTokenUsage(
        one.prompt_tokens + other.prompt_tokens,
        one.completion_tokens + other.completion_tokens,
        one.total_tokens + other.total_tokens,
        _added(one.completion_tokens_details, other.completion_tokens_details),
        _added(one.prompt_tokens_details, other.prompt_tokens_details),
    )


def _added(
    one: Mapping[str, Any] | None, other: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    if not one or not other:
        return one or other
    names = {**one, **other}
    return {name: (one.get(name) or 0) + (other.get(name) or 0) for name in names}


async def in_worker(fn: Callable[[], T]) -> T:
    """Run what blocks on a worker thread, and wait in any event loop."""
    return await await_future(runtime().start_in_worker(fn))


class Runs:
    """The runs of a server.

    Args:
        workflows: What is served, by name.
        limits: Of its principals.
        store: Where sessions are stored; the store of the home by default.
        run_seconds: How long a run may take; it is cancelled then. None for no limit.
        max_message_chars: Most characters of what is said with a request; None for any number.
    """

    def __init__(
        self,
        workflows: Mapping[str, Workflow],
        limits: Limits,
        *,
        store: SessionStore | None = None,
        run_seconds: float | None = None,
        max_message_chars: int | None = None,
    ) -> None:
        self.max_message_chars = max_message_chars
        self.run_seconds = run_seconds
        self.workflows: dict[str, Workflow] = dict(workflows)
        self.limits = limits
        self._store = store
        self._running: dict[tuple[str, UUID], ServedRun] = {}
        self._starting: set[ServedRun] = set()
        self._resumed: set[tuple[str, UUID]] = set()
        """Principal and id of sessions with which a run goes on; of each one at a time."""

        self._lock = threading.Lock()

    @property
    def store(self) -> SessionStore:
        """Where sessions are stored."""
        return self._store or default_store()

    def names(self, principal: Principal) -> list[str]:
        """Return the names of the workflows that a principal may run."""
        return [name for name in self.workflows if principal.may_run(name)]

    async def start(self, request: RunRequest) -> ServedRun:
        """Begin a run, or go on with one.

        Raises:
            UnknownSession: The principal has no such session.
            Conflict: The session cannot go on like this.
            LimitReached: The principal has used up a limit.
            RunFailed: The workflow raised before there was a session.
        """
        self.check_size(request)
        run = ServedRun(request)
        self._starting.add(run)
        begun = asyncio.ensure_future(in_worker(partial(self._begin, run)))
        # Who asked may have gone when it fails.
        begun.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await cancel_late(begun, run.cancel, self.run_seconds)
            await asyncio.shield(begun)
        except asyncio.CancelledError:
            run.cancel()
            raise
        finally:
            self._starting.discard(run)
        return run

    def check_size(self, request: RunRequest) -> None:
        """Refuse what is too long.

        Raises:
            MessageTooLong: It is.
        """
        self.check_chars(sum(len(getattr(row.content, "text", "") or "") for row in request.rows))

    def check_chars(self, n_chars: int) -> None:
        """Refuse texts that are too long together.

        Raises:
            MessageTooLong: They are.
        """
        most = self.max_message_chars
        if most is not None and n_chars > most:
            raise MessageTooLong(
                f"the messages have {n_chars} characters, and at most {most} are read"
            )

    def find_running(self, principal: Principal, session_id: UUID) -> ServedRun | None:
        """Return the run that makes a session of a principal now, if there is one."""
        run = self._running.get((principal.name, session_id))
        return run if run is not None and run.session.is_pending else None

    async def find(self, principal: Principal, session_id: UUID) -> tuple[str, Session]:
        """Return a session of a principal and the workflow that it belongs to.

        Raises:
            UnknownSession: It has no such session.
        """
        run = self.find_running(principal, session_id)
        if run is not None:
            return run.request.workflow, run.session
        return await in_worker(partial(self._find, principal, session_id))

    def runs_elsewhere(self, session: Session) -> bool:
        """Tell whether another process runs a stored session now; blocks."""
        return runs_elsewhere(session, self.store)

    def follow(self, session: Session) -> Session:
        """Return a stored session, growing where another process runs it; blocks."""
        if not self.runs_elsewhere(session):
            return session
        return Session.follow(session.id, store=self.store)

    async def cancel_all(self) -> None:
        """End all runs and wait a moment: their sessions can go on later."""
        runs = [*self._running.values(), *self._starting]
        for run in runs:
            run.cancel()
        await asyncio.gather(*(run.end_now() for run in runs), return_exceptions=True)

    def _find(self, principal: Principal, session_id: UUID) -> tuple[str, Session]:
        for name in self.names(principal):
            session = SessionOwner(name, principal.name).find(session_id, self.store)
            if session is not None:
                return name, session
        raise UnknownSession(f"there is no session {session_id} here")

    def _begin(self, run: ServedRun) -> None:
        """Begin a run; blocks, and runs what the user wrote."""
        request = run.request
        self.limits.begin_run(request.principal)
        is_begun = False
        try:
            run.begin(partial(self._session_of, run))
            key = (request.principal.name, run.session.id)
            with self._lock:
                self._running[key] = run
            is_begun = True
        except (UnknownSession, Conflict):
            raise
        except Exception as exc:
            raise run_error(exc) from exc
        finally:
            if not is_begun:
                self._release(run)
                self.limits.end_run(request.principal.name)
        run.when_ended(partial(self._note_end, run, key))
        runtime().submit(partial(self._watch, run), label=f"a run of {key[0]}", at_exit="leave")

    def _note_end(self, run: ServedRun, key: tuple[str, UUID]) -> None:
        with self._lock:
            if self._running.get(key) is run:
                del self._running[key]
        self._release(run)
        self.limits.end_run(key[0])

    def _claim(self, run: ServedRun, session_id: UUID) -> None:
        """Have a run alone go on with a session until it has ended.

        Raises:
            Conflict: Another one does so.
        """
        key = (run.request.principal.name, session_id)
        with self._lock:
            if key in self._resumed:
                raise still_runs(session_id)
            self._resumed.add(key)
        run.resumes = session_id

    def _release(self, run: ServedRun) -> None:
        if run.resumes is not None:
            with self._lock:
                self._resumed.discard((run.request.principal.name, run.resumes))

    async def _watch(self, run: ServedRun) -> None:
        """Note the end of a run; on the runtime thread."""
        principal = run.request.principal
        with contextlib.suppress(Exception):  # whoever waits for the run is told
            try:
                async with asyncio.timeout(self.run_seconds):
                    await run.session
            except TimeoutError:
                if run.session.is_pending:
                    await run.end_now()
        run.note_end()
        if principal.usd_per_day is not None:
            await runtime().call_in_worker(partial(self.limits.write_spending, principal))

    def _session_of(self, run: ServedRun) -> Session:
        request = run.request
        workflow = self.workflows[request.workflow]

        def take(entry: Entry, _: object) -> None:
            run.take(entry)
            self.limits.note_entry(request.principal, entry)

        with ExitStack() as stack:
            stack.enter_context(report_to(take))
            stack.enter_context(recording_scope(self.store))
            options = CallerOptions(tools=request.tools, streaming=request.streaming)
            stack.enter_context(adding(options))
            if request.session_id is None:
                run.first_row = len(request.rows)
                return workflow(self._first_session(request))
            stored = self.stored(request, request.session_id)
            if isinstance(stored.outcome, Suspended):
                self._claim(run, stored.id)
                # A run may have gone on with it and ended before the claim.
                stored = self.stored(request, stored.id)
            outcome = stored.outcome
            if isinstance(outcome, NeedsInput):
                self._answer(stored, request)
            elif request.results:
                raise Conflict(f"session {stored.id} waits for no result of a tool")
            elif not isinstance(outcome, Suspended):
                if not request.rows:
                    raise Conflict(f"session {stored.id} has ended; say something to go on")
                run.first_row = len(stored.partial_table) + len(request.rows)
                return workflow(stored.merge(self._first_session(request)))
            elif request.rows:
                raise Conflict(
                    f"session {stored.id} cannot take a message before its run goes on, with an "
                    f"empty input: {outcome_note(stored)}"
                )
            run.first_row = len(stored.partial_table)
            return workflow.resume(stored, store=self.store, cancelled="go_on")

    def _first_session(self, request: RunRequest) -> Session:
        session = Session(ChunkTable(request.rows))
        return SessionOwner(request.workflow, request.principal.name).own(session)

    def stored(self, request: RunRequest, session_id: UUID) -> Session:
        """Return the session that a request goes on from; blocks.

        Raises:
            UnknownSession: The principal has no such session.
            Conflict: It still runs, or was made by another workflow.
        """
        if self.find_running(request.principal, session_id) is not None:
            raise still_runs(session_id)
        name, session = self._find(request.principal, session_id)
        if name != request.workflow:
            raise Conflict(f"session {session_id} was made by {name!r}; go on with that one")
        if self.runs_elsewhere(session):
            raise still_runs(session_id)
        return session

    def _answer(self, session: Session, request: RunRequest) -> None:
        """Answer the questions of a session: of tools of the client, or of one of its own."""
        by = f"client {request.principal.name}"
        questions = client_calls(session)
        for call in questions:
            result = request.results.get((call.row, call.index))
            if result is None:
                raise Conflict(
                    f"the call {call.call.name!r} of session {session.id} has no result; give one "
                    "for each call that was asked for"
                )
            _give_answer(session, result, call, by=by)
        if questions:
            if request.rows:
                raise Conflict("give the results of tools alone, and the next message afterwards")
            return
        own = session.questions
        if len(own) != 1 or len(request.rows) != 1:
            raise Conflict(f"session {session.id} waits: {outcome_note(session)}")
        text = getattr(request.rows[0].content, "text", "")
        _give_answer(session, text, own[0].call, by=by)


def _give_answer(session: Session, answer: str, call: OpenCall, *, by: str) -> None:
    with _conflicts():
        session.answer(answer, call, by=by)


@contextlib.contextmanager
def _conflicts() -> Generator[None]:
    """Raise what cannot be written into a session as a conflict."""
    try:
        yield
    except (SessionBusy, SessionChanged) as exc:
        raise run_error(exc) from exc
    except (ValueError, PersistenceError) as exc:  # such as one that came a moment before
        raise Conflict(str(exc)) from exc


def client_calls(session: Session) -> list[OpenCall]:
    """Return the calls of tools of the client that have no result; waits for the run."""
    if not isinstance(session.outcome, NeedsInput):
        return []
    return [call for call in session.open_calls if call.question == CLIENT_TOOL_QUESTION]


DECISIONS = ("approve", "deny")


def decide_calls(
    session: Session,
    principal: Principal,
    choice_of: Callable[[OpenCall], object],
    advice: str,
) -> None:
    """Allow or deny the calls that wait for it, by data and never by a text; blocks.

    Nothing is done where none waits any more: somebody has decided where the server runs.

    Args:
        session: The session that waits.
        principal: Who decides.
        choice_of: Gives `approve` or `deny` for a call.
        advice: How to give a decision, for the message.

    Raises:
        Conflict: The principal may not, a decision is missing, or the session still runs.
    """
    waiting = [call for call in session.open_calls if call.waits_for == "approval"]
    if not waiting:
        return
    if not principal.may_approve:
        raise Conflict(
            f"{principal.name!r} may not allow tool calls. Let somebody do so where the server "
            f"runs (rath approve {session.id}), then go on; or make a token that may (rath serve "
            "token add NAME --approve)"
        )
    choices = [(call, choice_of(call)) for call in waiting]
    missing = [call.call.id for call, choice in choices if choice not in DECISIONS]
    if missing:
        raise Conflict(f"{advice} for the calls {', '.join(missing)}; a text allows nothing")
    for call, choice in choices:
        decide = session.approve if choice == "approve" else session.deny
        with _conflicts():
            decide(call, by=f"client {principal.name}")


async def stream_text(run: ServedRun) -> AsyncGenerator[str]:
    """Yield the text of a run as it comes: its answers, a blank line between two.

    Raises:
        RunFailed: The run failed.
        Conflict: Another process runs its session.
    """
    session, first_row = run.session, run.first_row
    n_rows, is_later, part = 0, False, ""
    try:
        async for event in session.stream():
            if isinstance(event, TextDelta):
                if n_rows < first_row:
                    continue
                text, part = event.text, part + event.text
                is_new = part == text
            elif isinstance(event, ChunkRow):
                n_rows += 1
                turn = event.content
                is_own = n_rows > first_row and _is_born_in(event, session)
                if not is_own or not isinstance(turn, AssistantTurn):
                    continue
                whole = turn.text or ""
                text, is_new = whole[len(part) :] if whole.startswith(part) else "", not part
                part = ""
            else:
                continue
            if text:
                yield f"\n\n{text}" if is_new and is_later else text
                is_later = True
    except Exception as exc:
        raise run_error(exc) from exc
    finally:
        run.note_end()


def _is_born_in(row: ChunkRow, session: Session) -> bool:
    return row.id is not None and row.id.session == session.id


def require_no_failure(session: Session) -> None:
    """Raise where a stored session is that of a run that failed; blocks.

    Raises:
        RunFailed: It is.
    """
    unfinished = session.core.body.result().unfinished
    failure = None if unfinished is None else unfinished.failure
    if failure is not None and failure.how == "failed":
        raise RunFailed(f"the run failed: {failure.error}"[:MAX_ERROR_CHARS])


def text_of(session: Session, first_row: int) -> str:
    """Return the text of a run that has ended, as `stream_text` gives it."""
    rows = session.partial_table.since(first_row)
    turns = [row.content for row in rows if _is_born_in(row, session)]
    return "\n\n".join(turn.text for turn in turns if isinstance(turn, AssistantTurn) and turn.text)
