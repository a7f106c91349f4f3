"""One run: ask the model, run its calls, record each step, until it ends or waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from msgspec.structs import replace as replace_struct

from rath._async.deferred import Deferred
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_function
from rath.llm.base import can_stream
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.chat_response import RathLLMStreamDelta
from rath.llm.client import warm_up
from rath.llm.evidence import Exchange
from rath.llm.provider import Provider
from rath.session.body import Body, suspension
from rath.session.calls.oneshot import Emitter, OnEventCb
from rath.session.calls.requests import (
    Context,
    Conversation,
    ProviderCandidate,
    RequestFrame,
    encode_cost,
    offload,
    turn_request,
)
from rath.session.calls.results import (
    CallResult,
    CheckedCall,
    interrupted,
    recorded_call,
    skipped_call,
)
from rath.session.chunk import ChunkRow, RowId, assistant_turn_chunk, user_text_chunk
from rath.session.content import AssistantTurn, ToolCall
from rath.session.events import Intent, PendingResult
from rath.session.hooks import NO_HOOKS, LoopHooks, PassedOn, inputs_changed
from rath.session.outcome import DeadlineExceeded, Outcome, RoundLimit
from rath.session.output import OutputPlan, OutputRun, TurnVerdict, explain_refusal, judge_plain
from rath.session.output_schema import OutputSpec
from rath.session.recall import HoldingRecall, Recall, recall_context
from rath.session.record import (
    Change,
    ModelCall,
    Operation,
    Purpose,
    report_to,
)
from rath.session.run.budget import Budget, load_prices
from rath.session.run.hook_calls import (
    Answering,
    CallHooks,
    Round,
    Suspending,
    for_answers,
    for_approval,
    has_rule,
    to_be_allowed,
)
from rath.session.run.rounds import DispatchTool, ToolRounds
from rath.session.run.run_log import RunLog, RunPlan, watched
from rath.session.session import Session
from rath.session.tooling import ApprovalRule, ToolOffer, in_call

if TYPE_CHECKING:
    from rath.session.programs import ResumePoint

# It looks at files, and only a resumed run needs it.
_log_differences = lazy_function("rath.session.run.differences", "log_differences")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPlan(RunPlan):
    """All that a run was given, checked before it was submitted."""

    user: Callable[[Body], Body]
    """Adds to the user's content what came to its record since."""

    provider: Provider
    """The first one; the limits of the run are its."""

    candidates: tuple[ProviderCandidate, ...]
    """The provider with its client, and then its fallbacks."""

    dispatch_tool: DispatchTool | None
    """A custom executor's `dispatch_tool`, or None."""

    tools: Mapping[str, ToolOffer]
    schemas: tuple[RathLLMFunctionTool, ...]
    output: OutputPlan | None
    """The typed answer that is asked for, if any."""

    approval: ApprovalRule = "never"
    """Whether somebody must allow a call first, whatever its tool says."""

    max_tool_rounds: int
    on_event: OnEventCb | None
    streaming: bool | None = None
    """Whether answers are streamed without `on_event`; None: where somebody reads along."""

    recall: Recall | None
    timeout: float | None
    goes_on: ResumePoint | None = None
    """Where the run goes on, if it had begun before."""

    hooks: LoopHooks = NO_HOOKS
    purpose: Purpose = "turn"
    """Who is shown answers and calls; nobody in a replay."""

    input_digest: str | None = None
    """The digest of the input's rows, where it is known."""

    passed_on: tuple[PassedOn, ...] = ()
    """By which hooks the user's session came in the place of another one."""

    def end_cancelled(self, latest: Body | None) -> Body:
        """Return the content of the session when its run is cancelled with `latest`."""
        if latest is None:
            self.placement.drop()
        return self.cut_off(latest)

    @property
    def output_spec(self) -> OutputSpec | None:
        """How the typed answer is asked for, if any is."""
        return None if self.output is None else self.output.spec


class RoundResults(dict[int, CallResult]):
    """The results of the calls of a row, by place; each is written as soon as it is set.

    Args:
        log: That of the run.
        operation: The run.
        row: Index of the row in which the model asked.
        known: What is known from before.
    """

    def __init__(
        self, log: RunLog, operation: UUID, row: int, known: Mapping[int, CallResult]
    ) -> None:
        super().__init__(known)
        self._log = log
        self._operation = operation
        self._row = row

    def __setitem__(self, place: int, finished: CallResult) -> None:
        # The entry is made once, so that log and memory hold the same one.
        finished = replace(finished, recorded=recorded_call(finished, self._operation))
        super().__setitem__(place, finished)
        self._log.add_result(pending_result(finished, self._operation, self._row, place))


