"""One run: ask the model, run its calls, record each step, until it ends or waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Protocol
from uuid import UUID, uuid4

from msgspec.structs import replace as replace_struct

from rath._async.lazy import Deferred
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.exchange import Exchange
from rath.llm.provider import Provider
from rath.session.bindings import Placement
from rath.session.body import Body, suspension
from rath.session.calls.asking import in_call
from rath.session.calls.requests import (
    Candidate,
    Context,
    Conversation,
    RequestFrame,
    encode_cost,
    offload,
    turn_request,
)
from rath.session.calls.results import CallResult, interrupted, skipped_call, tool_run_entry
from rath.session.calls.stream import Emitter, OnEventCb
from rath.session.chunk import ChunkRow, ChunkTable, RowId, assistant_turn_chunk, user_text_chunk
from rath.session.content import AssistantTurn, ToolCall, rows_digest
from rath.session.events import Intent, PendingResult
from rath.session.graph.legacy import SessionLineage
from rath.session.graph.recording import Provenance
from rath.session.hooks import NO_HOOKS, LoopHooks, PassedOn, inputs_changed
from rath.session.log.header import Identity
from rath.session.operation import Place
from rath.session.outcome import DeadlineExceeded, Outcome, RoundLimit
from rath.session.output import OutputPlan, OutputRun, TurnVerdict, explain_refusal, judge_plain
from rath.session.output_schema import OutputSpec
from rath.session.programs import ResumePoint
from rath.session.recall import HoldingRecall, Recall, recall_context
from rath.session.record import (
    Change,
    Entry,
    InnerLog,
    ModelCall,
    Operation,
    parent_sink,
    report_to,
)
from rath.session.replay_context import ServedRun
from rath.session.run.approvals import (
    Round,
    Suspending,
    for_answers,
    for_approval,
    has_rule,
    to_be_allowed,
)
from rath.session.run.budget import Budget, load_prices
from rath.session.run.differences import log_differences
from rath.session.run.hook_calls import Answering, CallHooks
from rath.session.run.recorder import Recorder, RecordingPlan, watched
from rath.session.run.rounds import DispatchTool, ToolRounds
from rath.session.session import Session
from rath.session.state import Unfinished
from rath.session.tooling import ApprovalRule, Offer


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

    approval: ApprovalRule = "never"
    """Whether somebody must allow a call first, whatever its tool says."""

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
    goes_on: ResumePoint | None = None
    """Where the run goes on, if it had begun before."""

    served: ServedRun | None = None
    """The recorded run that answers in a replay."""

    hooks: LoopHooks = NO_HOOKS
    """Who is shown answers and calls; nobody in a replay."""

    passed_on: tuple[PassedOn, ...] = ()
    """By which hooks the user's session came in the place of another one."""

    @property
    def output_spec(self) -> OutputSpec | None:
        """How the typed answer is asked for, if any is."""
        return None if self.output is None else self.output.spec

    @property
    def who(self) -> Identity:
        """The session, as its log tells who it is."""
        recording = self.recording
        return Identity.of(
            self.session,
            self.provenance,
            self.placement,
            provider=self.session_provider,
            lineage=self.lineage,
            sandbox_handle_id=None if recording is None else recording.sandbox_handle_id,
        )


class RoundResults(dict[int, CallResult]):
    """What became of the calls of a row, by place; each is written as soon as it is set.

    Args:
        recorder: Writes the run.
        operation: The run.
        row: Index of the row in which the model asked.
        known: What is known from before.
    """

    def __init__(
        self, recorder: Recorder, operation: UUID, row: int, known: Mapping[int, CallResult]
    ) -> None:
        super().__init__(known)
        self._recorder = recorder
        self._operation = operation
        self._row = row

    def __setitem__(self, place: int, finished: CallResult) -> None:
        run = tool_run_entry(finished, operation=self._operation)
        shown = finished.shown_row
        # The entry is made once, so that log and memory hold the same one.
        super().__setitem__(place, replace(finished, recorded=(run, shown)))
        self._recorder.write_result(
            PendingResult(
                row=self._row, call=place, run=run, shown=None if finished.is_cut_off else shown
            )
        )


def intents(
    calls: Mapping[int, ToolCall], offers: Mapping[str, Offer], *, operation: UUID, row: int
) -> list[Intent]:
    """Return the lines that say of calls that they are about to be made.

    Args:
        calls: The calls by their place among those of the row.
        offers: The tools; a call of one that is not there is never made.
        operation: The run.
        row: Index of the row in which the model asked.
    """
    now = datetime.now(UTC)
    return [
        Intent(
            operation=operation,
            row=row,
            call=place,
            call_id=call.id,
            tool=call.name,
            effects=offers[call.name].effects,
            at=now,
        )
        for place, call in calls.items()
        if call.name in offers
    ]


