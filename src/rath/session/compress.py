"""Shrinking a session to one row that a model writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from rath._async.deferred import Deferred
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_function
from rath._core.text import short_id
from rath.llm.chat_response import RathLLMChatChoice
from rath.llm.provider import Provider, ProviderOrigin
from rath.session.body import Body, suspension
from rath.session.calls.oneshot import OneShot, OnEventCb, noting
from rath.session.calls.requests import offload
from rath.session.chunk import RowId, user_text_chunk
from rath.session.graph.kind import LineageKind
from rath.session.graph.legacy import SessionLineage
from rath.session.graph.recording import note_content, stamped
from rath.session.hooks import inputs_changed, passed_on_to
from rath.session.loop import (
    announce_run,
    call_site,
    check_callable,
    check_executor,
    check_may_wait,
    plan_recording,
    provider_for,
    register_run,
    submit_once,
)
from rath.session.outcome import Completed
from rath.session.provider_builtin import SessionLoopExecutor, candidates_for
from rath.session.record import (
    Operation,
    Summary,
    report_to,
)
from rath.session.run.budget import Budget, check_budget
from rath.session.run.run_log import Durability, RunLog, RunPlan
from rath.session.scope import RecordedServing, RecordedSession, begin_operation, current_source
from rath.session.session import Session

if TYPE_CHECKING:
    from rath.session.programs import UnfinishedCompression

# Only where a program is resumed.
_find_earlier_compression = lazy_function("rath.session.programs", "find_earlier_compression")

DEFAULT_INSTRUCTION = (
    "Summarise the conversation above in one message: what was asked for, what was done and what "
    "came out. Keep every fact, decision, result and open question that somebody needs to go on "
    "with the work; leave out the rest."
)

_EXTRAS = (("compression.lossy", True), ("compression.rows_out", 1))


def run_session_compress(
    user_session: Session,
    agent_session: Session,
    *,
    agent_provider: Provider | None = None,
    executor: SessionLoopExecutor | None = None,
    compress_instruction: str | None = None,
    register_sessions: bool = True,
    on_event: OnEventCb | None = None,
    persist: bool = False,
    persist_path: Path | None = None,
    sandbox_handle_id: str | None = None,
    durability: Durability | None = None,
    lazy: bool = False,
) -> Session:
    """Return a session whose one user row is a model's summary of `user_session`; waits for it.

    Usage is carried over, and the record names the rows that were replaced. Where the chain is at
    its budget no call is made: the result has the rows as they were, and the outcome
    BudgetExceeded. Where the call crosses it the result has the summary, since that was paid for,
    and the same outcome.

    Args:
        user_session: What to compress.
        agent_session: Instructions that stand before it.
        agent_provider: Model to ask; the user session's provider by default.
        executor: Completes the request in place of the provider's client.
        compress_instruction: The closing message; a general one by default.
        register_sessions: Whether the sessions are made findable by id.
        on_event: Makes the call streamed and gets every delta.
        persist: Write the result to the store of the home.
        persist_path: Write the result to this file.
        sandbox_handle_id: Identity of a remote sandbox, for the file's header.
        durability: How carefully it is written; see `run_session_loop`.
        lazy: Return at once; reads of the result wait, and raise what is wrong with the summary.

    Raises:
        RuntimeError: The model gave no usable summary: tool calls, an empty text, or a text that
            was cut at its length limit.
        SelfWaitError: Called on an event loop of rath, by an `async def` tool for example, without
            `lazy`.
        TypeError: An argument is of the wrong type.
        ValueError: No provider, no key, an unknown provider kind or durability, or a budget in
            money for a model without a known price.
    """
    if not lazy:
        check_may_wait("run_session_compress")
    provider = provider_for("run_session_compress", user_session, agent_session, agent_provider)
    check_executor("run_session_compress", executor)
    check_callable("run_session_compress", "on_event", on_event)
    instruction = _check_instruction(compress_instruction)
    origin: ProviderOrigin = "session" if agent_provider is None else "call"
    candidates = candidates_for(provider, executor, on_event, origin=origin)
    check_budget("run_session_compress", candidates)
    place, served = begin_operation("compress", user_session, agent_session, candidates)
    cells = (user_session.core.body, agent_session.core.body)
    earlier: RecordedSession | UnfinishedCompression | None = None
    if served is None and current_source() is not None:
        earlier = _find_earlier_compression(place, cells)
    known, before = (earlier, None) if isinstance(earlier, RecordedSession) else (None, earlier)
    session_id = place.new_id()
    shot = OneShot(
        purpose="compress",
        operation=_run_id(served, before),
        candidates=candidates,
        question=instruction,
        on_event=on_event,
        row=RowId(session_id, 0),
    )
    kind = LineageKind.OP_SESSION_COMPRESS
    parents = (user_session.core.as_parent(), agent_session.core.as_parent())
    provenance = stamped(session_id, "run_session_compress", kind, parents, _EXTRAS)
    placement = user_session.core.placement.share()
    lineage = SessionLineage(user_session.id, agent_session.id, "run_session_compress")
    plan = _CompressPlan(
        session=session_id,
        cells=cells,
        started_at=call_site(),
        shot=shot,
        provenance=provenance,
        place=place,
        placement=placement,
        recording=plan_recording(
            session_id,
            persist=persist,
            path=persist_path,
            sandbox_handle_id=sandbox_handle_id,
            durability=durability,
        ),
        session_provider=user_session.provider,
        lineage=lineage,
        served=served,
        known=known,
        before=before,
    )
    out = _submit(plan, user_session)
    note_content(out)
    announce_run(out)
    if register_sessions:
        register_run(user_session, agent_session, out)
    return out if lazy else out.synchronize()


def _submit(plan: _CompressPlan, user_session: Session) -> Session:
    session_id, before, cells, site = plan.session, plan.before, plan.cells, plan.started_at
    inherited = user_session.core.inheritor()

    async def execute(cell: Deferred[Body]) -> Body:
        user, agent = inherited(await cells[0]), await cells[1]
        if before is not None:
            before.check(user, agent)
            with noting(
                f"in the compression that made session {session_id}, gone on with at {site}"
            ):
                return await _CompressRun(cell, plan, user, before).execute(agent)
        stopped = suspension(user, agent)
        if stopped is not None:
            async with RunLog(session_id, cell, plan.recorder(cell)) as log:
                log.start(replace(user.inheriting(agent), outcome=stopped))
                await log.open()
            return log.body
        with noting(f"in the compression that made session {session_id}, started at {site}"):
            return await _CompressRun(cell, plan, user.inheriting(agent)).execute(agent)

    label = f"session {short_id(session_id)} (run_session_compress, {site})"

    def start() -> Deferred[Body]:
        return Deferred.start(
            execute, owner=session_id, label=label, inputs=cells, on_cancel=plan.cut_off
        )

    if plan.known is not None:
        cell = plan.known.body
    else:
        cell, _ = submit_once(session_id, None if before is None else before.origin, start)
    out = plan.made(cell, plan.placement)
    if plan.known is not None:
        out.core.late = plan.known.late
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class _CompressPlan(RunPlan):
    shot: OneShot
    known: RecordedSession | None
    """The session that was made by it before, complete or still being made."""

    before: UnfinishedCompression | None
    """What had been made of it when it was cut off."""


class _CompressRun:
    """One compression; until the summary is there, its content is the input's."""

    def __init__(
        self,
        cell: Deferred[Body],
        plan: _CompressPlan,
        user: Body,
        before: UnfinishedCompression | None = None,
    ) -> None:
        self._plan = plan
        self._before = before
        self._user = user if before is None else before.start_with(user)
        first = plan.shot.candidates[0].provider
        self._budget = Budget(first, session=plan.session, run=plan.shot.operation)
        self._log = RunLog(plan.session, cell, plan.recorder(cell), self._budget.count)

    async def execute(self, agent: Body) -> Body:
        """Ask for the summary and return the new content."""
        before, log = self._before, self._log
        has_summary = before is not None and before.has_summary
        earlier = () if before is None else before.own_entries
        log.start(self._user, input_only=not has_summary, earlier=earlier)
        spent = await self._budget.begin(log.body, self._snapshot)
        if spent is not None:
            log.start(self._user)  # no model is asked, so it ends with the rows of the input
        async with log:
            await log.open(goes_on=before is not None)
            if spent is None and not has_summary:
                await self._summarise(agent)
            stopped = spent or await self._budget.after_call(self._snapshot)
            if stopped is not None:
                log.end(stopped)
        return log.body

    async def _summarise(self, agent: Body) -> None:
        table, shot, log = self._user.table, self._plan.shot, self._log
        digest = await offload(len(table), table.digest)
        if self._before is None:
            log.note(self._operation(agent, digest))
        if self._before is None and self._plan.served is None:
            changes = passed_on_to(self._plan.provenance.parents[0].id)
            for change in inputs_changed(changes, shot.operation):
                log.note(change)
        with report_to(log.take):
            text = await shot.ask_for(self._user, agent, log.note, read=_summary)
        summary = Summary(
            operation=shot.operation,
            rows=(RowId(self._plan.session, 0),),
            replaced=tuple(row.id for row in table if row.id is not None),
            replaced_digest=digest,
        )
        log.note(summary)
        log.append(user_text_chunk(text))
        log.end(Completed())

    def _operation(self, agent: Body, input_digest: str) -> Operation:
        return Operation(
            operation=self._plan.shot.operation,
            kind="compress",
            place=self._plan.place,
            session=self._plan.session,
            input_digest=input_digest,
            head=tuple(agent.table),
        )

    def _snapshot(self) -> Session:
        return self._plan.made(Deferred.of(self._log.body), self._plan.placement)


def _run_id(served: RecordedServing | None, before: UnfinishedCompression | None) -> UUID:
    if before is not None:
        return before.operation.operation
    return uuid4() if served is None else served.run_id


def _check_instruction(instruction: object) -> str:
    if instruction is not None and not isinstance(instruction, str):
        raise TypeError(f"compress_instruction must be a str, not {type(instruction).__name__}")
    return (instruction or "").strip() or DEFAULT_INSTRUCTION


def _summary(choice: RathLLMChatChoice) -> str:
    """Return the text of a usable summary.

    Raises:
        RuntimeError: The answer is none.
    """
    text = (choice.message.content or "").strip()
    problems: Sequence[tuple[bool, str]] = (
        (bool(choice.message.tool_calls), "it called tools"),
        (choice.finish_reason == "length", "it was cut at its length limit; allow more tokens"),
        (choice.finish_reason not in ("stop", "content_filter"), "it did not end by itself"),
        (not text, "it is empty"),
    )
    for is_so, problem in problems:
        if is_so:
            raise RuntimeError(
                f"the model gave no usable summary: {problem} "
                f"(finish reason {choice.finish_reason!r})"
            )
    return text