def pending_result(finished: CallResult, operation: UUID, row: int, place: int) -> PendingResult:
    """Return the event that says what became of a call.

    Args:
        finished: The call.
        operation: The run.
        row: Index of the row in which the model asked.
        place: Which of the calls of that row it is.
    """
    run, row_of_result = recorded_call(finished, operation)
    if finished.decision not in (None, run.decision) and not finished.is_cut_off:
        run = replace_struct(run, decision=finished.decision)
    return PendingResult(
        row=row, call=place, run=run, shown=None if finished.is_cut_off else row_of_result
    )


def intents(
    calls: Mapping[int, ToolCall], offers: Mapping[str, ToolOffer], *, operation: UUID, row: int
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


@dataclass(slots=True)
class Turn:
    """The last turn of the model in a run."""

    row: int
    calls: Sequence[ToolCall]
    verdict: TurnVerdict
    """What the turn means."""

    open_calls: Sequence[int]
    """Which of the calls have no result."""

    earlier: ResumePoint | None = None
    """What is known of these calls from before the run was resumed."""


@dataclass(frozen=True, slots=True)
class AskModel:
    """Ask the model for its next turn."""


@dataclass(frozen=True, slots=True)
class RunCalls:
    """Make the open calls of the last turn."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class Reply:
    """Tell the model what was wrong with its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run."""

    outcome: Outcome


Step = AskModel | RunCalls | Reply | Finish


def next_step(
    turn: Turn | None, *, n_rows: int, n_calls: int, max_calls: int, stopped: Outcome | None
) -> Step:
    """Return the next step of a run; a pure function, the same live, resumed and replayed.

    Args:
        turn: The last turn of the model; None before the first one.
        n_rows: Rows of the session.
        n_calls: Turns of the model in this run.
        max_calls: How many it may take.
        stopped: Why the run must end once no call of an answer is open, such as its budget.
    """
    if turn is not None:
        verdict = turn.verdict
        is_last = stopped is None or not verdict.others or verdict.outcome is not None
        if turn.open_calls and is_last:
            return RunCalls(turn)
        if verdict.reply is not None and n_rows == turn.row + 1:
            return Reply(verdict.reply)
        if verdict.outcome is not None:
            return Finish(verdict.outcome)
    if stopped is not None:
        return Finish(stopped)
    return AskModel() if n_calls < max_calls else Finish(RoundLimit(max_calls))


class TurnCalls:
    """Makes the calls of one run.

    Args:
        plan: What the run was given.
        operation: Its id.
        log: Its log.
        snapshot: Gives the session as tools see it.
    """

    def __init__(
        self, plan: LoopPlan, operation: UUID, log: RunLog, snapshot: Callable[[], Session]
    ) -> None:
        self._plan = plan
        self._id = operation
        self._log = log
        self._snapshot = snapshot
        rounds = ToolRounds if plan.served is None else plan.served.rounds
        self._rounds = rounds(plan.tools, plan.placement, plan.dispatch_tool)
        if plan.hooks.has_tool_hooks:
            passed = frozenset[tuple[int, int]]() if plan.goes_on is None else plan.goes_on.passed
            self._rounds.hooks = CallHooks(
                plan.hooks, plan.session, operation, self._note_change, passed
            )
        self.waiting: tuple[Session, ...] = ()
        """Sessions inside calls for which the run waits."""

    async def make(self, turn: Turn, stopped: Outcome | None) -> Outcome | None:
        """Make the open calls of a turn, unless the run is stopped.

        Returns what the run waits for where somebody must say something first; else None, and the
        results are rows.
        """
        calls, before, row, wanted = turn.calls, turn.earlier, turn.row, turn.open_calls
        done = {} if before is None else before.known_results(self._plan.tools)
        todo = [at for at in turn.verdict.places if at in wanted and at not in done]
        effective = calls if before is None else before.effective_calls(calls)
        turn_row = RowId(self._plan.session, row)
        here = Round(self._id, turn_row, {at: effective[at] for at in todo}, self._plan.tools)
        if len(wanted) > 1:
            done = RoundResults(self._log, self._id, row, done)
        if stopped is None and (first := await self._to_be_allowed(here, before)):
            for at, denied in self._hook_denials(row).items():
                done[at] = denied
            return await self._suspend(for_approval(here, first))
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
                self._end_round(turn, turn.verdict.results(done))
        if waits is not None:
            return await self._suspend(waits)
        await self._log.flush()
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
        row, session = here.turn_row.index, self._snapshot()
        if self._log.is_recorded or self._log.is_watched:
            # A call is begun once its hooks have let it pass: until then it is shown to them anew.
            started = await self._let_pass(here, session)
            await self._log.write_intents(
                intents(started, self._plan.tools, operation=self._id, row=row)
            )
        await self._rounds.run(
            [*here.calls.values()],
            session,
            done,
            row=row,
            places=[*here.calls],
            given={} if before is None else before.answers(),
        )
        return for_answers(here, done)

    def _end_round(self, turn: Turn, done: Mapping[int, CallResult]) -> None:
        """Add the results of the calls of a turn, each as a row and an entry."""
        results: list[PendingResult] = []
        served, open_calls = self._plan.served, turn.open_calls
        if served is not None and len(open_calls) > 1:
            open_calls = served.result_order(turn.calls)
        for at in open_calls:
            call = turn.calls[at]
            finished = done.get(at) or interrupted(call, self._plan.tools.get(call.name))
            results.append(pending_result(finished, self._id, turn.row, at))
        self._log.end_round(results)

    def _hook_denials(self, row: int) -> dict[int, CallResult]:
        """Return the results of calls that hooks have denied: they are not asked again."""
        hooks, sandbox = self._rounds.hooks, self._plan.placement.sandbox
        where = None if sandbox is None else sandbox.describe()
        return {} if hooks is None else hooks.denied(row, where)

    async def _let_pass(self, here: Round, session: Session) -> dict[int, ToolCall]:
        """Return the calls that are made, by place: all but those that hooks deny."""
        hooks = self._rounds.hooks
        if hooks is None or not hooks.hooks.before_tool:
            return dict(here.calls)
        hooked = await self._hooked(here.calls, session, here.turn_row.index)
        return {at: here.calls[at] for at, one in hooked.items() if one.refusal is None}

    async def _hooked(
        self, calls: Mapping[int, ToolCall], session: Session, row: int
    ) -> dict[int, CheckedCall]:
        """Return calls as they would be made, after their hooks."""
        prepared = await self._rounds.prepare_all([*calls.values()])
        hooked = await self._rounds.show(prepared, session, row=row, places=[*calls])
        return dict(zip(calls, hooked, strict=True))

    async def _to_be_allowed(self, here: Round, before: ResumePoint | None) -> list[int]:
        """Return which calls somebody must allow before any of the round is made."""
        if self._plan.served is not None:
            return []
        decided = frozenset[int]() if before is None else before.decided
        rule, tools = self._plan.approval, self._plan.tools
        candidates = {
            at: call
            for at, call in here.calls.items()
            if at not in decided and has_rule(tools.get(call.name), rule)
        }
        if not candidates:
            return []
        session, row = self._snapshot(), here.turn_row.index
        # What is asked about is what would be made.
        hooked_calls = await self._hooked(candidates, session, row)
        return await to_be_allowed(hooked_calls, rule, session, row=row)

    async def _suspend(self, suspending: Suspending) -> Outcome:
        """Note for what the run waits; returns how it ends."""
        for entry in suspending.entries:
            self._log.note(entry)
        await self._log.flush()
        self.waiting = suspending.inner
        return suspending.outcome

    def _note_change(self, change: Change) -> None:
        """Note what a hook did to a call; it stands in the log before what comes of the call."""
        self._log.note(change)
        self._log.commit()


_log = logging.getLogger("rath.session.loop")


def execute_loop(plan: LoopPlan, cell: Deferred[Body]) -> Coroutine[Any, Any, Body]:
    """Return the coroutine of a run, which reports to `cell`."""
    return LoopRun(plan, cell).execute()


class LoopRun:
    """One run; `execute` is its coroutine."""

    def __init__(self, plan: LoopPlan, cell: Deferred[Body]) -> None:
        self._plan = plan
        self._cell = cell
        self._id = _run_id(plan)
        self._output = None if plan.output is None else OutputRun(plan.output)
        self._n_calls = 0
        self._budget = Budget(plan.provider, session=plan.session, run=self._id)
        self._log = RunLog(plan.session, cell, plan.recorder(cell), self._budget.count)
        self._calls: TurnCalls | None = None
        """Made for the first call: most runs in flight wait for a model that calls nothing."""

    async def execute(self) -> Body:
        """Run to the end and return the content of the new session."""
        try:
            # An error of an input is passed on as it is; only one born here gets a note from here.
            user = self._plan.user(await self._plan.cells[0])
            agent = await self._plan.cells[1]
            try:
                await self._require_workspace(user, agent)
                await self._execute(user, agent)
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
            self._plan.placement.drop()
            recall: object = self._plan.recall
            if isinstance(recall, HoldingRecall):
                recall.close()
        return self._log.body

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
        before, log = self._plan.goes_on, self._log
        if before is None:
            log.start(user.inheriting(agent))
        else:
            if before.check is not None:
                before.check(user, agent)
            log.start(before.body, earlier=before.own_entries)
        async with log:
            await log.open(goes_on=before is not None)
            suspended = suspension(user, agent) if before is None else None
            if suspended is not None:
                log.end(suspended)
                return
            warm_up(self._plan.candidates[0].client)
            if before is None:
                head = tuple(agent.table)
                await self._begin(user, head)
            else:
                head = before.operation.head
                await _log_differences(before, self.snapshot())
            # What this run calls belongs to no tool call that it may be inside.
            with report_to(log.take), in_call(None):
                if self._plan.timeout is None:
                    outcome = await self._drive(head)
                else:
                    outcome = await self._drive_in_time(head)
                log.end(outcome, () if self._calls is None else self._calls.waiting)

    async def _begin(self, user: Body, head: tuple[ChunkRow, ...]) -> None:
        """Note the operation, and by which hooks its input was changed."""
        self._log.note(await self._operation(user, head))
        for change in inputs_changed(self._plan.passed_on, self._id):
            self._log.note(change)
        self._log.commit()
        if self._log.is_recorded:
            load_prices(self._plan.candidates)

    async def _drive_in_time(self, head: Sequence[ChunkRow]) -> Outcome:
        assert self._plan.timeout is not None, "a run without one is driven at once"
        deadline = asyncio.timeout(self._plan.timeout)
        try:
            async with deadline:
                return await self._drive(head)
        except TimeoutError:
            if not deadline.expired():
                raise
        self._cell.cancel_nested()
        return DeadlineExceeded(self._plan.timeout)

    async def _drive(self, head: Sequence[ChunkRow]) -> Outcome:
        """Take one step after the other until the run has ended or waits."""
        before, max_calls = self._plan.goes_on, self._plan.max_tool_rounds
        if before is not None and before.has_calls:
            context = before.context
        else:
            context = await recall_context(self._plan.recall, self.snapshot())
        conversation = self._open_conversation(head, context)
        stopped = await self._budget.begin(self._log.body, self.snapshot)
        turn = None if before is None else await self._last_turn(before)
        while True:
            step = next_step(
                turn,
                n_rows=self._log.state.n_rows,
                n_calls=self._n_calls,
                max_calls=max_calls,
                stopped=stopped,
            )
            match step:
                case AskModel():
                    stopped = await self._budget.before_call(self.snapshot)
                    if stopped is None:
                        message, exchange = await self._ask_model(conversation)
                        row = self._log.state.n_rows - 1
                        stopped = await self._budget.after_call(self.snapshot)
                        verdict = await self._judge(message, exchange)
                        turn = Turn(row, message.calls, verdict, range(len(message.calls)))
                case RunCalls(turn):
                    if self._calls is None:
                        self._calls = TurnCalls(self._plan, self._id, self._log, self.snapshot)
                    waits = await self._calls.make(turn, stopped)
                    if waits is not None:
                        return waits
                    turn.open_calls = ()
                case Reply(text):
                    self._log.append(user_text_chunk(text))
                    await self._log.flush()
                case Finish(outcome):
                    if isinstance(outcome, RoundLimit):
                        _log.warning(
                            "session %s used all %d rounds (max_tool_rounds) and was not done",
                            self._plan.session,
                            max_calls,
                        )
                    if self._plan.served is None:
                        conversation.leave_builder(self._log.body.table)
                    return outcome

    async def _last_turn(self, before: ResumePoint) -> Turn | None:
        """Return the turn with which a run goes on; None where no model had answered.

        The meaning of earlier turns is judged again, since a typed answer counts its tries.
        """
        verdict: TurnVerdict | None = None
        for message, exchange in before.turns:
            self._n_calls += 1
            verdict = await self._judge(message, exchange)
        if verdict is None:
            return None
        open_calls = [each.index for each in before.open_calls]
        return Turn(before.last_row, before.turns[-1][0].calls, verdict, open_calls, before)

    def _open_conversation(self, head: Sequence[ChunkRow], context: Context | None) -> Conversation:
        frame = RequestFrame(
            head=head,
            request=partial(turn_request, self._plan.schemas, self._plan.output_spec),
            context=context,
            streaming=self._plan.on_event is not None or self._plan.streaming is True,
        )
        return Conversation(self._plan.candidates, frame)

    async def _ask_model(self, conversation: Conversation) -> tuple[AssistantTurn, Exchange]:
        """Return the message of the model, and the call in which it came."""
        self._n_calls += 1
        log = self._log
        row_id = RowId(self._plan.session, log.state.n_rows)
        hooks = self._plan.hooks.model
        if not hooks:
            exchange = await self._ask(conversation, row_id, log.note)
            row = _row_of(exchange)
            for change in () if self._plan.served is None else self._plan.served.changes_of(row_id):
                log.note(change)
        else:
            with Answering(
                hooks, log.note, row=row_id, operation=self._id, session=self.snapshot
            ) as answering:
                exchange = await self._ask(conversation, row_id, answering.hold)
                row = await answering.run_hooks(_row_of(exchange))
        log.append(row)
        await log.write_turn()
        content = row.content
        assert isinstance(content, AssistantTurn)
        return content, exchange

    def _ask(
        self, conversation: Conversation, row: RowId, note: Callable[[ModelCall], None]
    ) -> Awaitable[Exchange]:
        is_repair = self._output is not None and self._output.purpose == "repair"
        purpose: Purpose = "repair" if is_repair else self._plan.purpose
        ask = partial(
            conversation.ask, self._log.body, note, operation=self._id, purpose=purpose, row=row
        )
        on_event = self._plan.on_event
        return self._ask_for_readers(ask) if on_event is None else self._ask_streamed(ask, on_event)

    async def _ask_for_readers(self, ask: Callable[..., Awaitable[Exchange]]) -> Exchange:
        """Ask, and have the answer streamed where that is wanted or somebody reads along."""
        plan, is_streamed = self._plan, self._plan.streaming
        if plan.served is not None:
            is_streamed = False
        elif is_streamed is None and all(can_stream(each.client) for each in plan.candidates):
            if self._n_calls == 1 and not self._cell.is_watched:
                await asyncio.sleep(READER_SECONDS)
            is_streamed = self._cell.is_watched
        return await (ask(on_delta=watched(_ignore, self._log, self._id)) if is_streamed else ask())

    async def _ask_streamed(
        self, ask: Callable[..., Awaitable[Exchange]], on_event: OnEventCb
    ) -> Exchange:
        async with Emitter(on_event) as emitter:
            return await ask(on_delta=watched(emitter.sink, self._log, self._id))

    async def _judge(self, turn: AssistantTurn, exchange: Exchange) -> TurnVerdict:
        if self._output is None:
            return judge_plain(turn, exchange)
        may_repair = self._n_calls < self._plan.max_tool_rounds
        return await self._output.judge(turn, exchange, may_repair=may_repair)

    async def _operation(self, user: Body, head: tuple[ChunkRow, ...]) -> Operation:
        digest = self._plan.input_digest
        if digest is None:
            digest = await offload(encode_cost(user.table), user.table.digest)
        return Operation(
            operation=self._id,
            kind="loop",
            place=self._plan.place,
            session=self._plan.session,
            input_digest=digest,
            head=head,
            tools=self._plan.schemas,
            output=self._plan.output_spec,
            n_ours=len(user.record) if len(self._log.body.record) > len(user.record) else None,
        )

    def snapshot(self) -> Session:
        """Return the session with what the run has made so far."""
        return self._plan.made(Deferred.of(self._log.body), self._plan.placement.share())


def _row_of(exchange: Exchange) -> ChunkRow:
    """Return the row of a model's message."""
    message = exchange.response.primary_choice.message
    text = message.refusal if message.refusal and not message.content else message.content
    return assistant_turn_chunk(tool_calls=message.tool_calls, content=text)


READER_SECONDS = 0.001
"""How long a run waits before its first request for whoever reads along: `agent(session).stream()`
has one a moment after the run was submitted. With none of it 27 of 100 readers came too late on a
busy machine, with it 0 to 2."""


def _ignore(_: RathLLMStreamDelta) -> None:
    """Take a delta that is for those who read along."""


def _run_id(plan: LoopPlan) -> UUID:
    if plan.goes_on is not None:
        return plan.goes_on.operation.operation
    return uuid4() if plan.served is None else plan.served.run_id