class RunContent(Protocol):
    """The content of a run as its calls add to it."""

    @property
    def body(self) -> Body:
        """What there is so far."""
        ...

    def append(self, rows: Sequence[ChunkRow]) -> None:
        """Add rows."""
        ...

    def note(self, entry: Entry) -> None:
        """Add an entry to the record."""
        ...

    def snapshot(self) -> Session:
        """Return the session as tools see it."""
        ...


@dataclass(frozen=True, slots=True)
class AskedCalls:
    """The calls of one turn, and what is known of them."""

    calls: Sequence[ToolCall]
    """All calls of the turn."""

    verdict: TurnVerdict
    """What the turn means."""

    before: ResumePoint | None
    """Where the run goes on, for the turn with which it does."""


class TurnCalls:
    """Makes the calls of one run.

    Args:
        plan: What the run was given.
        operation: Its id.
        recorder: Writes it.
        content: What it has made.
    """

    def __init__(
        self, plan: LoopPlan, operation: UUID, recorder: Recorder, content: RunContent
    ) -> None:
        self._plan = plan
        self._id = operation
        self._recorder = recorder
        self._content = content
        rounds = ToolRounds if plan.served is None else plan.served.rounds
        self._rounds = rounds(plan.tools, plan.placement, plan.dispatch_tool)
        if plan.hooks.has_tool_hooks:
            passed = frozenset[tuple[int, int]]() if plan.goes_on is None else plan.goes_on.passed
            self._rounds.hooks = CallHooks(
                plan.hooks, plan.session, operation, self._note_change, passed
            )
        self.left: Unfinished | None = None
        """Results that are no rows yet, of a run that ends because it waits."""

    async def make(self, asked: AskedCalls, stopped: Outcome | None) -> Outcome | None:
        """Make the calls of a turn, unless the run is stopped.

        Returns what the run waits for where somebody must say something first; else None, and the
        results are rows.
        """
        calls, before = asked.calls, asked.before
        row = len(self._content.body.table) - 1 if before is None else before.last_row
        wanted = range(len(calls)) if before is None else [one.index for one in before.open_calls]
        done = {} if before is None else before.known_results(self._plan.tools)
        todo = [at for at in asked.verdict.places if at in wanted and at not in done]
        made = calls if before is None else before.effective_calls(calls)
        asked_in = RowId(self._plan.session, row)
        here = Round(self._id, asked_in, {at: made[at] for at in todo}, self._plan.tools)
        if self._recorder.is_on and len(wanted) > 1:
            done = RoundResults(self._recorder, self._id, row, done)
        if stopped is None and (first := await self._to_be_allowed(here, before)):
            for at, denied in self._denied_by_hooks(row).items():
                done[at] = denied
            return await self._suspend(for_approval(here, first, done))
        waits: Suspending | None = None
        try:
            if stopped is not None:
                done |= {
                    at: skipped_call(calls[at], self._plan.tools.get(calls[at].name)) for at in todo
                }
            elif todo:
                waits = await self._run(here, before, done)
        finally:
            # Also when the run is cut off: what was done is kept, what was not is said.
            if waits is None:
                if before is not None:
                    done = before.with_decisions(done)
                results, body = asked.verdict.results(done), self._content.body
                self._append_results({at: calls[at] for at in wanted}, results)
                self._recorder.end_round(row, body, self._content.body, wanted)
        if waits is not None:
            return await self._suspend(waits)
        await self._recorder.flush(self._content.body)
        if self._plan.served is None:
            await self._plan.placement.alook()
        if self._rounds.lost is not None:
            # The call is known to have failed, and no model goes on without the files.
            raise self._rounds.lost
        return None

    async def _run(
        self, here: Round, before: ResumePoint | None, done: dict[int, CallResult]
    ) -> Suspending | None:
        """Make calls; returns how the run ends, where some of them wait."""
        row, session = here.asked_in.index, self._content.snapshot()
        if self._recorder.is_on:
            # A call is begun once its hooks have let it pass: until then it is shown to them anew.
            begun = await self._let_pass(here, session)
            lines = intents(begun, self._plan.tools, operation=self._id, row=row)
            await self._recorder.write_intents(lines)
        await self._rounds.run(
            [*here.calls.values()],
            session,
            done,
            row=row,
            places=[*here.calls],
            given={} if before is None else before.answers(),
        )
        return for_answers(here, done)

    def _denied_by_hooks(self, row: int) -> dict[int, CallResult]:
        """Return what the model reads of calls that hooks have denied: they are not asked again."""
        hooks, sandbox = self._rounds.hooks, self._plan.placement.sandbox
        where = None if sandbox is None else sandbox.describe()
        return {} if hooks is None else hooks.denied(row, where)

    async def _let_pass(self, here: Round, session: Session) -> dict[int, ToolCall]:
        """Return the calls that are made, by place: all but those that hooks deny."""
        hooks = self._rounds.hooks
        if hooks is None or not hooks.hooks.before_tool:
            return dict(here.calls)
        prepared = await self._rounds.prepare_all([*here.calls.values()])
        row, places = here.asked_in.index, [*here.calls]
        shown = await self._rounds.show(prepared, session, row=row, places=places)
        return {
            at: here.calls[at] for at, one in zip(places, shown, strict=True) if one.refusal is None
        }

    async def _to_be_allowed(self, here: Round, before: ResumePoint | None) -> list[int]:
        """Return which calls somebody must allow before any of the round is made."""
        if self._plan.served is not None:
            return []
        decided = frozenset[int]() if before is None else before.decided
        rule, tools = self._plan.approval, self._plan.tools
        asked = {
            at: call
            for at, call in here.calls.items()
            if at not in decided and has_rule(tools.get(call.name), rule)
        }
        if not asked:
            return []
        session, row = self._content.snapshot(), here.asked_in.index
        prepared = await self._rounds.prepare_all([*asked.values()])
        # What is asked about is what would be made.
        shown = await self._rounds.show(prepared, session, row=row, places=[*asked])
        found = dict(zip(asked, shown, strict=True))
        return await to_be_allowed(found, rule, session, row=row)

    async def _suspend(self, suspending: Suspending) -> Outcome:
        """Note for what the run waits; returns how it ends."""
        for entry in suspending.entries:
            self._content.note(entry)
        await self._recorder.flush(self._content.body)
        self.left = suspending.left
        return suspending.outcome

    def _append_results(
        self, calls: Mapping[int, ToolCall], done: Mapping[int, CallResult]
    ) -> None:
        for index, call in calls.items():
            finished = done.get(index) or interrupted(call, self._plan.tools.get(call.name))
            if finished.recorded is not None:
                entry, shown = finished.recorded
            else:
                entry = tool_run_entry(finished, operation=self._id)
                shown = finished.shown_row
            if not finished.is_cut_off:
                row_id = RowId(self._plan.session, len(self._content.body.table))
                decision = finished.decision or entry.decision
                entry = replace_struct(entry, rows=(row_id,), decision=decision)
                self._content.append([shown])
            self._content.note(entry)

    def _note_change(self, change: Change) -> None:
        """Note what a hook did to a call; it stands in the log before what comes of the call."""
        self._content.note(change)
        self._recorder.write(self._content.body)


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
        self._tell_above = parent_sink()

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
            with report_to(self._take), in_call(None):
                await self._run_to_the_end(head)

    async def _go_on(self, before: ResumePoint, user: Body, agent: Body) -> None:
        if before.check is not None:
            before.check(user, agent)
        self._set(before.beginning)
        for entry in before.own_entries:
            self._tell_above(entry, None)
        async with self._recorder as recorder:
            await recorder.begin(replace(self._body, unfinished=before.left), goes_on=True)
            await log_differences(before, self.snapshot())
            with report_to(self._take), in_call(None):
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
        frame = RequestFrame(
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
        await self._recorder.write_turn(self._body)
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

    async def _close_the_tail(self, before: ResumePoint, stopped: Outcome | None) -> Outcome | None:
        """Do what the last turn asked for and is not done; return the outcome if it was the last.

        What earlier turns meant is judged again, since a typed answer counts its tries.
        """
        verdict: TurnVerdict | None = None
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

    async def _judge(self, turn: AssistantTurn, exchange: Exchange) -> TurnVerdict:
        if self._output is None:
            return judge_plain(turn, exchange)
        may_repair = self._n_calls < self._plan.max_tool_rounds
        return await self._output.judge(turn, exchange, may_repair=may_repair)

    async def _carry_on(
        self,
        turn: AssistantTurn,
        verdict: TurnVerdict,
        stopped: Outcome | None,
        before: ResumePoint | None = None,
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
            input_digest=await offload(encode_cost(user.table), partial(rows_digest, user.table)),
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
