"""A run of the loop: model, tools, model again, until a turn has no tool calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID, uuid4

from rath._async.bridge import call_either
from rath._async.lazy import Deferred
from rath.errors import BudgetExceededError
from rath.llm.base import ChatClient
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.chat_response import RathLLMTokenUsage, add_usage
from rath.llm.draft import ProviderOrigin
from rath.llm.provider import Provider
from rath.session.aside import aside
from rath.session.body import Body
from rath.session.calls import Call, Context, call_model
from rath.session.chat_request_build import provider_into_chat_request
from rath.session.chunk import (
    ChunkRow,
    ChunkTable,
    RowId,
    assistant_turn_chunk,
    tool_feedback_chunk,
)
from rath.session.content import AssistantTurn, ToolCall
from rath.session.conversation import Conversation
from rath.session.encode import rows_digest
from rath.session.events import Emitter, OnEventCb
from rath.session.graph.legacy import SessionLineage
from rath.session.graph.provenance import Provenance
from rath.session.operation import Place
from rath.session.outcome import (
    BudgetExceeded,
    Completed,
    DeadlineExceeded,
    Outcome,
    RoundLimit,
    Suspended,
)
from rath.session.placement import Placement
from rath.session.recall import Recall, recall_context
from rath.session.record import Entry, ModelCall, Operation
from rath.session.recording import Recording, RecordingPlan
from rath.session.rounds import DispatchTool, Finished, ToolRounds, interrupted, tool_run_entry
from rath.session.session import Session
from rath.session.tooling import Offer
from rath.session.uplink import collecting, uplink

_log = logging.getLogger("rath.session.loop")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPlan:
    """All that a run was given, checked before it was submitted."""

    session: UUID
    """The session that the run makes."""

    user: Callable[[Body], Body]
    """Adds to the user's content what came to its record since."""

    cells: tuple[Deferred[Body], Deferred[Body]]
    """Content of the user's and of the agent's session."""

    provider: Provider
    provider_origin: ProviderOrigin
    client: ChatClient
    dispatch_tool: DispatchTool | None
    """A custom executor's `dispatch_tool`, or None."""

    tools: Mapping[str, Offer]
    schemas: tuple[RathLLMFunctionTool, ...]
    max_tool_rounds: int
    on_event: OnEventCb | None
    recall: Recall | None
    timeout: float | None
    placement: Placement
    provenance: Provenance
    session_provider: Provider | None
    lineage: SessionLineage
    place: Place
    started_at: str
    """File, line and function of the call that submitted the run."""

    recording: RecordingPlan | None


