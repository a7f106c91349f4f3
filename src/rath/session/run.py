"""A run of the loop: model, tools, model again, until a turn has no tool calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID, uuid4

from rath._async.lazy import Deferred
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.exchange import Exchange
from rath.llm.provider import Provider
from rath.session.aside import aside, rows_worth
from rath.session.body import Body
from rath.session.budget import Budget
from rath.session.calls import Context
from rath.session.candidates import Candidate, turn_request
from rath.session.chunk import (
    ChunkRow,
    ChunkTable,
    RowId,
    assistant_turn_chunk,
    tool_feedback_chunk,
    user_text_chunk,
)
from rath.session.content import AssistantTurn, ToolCall
from rath.session.conversation import Conversation, Frame
from rath.session.encode import rows_digest
from rath.session.events import Emitter, OnEventCb
from rath.session.graph.legacy import SessionLineage
from rath.session.graph.provenance import Provenance
from rath.session.operation import Place
from rath.session.outcome import (
    DeadlineExceeded,
    Outcome,
    RoundLimit,
    Suspended,
)
from rath.session.output_run import (
    OutputPlan,
    OutputRun,
    Verdict,
    explain_refusal,
    judge_plain,
)
from rath.session.output_schema import OutputSpec
from rath.session.placement import Placement
from rath.session.recall import HoldingRecall, Recall, recall_context
from rath.session.record import Entry, ModelCall, Operation
from rath.session.recording import Recording, RecordingPlan
from rath.session.rounds import (
    DispatchTool,
    Finished,
    ToolRounds,
    interrupted,
    not_made,
    tool_run_entry,
)
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
    """The first one; the limits of the run are its."""

    candidates: tuple[Candidate, ...]
    """The provider with its client, and then its fallbacks."""

    dispatch_tool: DispatchTool | None
    """A custom executor's `dispatch_tool`, or None."""

    tools: Mapping[str, Offer]
    schemas: tuple[RathLLMFunctionTool, ...]
    output: OutputPlan | None
    """The typed answer that is asked for, if any."""

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

    @property
    def output_spec(self) -> OutputSpec | None:
        """How the typed answer is asked for, if any is."""
        return None if self.output is None else self.output.spec


