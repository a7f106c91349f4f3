"""The tool calls of the turns of one run: allowed, made, noted; or left for somebody's word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

from rath.session.approvals.rules import has_rule, to_be_allowed
from rath.session.approvals.suspending import Round, Suspending, for_answers, for_approval
from rath.session.body import Body
from rath.session.chunk import ChunkRow, RowId
from rath.session.content import ToolCall
from rath.session.hooks.calls import CallHooks
from rath.session.outcome import Outcome
from rath.session.output.run import Verdict
from rath.session.persistence.loading.unfinished import Unfinished
from rath.session.record import Change, Entry
from rath.session.recorder.recorder import Recorder
from rath.session.recorder.round_results import RoundResults, intents
from rath.session.resume.going_on import GoingOn
from rath.session.running.finished import Finished, interrupted, not_made, tool_run_entry
from rath.session.running.loop_plan import LoopPlan
from rath.session.running.rounds import ToolRounds
from rath.session.session import Session


class Written(Protocol):
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

    verdict: Verdict
    """What the turn means."""

    before: GoingOn | None
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
        self, plan: LoopPlan, operation: UUID, recorder: Recorder, content: Written
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
        done = {} if before is None else before.settled(self._plan.tools)
        todo = [at for at in asked.verdict.places if at in wanted and at not in done]
        made = calls if before is None else before.asked(calls)
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
                    at: not_made(calls[at], self._plan.tools.get(calls[at].name)) for at in todo
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
        self, here: Round, before: GoingOn | None, done: dict[int, Finished]
    ) -> Suspending | None:
        """Make calls; returns how the run ends, where some of them wait."""
        row, session = here.asked_in.index, self._content.snapshot()
        if self._recorder.is_on:
            # A call is begun once its hooks have let it pass: until then it is shown to them anew.
            begun = await self._let_pass(here, session)
            lines = intents(begun, self._plan.tools, operation=self._id, row=row)
            await self._recorder.intend(lines)
        await self._rounds.run(
            [*here.calls.values()],
            session,
            done,
            row=row,
            places=[*here.calls],
            given={} if before is None else before.given(),
        )
        return for_answers(here, done)

    def _denied_by_hooks(self, row: int) -> dict[int, Finished]:
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

    async def _to_be_allowed(self, here: Round, before: GoingOn | None) -> list[int]:
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

    def _append_results(self, calls: Mapping[int, ToolCall], done: Mapping[int, Finished]) -> None:
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
                entry = replace(entry, rows=(row_id,), decision=decision)
                self._content.append([shown])
            self._content.note(entry)

    def _note_change(self, change: Change) -> None:
        """Note what a hook did to a call; it stands in the log before what comes of the call."""
        self._content.note(change)
        self._recorder.write(self._content.body)