class LoopRun:
    """One run; `execute` is its coroutine, `body` what it has written so far."""

    def __init__(self, plan: LoopPlan, cell: Deferred[Body]) -> None:
        self._plan = plan
        self._cell = cell
        self._id = uuid4()
        self._body = Body(ChunkTable())
        self._usage: RathLLMTokenUsage | None = None
        self._rounds = ToolRounds(plan.tools, plan.placement, plan.dispatch_tool)
        self._conversation: Conversation | None = None
        self._n_calls = 0
        self._has_fired = False
        self._has_ended = False
        # Inside `collecting` the context names this run; what is above it is found only here.
        self._tell_above = uplink()

    async def execute(self) -> Body:
        """Run to the end and return the content of the new session."""
        try:
            # An error of an input is passed on as it is; only one born here gets a note from here.
            user = self._plan.user(await self._plan.cells[0])
            agent = await self._plan.cells[1]
            try:
                await self._execute(user, agent)
            except Exception as exc:
                exc.add_note(
                    f"in the run of session {self._plan.session}, model call {self._n_calls}, "
                    f"started at {self._plan.started_at}"
                )
                raise
        finally:
            self._has_ended = True
            self._plan.placement.drop()
        return self._body

    async def _execute(self, user: Body, agent: Body) -> None:
        self._set(user.inheriting(agent))
        self._usage = self._body.usage()
        async with Recording(self._plan.recording, self._snapshot) as recording:
            self._recording = recording
            await recording.begin()
            suspended = next((b for b in (user, agent) if isinstance(b.outcome, Suspended)), None)
            if suspended is not None:
                self._finish(suspended.outcome)
                return
            head = tuple(agent.table)
            self._note(await self._operation(user, head))
            with collecting(self._take):
                await self._run_to_the_end(head)

    async def _run_to_the_end(self, head: Sequence[ChunkRow]) -> None:
        if self._plan.timeout is None:
            self._finish(await self._loop(head))
            return
        deadline = asyncio.timeout(self._plan.timeout)
        try:
            async with deadline:
                outcome = await self._loop(head)
        except TimeoutError:
            if not deadline.expired():
                raise
            outcome = DeadlineExceeded(self._plan.timeout)
            self._cell.cancel_nested()
        self._finish(outcome)

    async def _loop(self, head: Sequence[ChunkRow]) -> Outcome:
        context = await recall_context(self._plan.recall, self._snapshot())
        conversation = self._conversation = await self._open_conversation(head, context)
        cap = self._plan.provider.budget_total_tokens
        # A chain that is at its cap fires before a call is made; later, only what crosses it.
        stopped = await self._fire_budget(cap is not None and self._used >= cap)
        for _ in range(self._plan.max_tool_rounds):
            if stopped is not None:
                return stopped
            turn = await self._turn(conversation, context)
            stopped = await self._fire_budget(cap is not None and self._used > cap)
            if not turn.calls:
                return Completed()
            if stopped is None:
                await self._tools(turn.calls)
                conversation.extend(self._body.table)
        if stopped is not None:
            return stopped
        _log.warning(
            "session %s used all %d rounds (max_tool_rounds) and still called tools",
            self._plan.session,
            self._plan.max_tool_rounds,
        )
        return RoundLimit(self._plan.max_tool_rounds)

    async def _open_conversation(
        self, head: Sequence[ChunkRow], context: Context | None
    ) -> Conversation:
        plan = self._plan
        choice = "auto" if plan.schemas else None
        return await Conversation(
            plan.client,
            provider_into_chat_request((), plan.schemas, plan.provider, default_tool_choice=choice),
            head=head,
            body=self._body,
            context=context,
            streaming=plan.on_event is not None,
            provider_origin=plan.provider_origin,
        ).begun()

    async def _turn(self, conversation: Conversation, context: Context | None) -> AssistantTurn:
        self._n_calls += 1
        row_id = RowId(self._plan.session, len(self._body.table))
        call = Call(
            operation=self._id,
            purpose="turn",
            head_digest=conversation.head_digest,
            n_rows=len(self._body.table),
            context=context,
            row=row_id,
        )
        if self._plan.on_event is None:
            exchange = await call_model(conversation.draft, call, self._note)
        else:
            async with Emitter(self._plan.on_event) as emitter:
                exchange = await call_model(
                    conversation.draft, call, self._note, on_delta=emitter.sink
                )
        message = exchange.response.primary_choice.message
        said = message.content if message.content is not None else message.refusal
        row = assistant_turn_chunk(tool_calls=message.tool_calls, content=said)
        self._append([row])
        await self._recording.flush(self._body.table)
        content = row.content
        assert isinstance(content, AssistantTurn)
        return content

    async def _tools(self, calls: Sequence[ToolCall]) -> None:
        done: dict[int, Finished] = {}
        try:
            await self._rounds.run(calls, self._snapshot(), done)
        finally:
            # Also when the run is cut off: what was done is kept, what was not is said.
            self._append_results(calls, done)
        await self._recording.flush(self._body.table)

    def _append_results(self, calls: Sequence[ToolCall], done: Mapping[int, Finished]) -> None:
        for index, call in enumerate(calls):
            finished = done.get(index)
            row_ids: tuple[RowId, ...] = ()
            if finished is not None:
                row_ids = (RowId(self._plan.session, len(self._body.table)),)
                self._append([tool_feedback_chunk(call.id, call.name, finished.result.shown)])
            self._note(
                tool_run_entry(
                    finished or interrupted(call, self._plan.tools.get(call.name)),
                    operation=self._id,
                    rows=row_ids,
                    placement=self._plan.placement,
                )
            )

    @property
    def _used(self) -> int:
        return 0 if self._usage is None else self._usage.total_tokens

    async def _fire_budget(self, is_over: bool) -> BudgetExceeded | None:
        """Fire the budget once when the chain is over it; return why the run must stop, if so."""
        cap, callback = (
            self._plan.provider.budget_total_tokens,
            self._plan.provider.on_budget_exceeded,
        )
        if not is_over or cap is None or self._has_fired:
            return None
        self._has_fired = True
        if callback is None:
            _log.warning(
                "session %s has used %d tokens of budget_total_tokens=%d; the run stops",
                self._plan.session,
                self._used,
                cap,
            )
            return BudgetExceeded(cap, self._used)
        try:
            await call_either(callback, self._snapshot(), self._usage)
        except BudgetExceededError:
            raise
        except Exception:  # noqa: BLE001  # a callback that fails must not end the run it watches
            _log.exception("on_budget_exceeded failed; the run goes on")
        return None

    async def _operation(self, user: Body, head: tuple[ChunkRow, ...]) -> Operation:
        return Operation(
            operation=self._id,
            kind="loop",
            place=self._plan.place,
            session=self._plan.session,
            input_digest=await aside(len(user.table), partial(rows_digest, user.table)),
            head=head,
            tools=self._plan.schemas,
        )

    def _snapshot(self) -> Session:
        return Session.from_body(
            Deferred.of(self._body),
            self._plan.provenance,
            id=self._plan.session,
            placement=self._plan.placement.share(),
            provider=self._plan.session_provider,
            lineage=self._plan.lineage,
        )

    def _finish(self, outcome: Outcome) -> None:
        self._set(replace(self._body, outcome=outcome))

    def _append(self, rows: Sequence[ChunkRow]) -> None:
        body = self._body
        table = body.table.born_in(self._plan.session, rows)
        self._set(Body(table, body.record, body.outcome, body.given))

    def _note(self, entry: Entry) -> None:
        """Add an entry of this run, and tell the run that it happens in."""
        self._set(self._body.with_entries(entry))
        if isinstance(entry, ModelCall):
            self._usage = add_usage(self._usage, entry.evidence.usage)
            if self._conversation is not None:
                self._conversation.reasoning.learn(entry)
        self._tell_above(entry)

    def _take(self, entry: Entry) -> None:
        """Add an entry of a run inside this one, as long as this one goes on."""
        if not self._has_ended:
            self._note(entry)

    def _set(self, body: Body) -> None:
        self._body = body
        self._cell.report(body)