class LoopRun:
    """One run; `execute` is its coroutine, `body` what it has written so far."""

    def __init__(self, plan: LoopPlan, cell: Deferred[Body]) -> None:
        self._plan = plan
        self._cell = cell
        self._id = uuid4()
        self._body = Body(ChunkTable())
        self._rounds = ToolRounds(plan.tools, plan.placement, plan.dispatch_tool)
        self._output = None if plan.output is None else OutputRun(plan.output)
        self._n_calls = 0
        self._budget = Budget(plan.provider, session=plan.session, run=self._id)
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
                if self._output is not None:
                    explain_refusal(exc)
                exc.add_note(
                    f"in the run of session {self._plan.session}, model call {self._n_calls}, "
                    f"started at {self._plan.started_at}"
                )
                raise
        finally:
            self._has_ended = True
            self._plan.placement.drop()
            recall: object = self._plan.recall
            if isinstance(recall, HoldingRecall):
                recall.close()
        return self._body

    async def _execute(self, user: Body, agent: Body) -> None:
        self._set(user.inheriting(agent))
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
        conversation = self._open_conversation(head, context)
        stopped = await self._budget.begin(self._body, self._snapshot)
        for _ in range(self._plan.max_tool_rounds):
            stopped = stopped or await self._budget.before_call(self._snapshot)
            if stopped is not None:
                return stopped
            turn, exchange = await self._turn(conversation)
            stopped = await self._budget.after_call(self._snapshot)
            verdict = await self._judge(turn, exchange)
            if stopped is None or not verdict.others or verdict.outcome is not None:
                await self._carry_on(turn, verdict, stopped)
                if verdict.outcome is not None:
                    return verdict.outcome
        if stopped is not None:
            return stopped
        _log.warning(
            "session %s used all %d rounds (max_tool_rounds) and was not done",
            self._plan.session,
            self._plan.max_tool_rounds,
        )
        return RoundLimit(self._plan.max_tool_rounds)

    def _open_conversation(self, head: Sequence[ChunkRow], context: Context | None) -> Conversation:
        frame = Frame(
            head=head,
            request=partial(turn_request, self._plan.schemas, self._plan.output_spec),
            context=context,
            streaming=self._plan.on_event is not None,
        )
        return Conversation(self._plan.candidates, frame)

    async def _turn(self, conversation: Conversation) -> tuple[AssistantTurn, Exchange]:
        """Return what the model said, and the call in which it did."""
        self._n_calls += 1
        row_id = RowId(self._plan.session, len(self._body.table))
        purpose = "turn" if self._output is None else self._output.purpose
        ask = partial(
            conversation.ask,
            self._body,
            self._note,
            operation=self._id,
            purpose=purpose,
            row=row_id,
        )
        if self._plan.on_event is None:
            exchange = await ask()
        else:
            async with Emitter(self._plan.on_event) as emitter:
                exchange = await ask(on_delta=emitter.sink)
        message = exchange.response.primary_choice.message
        said = message.refusal if message.refusal and not message.content else message.content
        row = assistant_turn_chunk(tool_calls=message.tool_calls, content=said)
        self._append([row])
        await self._recording.flush(self._body.table)
        content = row.content
        assert isinstance(content, AssistantTurn)
        return content, exchange

    async def _judge(self, turn: AssistantTurn, exchange: Exchange) -> Verdict:
        if self._output is None:
            return judge_plain(turn, exchange)
        may_repair = self._n_calls < self._plan.max_tool_rounds
        return await self._output.judge(turn, exchange, may_repair=may_repair)

    async def _carry_on(
        self, turn: AssistantTurn, verdict: Verdict, stopped: Outcome | None
    ) -> None:
        """Do what a turn asks for, unless the run is stopped; say what is to be said to it."""
        if turn.calls:
            await self._tools(turn.calls, verdict, stopped)
        if verdict.reply is not None:
            self._append([user_text_chunk(verdict.reply)])
            await self._recording.flush(self._body.table)

    async def _tools(
        self, calls: Sequence[ToolCall], verdict: Verdict, stopped: Outcome | None
    ) -> None:
        done: dict[int, Finished] = {}
        try:
            if stopped is not None:
                others = enumerate(verdict.others)
                done |= {at: not_made(one, self._plan.tools.get(one.name)) for at, one in others}
            elif verdict.others:
                await self._rounds.run(verdict.others, self._snapshot(), done)
        finally:
            # Also when the run is cut off: what was done is kept, what was not is said.
            self._append_results(calls, verdict.results(done))
        await self._recording.flush(self._body.table)

    def _append_results(self, calls: Sequence[ToolCall], done: Mapping[int, Finished]) -> None:
        for index, call in enumerate(calls):
            finished = done.get(index) or interrupted(call, self._plan.tools.get(call.name))
            row_ids: tuple[RowId, ...] = ()
            if not finished.is_cut_off:
                row_ids = (RowId(self._plan.session, len(self._body.table)),)
                self._append([tool_feedback_chunk(call.id, call.name, finished.result.shown)])
            self._note(tool_run_entry(finished, operation=self._id, rows=row_ids))

    async def _operation(self, user: Body, head: tuple[ChunkRow, ...]) -> Operation:
        return Operation(
            operation=self._id,
            kind="loop",
            place=self._plan.place,
            session=self._plan.session,
            input_digest=await aside(rows_worth(user.table), partial(rows_digest, user.table)),
            head=head,
            tools=self._plan.schemas,
            output=self._plan.output_spec,
            n_ours=len(user.record) if len(self._body.record) > len(user.record) else None,
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
            self._budget.count(entry)
        self._tell_above(entry)

    def _take(self, entry: Entry) -> None:
        """Add an entry of a run inside this one, as long as this one goes on."""
        if not self._has_ended:
            self._note(entry)

    def _set(self, body: Body) -> None:
        self._body = body
        self._cell.report(body)
