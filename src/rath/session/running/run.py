"""A run of the loop: model, tools, model again, until a turn has no tool calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID, uuid4

from rath._async.lazy import Deferred
from rath.llm.exchange import Exchange
from rath.session.approvals.asking import in_call
from rath.session.body import Body, suspension
from rath.session.chunk import (
    ChunkRow,
    ChunkTable,
    RowId,
    assistant_turn_chunk,
    user_text_chunk,
)
from rath.session.content import AssistantTurn
from rath.session.encode import rows_digest
from rath.session.hooks.answers import Answering
from rath.session.hooks.asked import inputs_changed
from rath.session.outcome import (
    DeadlineExceeded,
    Outcome,
    RoundLimit,
)
from rath.session.output.run import (
    OutputRun,
    Verdict,
    explain_refusal,
    judge_plain,
)
from rath.session.recall import HoldingRecall, recall_context
from rath.session.record import Entry, ModelCall, Operation
from rath.session.recorder.partials import watched
from rath.session.recorder.prices import load_prices
from rath.session.recorder.recorder import Recorder
from rath.session.resume.going_on import GoingOn
from rath.session.resume.looking import warn_of_differences
from rath.session.running.aside import aside, rows_worth
from rath.session.running.budget import Budget
from rath.session.running.calls import Context
from rath.session.running.candidates import turn_request
from rath.session.running.conversation import Conversation, Frame
from rath.session.running.events import Emitter
from rath.session.running.loop_plan import LoopPlan
from rath.session.running.turn_calls import AskedCalls, TurnCalls
from rath.session.running.uplink import InnerLog, collecting, uplink
from rath.session.session import Session

_log = logging.getLogger("rath.session.loop")


class LoopRun:
    """One run; `execute` is its coroutine, `body` what it has written so far."""

    def __init__(self, plan: LoopPlan, cell: Deferred[Body]) -> None:
        self._plan = plan
        self._cell = cell
        self._id = _run_id(plan)
        self._body = Body(ChunkTable())
        self._output = None if plan.output is None else OutputRun(plan.output)
        self._n_calls = 0
        self._budget = Budget(plan.provider, session=plan.session, run=self._id)
        self._has_ended = False
        self._recorder = Recorder(plan.recording, plan.who, cell, lambda: self._body)
        self._calls = TurnCalls(plan, self._id, self._recorder, self)
        # Inside `collecting` the context names this run; what is above it is found only here.
        self._tell_above = uplink()

    @property
    def body(self) -> Body:
        """What the run has made so far."""
        return self._body

    async def execute(self) -> Body:
        """Run to the end and return the content of the new session."""
        try:
            # An error of an input is passed on as it is; only one born here gets a note from here.
            user = self._plan.user(await self._plan.cells[0])
            agent = await self._plan.cells[1]
            try:
                await self._require_workspace(user, agent)
                if self._plan.goes_on is None:
                    await self._execute(user, agent)
                else:
                    await self._go_on(self._plan.goes_on, user, agent)
            except Exception as exc:
                if self._output is not None:
                    explain_refusal(exc)
                exc.add_note(
                    f"in the run of session {self._plan.session}, round {self._n_calls}, "
                    f"model call {self._n_calls}, "
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

    async def _require_workspace(self, user: Body, agent: Body) -> None:
        """Refuse to ask a model that is offered tools where their files are not there.

        Raises:
            WorkspaceLost: They are not.
        """
        plan = self._plan
        has_tools = bool(plan.tools or plan.schemas) and plan.served is None
        passes_on = plan.goes_on is None and suspension(user, agent) is not None
        if has_tools and not passes_on:
            await plan.placement.arequire()

    async def _execute(self, user: Body, agent: Body) -> None:
        self._set(user.inheriting(agent))
        async with self._recorder as recorder:
            await recorder.begin(self._body)
            suspended = suspension(user, agent)
            if suspended is not None:
                self._finish(suspended)
                return
            head = tuple(agent.table)
            self.note(await self._operation(user, head))
            for change in inputs_changed(self._plan.passed_on, self._id):
                self.note(change)
            recorder.write(self._body)
            if recorder.is_on:
                load_prices(self._plan.candidates)
            # What this run calls belongs to no tool call that it may be inside.
            with collecting(self._take), in_call(None):
                await self._run_to_the_end(head)

    async def _go_on(self, before: GoingOn, user: Body, agent: Body) -> None:
        if before.check is not None:
            before.check(user, agent)
        self._set(before.beginning)
        for entry in before.told:
            self._tell_above(entry, None)
        async with self._recorder as recorder:
            await recorder.begin(replace(self._body, unfinished=before.left), goes_on=True)
            await warn_of_differences(before, self.snapshot())
            with collecting(self._take), in_call(None):
                await self._run_to_the_end(before.operation.head)

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
        before = self._plan.goes_on
        if before is not None and before.was_asked:
            context = before.context
        else:
            context = await recall_context(self._plan.recall, self.snapshot())
        conversation = self._open_conversation(head, context)
        stopped = await self._budget.begin(self._body, self.snapshot)
        ended = None if before is None else await self._close_the_tail(before, stopped)
        if ended is not None:
            return ended
        for _ in range(self._n_calls, self._plan.max_tool_rounds):
            stopped = stopped or await self._budget.before_call(self.snapshot)
            if stopped is not None:
                return stopped
            turn, exchange = await self._turn(conversation)
            stopped = await self._budget.after_call(self.snapshot)
            verdict = await self._judge(turn, exchange)
            if stopped is None or not verdict.others or verdict.outcome is not None:
                ended = await self._carry_on(turn, verdict, stopped) or verdict.outcome
                if ended is not None:
                    return ended
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
        hooks = self._plan.hooks.model
        if not hooks:
            exchange = await self._ask(conversation, row_id, self.note)
            row = _row_of(exchange)
            for change in () if self._plan.served is None else self._plan.served.changes_of(row_id):
                self.note(change)
        else:
            with Answering(
                hooks, self.note, row=row_id, operation=self._id, session=self.snapshot
            ) as answering:
                exchange = await self._ask(conversation, row_id, answering.hold)
                row = await answering.shown(_row_of(exchange))
        self.append([row])
        await self._recorder.take_turn(self._body)
        content = row.content
        assert isinstance(content, AssistantTurn)
        return content, exchange

    async def _ask(
        self, conversation: Conversation, row: RowId, note: Callable[[ModelCall], None]
    ) -> Exchange:
        purpose = "turn" if self._output is None else self._output.purpose
        ask = partial(
            conversation.ask, self._body, note, operation=self._id, purpose=purpose, row=row
        )
        if self._plan.on_event is None:
            return await ask()
        async with Emitter(self._plan.on_event) as emitter:
            return await ask(on_delta=watched(emitter.sink, self._recorder, self._id))

    async def _close_the_tail(self, before: GoingOn, stopped: Outcome | None) -> Outcome | None:
        """Do what the last turn asked for and is not done; return the outcome if it was the last.

        What earlier turns meant is judged again, since a typed answer counts its tries.
        """
        verdict: Verdict | None = None
        for turn, exchange in before.turns:
            self._n_calls += 1
            verdict = await self._judge(turn, exchange)
        if verdict is None:
            return None
        turn = before.turns[-1][0]
        is_said = len(self._body.table) > before.last_row + 1
        if is_said and not before.open_calls:
            return verdict.outcome
        if stopped is None or not verdict.others or verdict.outcome is not None:
            waits = await self._carry_on(turn, verdict, stopped, before)
            return waits or verdict.outcome
        return verdict.outcome

    async def _judge(self, turn: AssistantTurn, exchange: Exchange) -> Verdict:
        if self._output is None:
            return judge_plain(turn, exchange)
        may_repair = self._n_calls < self._plan.max_tool_rounds
        return await self._output.judge(turn, exchange, may_repair=may_repair)

    async def _carry_on(
        self,
        turn: AssistantTurn,
        verdict: Verdict,
        stopped: Outcome | None,
        before: GoingOn | None = None,
    ) -> Outcome | None:
        """Do what a turn asks for, unless the run is stopped; say what is to be said to it.

        Returns what the run waits for before it can do so, None where it was done.
        """
        waits = None
        if turn.calls:
            waits = await self._calls.make(AskedCalls(turn.calls, verdict, before), stopped)
        if verdict.reply is not None and waits is None:
            self.append([user_text_chunk(verdict.reply)])
            await self._recorder.flush(self._body)
        return waits

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

    def snapshot(self) -> Session:
        """Return the session with what the run has made so far."""
        return Session.from_body(
            Deferred.of(self._body),
            self._plan.provenance,
            id=self._plan.session,
            placement=self._plan.placement.share(),
            provider=self._plan.session_provider,
            lineage=self._plan.lineage,
        )

    def _finish(self, outcome: Outcome) -> None:
        self._set(replace(self._body, outcome=outcome, unfinished=self._calls.left))

    def append(self, rows: Sequence[ChunkRow]) -> None:
        """Add rows of this run."""
        body = self._body
        table = body.table.born_in(self._plan.session, rows)
        self._set(Body(table, body.record, body.outcome, body.given))

    def note(self, entry: Entry, inner: InnerLog | None = None) -> None:
        """Add an entry of this run, and tell the run that it happens in.

        Args:
            entry: The entry.
            inner: The log of the run inside this one that it came from.
        """
        # What is not done stays known, for whoever goes on with a run that fails.
        body = self._body
        record = body.record.append(entry)
        self._set(Body(body.table, record, body.outcome, body.given, body.unfinished))
        if isinstance(entry, ModelCall):
            self._budget.count(entry)
        self._tell_above(entry, self._recorder.log or inner)

    def _take(self, entry: Entry, inner: InnerLog | None) -> None:
        """Add an entry of a run inside this one, as long as this one goes on."""
        before = self._plan.goes_on
        if not self._has_ended and (before is None or entry.id not in before.known):
            self.note(entry, inner)
            # It was paid for, whatever becomes of the call that it was made in.
            self._recorder.follow(inner, is_paid=isinstance(entry, ModelCall))

    def _set(self, body: Body) -> None:
        self._body = body
        self._cell.report(body)


def _row_of(exchange: Exchange) -> ChunkRow:
    """Return what a model said, as the row that it becomes."""
    message = exchange.response.primary_choice.message
    said = message.refusal if message.refusal and not message.content else message.content
    return assistant_turn_chunk(tool_calls=message.tool_calls, content=said)


def _run_id(plan: LoopPlan) -> UUID:
    if plan.goes_on is not None:
        return plan.goes_on.operation.operation
    return uuid4() if plan.served is None else plan.served.run_id
