"""Where a run goes on that was not done: all that it had known, read from its rows and record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

from rath.llm.chat_request import RathLLMMessage
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMFinishReason,
)
from rath.llm.exchange import CallEvidence, Exchange
from rath.session.approvals.asking import Answer, CurrentCall, Question
from rath.session.body import Body
from rath.session.content import AssistantTurn, ToolCall, ToolFeedback
from rath.session.encode import ResultText, encode_failure, encode_result
from rath.session.outcome import Completed
from rath.session.record import Entry, ModelCall, Operation, Record
from rath.session.resume.open_calls import (
    OpenCall,
    entries_since,
    open_calls,
    own_operation,
)
from rath.session.running.calls import Context
from rath.session.running.finished import Finished, Prepared
from rath.session.tooling import Offer

if TYPE_CHECKING:
    # What reads logs makes sessions, which take decisions.
    from rath.session.persistence.loading.unfinished import Unfinished

SKIPPED = "the call was skipped by decision; whether it had taken effect before is not known"
DENIED = "the call was not allowed, and not made"
CARRIED_OUT = "the call was carried out; what came of it is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoingOn:
    """What a run knows that goes on."""

    body: Body
    """Rows and record so far."""

    left: Unfinished | None = None
    """What the lines of its log say of the calls that are open."""

    operation: Operation
    """That of the run."""

    turns: tuple[tuple[AssistantTurn, Exchange], ...]
    """What the model said in this run, and the calls in which it did."""

    last_row: int
    """Index of the row of the last turn; 0 where there is none."""

    open_calls: tuple[OpenCall, ...]
    """The calls of the last turn that have no row."""

    was_asked: bool
    """Whether a model was asked in this run, so that what was recalled is known."""

    context: Context | None
    """The recalled notes, as the first request of the run showed them."""

    told: tuple[Entry, ...]
    """What the run had noted by then, which the run around it may not know."""

    known: frozenset[UUID]
    """The ids of these."""

    differences: tuple[object, ...] = ()
    """In what tools and provider are not what they were, for a warning."""

    check: Callable[[Body, Body], None] | None = None
    """Raises ResumeMismatch where transcript and instructions are others than they were; None
    where that is sure."""

    @property
    def waiting(self) -> tuple[str, ...]:
        """The calls that somebody must decide about first."""
        return tuple(each.call.id for each in self.open_calls if each.waits)

    @property
    def children(self) -> tuple[UUID, ...]:
        """The sessions inside open calls that wait; they go on when these are made again."""
        return tuple(each.said.child for each in self.open_calls if each.said.child is not None)

    def settled(self, tools: Mapping[str, Offer]) -> dict[int, Finished]:
        """Return what is known, by result or decision, of the open calls by their index."""
        known = {each.index: _settled(each, tools.get(each.call.name)) for each in self.open_calls}
        return {index: finished for index, finished in known.items() if finished is not None}

    @property
    def beginning(self) -> Body:
        """The content with which the run goes on; until it has made more it may be cut off too."""
        left = self.left
        return replace(
            self.body,
            unfinished=None if left is None else replace(left, failure=None, partial_text=""),
        )

    @property
    def decided(self) -> frozenset[int]:
        """The open calls, by their index, of which somebody has said whether they are made."""
        return frozenset(each.index for each in self.open_calls if each.is_allowed)

    @property
    def passed(self) -> frozenset[tuple[int, int]]:
        """The open calls, by row and index, that hooks have let pass."""
        return frozenset((one.row, one.index) for one in self.open_calls if one.has_passed)

    def asked(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """Return the calls of the last turn as they are made: some with other arguments."""
        asked = list(calls)
        for each in self.open_calls:
            asked[each.index] = each.call
            approval = each.said.approval
            if approval is not None and approval.edited is not None:
                edited = json.dumps(dict(approval.edited), ensure_ascii=False)
                asked[each.index] = replace(asked[each.index], arguments=edited)
        return asked

    def given(self) -> dict[int, CurrentCall]:
        """Return what was said to the open calls, by their index, for when they are made."""
        return {each.index: _given(each) for each in self.open_calls}

    def with_decisions(self, done: Mapping[int, Finished]) -> dict[int, Finished]:
        """Return what became of calls, with the decisions by which they were made."""
        told = dict(done)
        for each in self.open_calls:
            if each.allowed_by is not None and each.index in done:
                told[each.index] = replace(done[each.index], decision=each.allowed_by.id)
        return told


def going_on(body: Body, session: UUID, *, late: Record | None = None) -> GoingOn | None:
    """Return where the run of a session goes on; None where its record does not begin one.

    Args:
        body: What the run had written.
        session: Which session it makes.
        late: The record with the decisions that came since.
    """
    record = body.record if late is None else late
    operation = own_operation(record, session)
    if operation is None or operation.kind != "loop":
        return None
    told = tuple(entries_since(record, session))
    calls = _own_calls(told, operation)
    by_row = {row: call for call in calls for row in call.rows}
    turns: list[tuple[AssistantTurn, Exchange]] = []
    last_row = 0
    for index, row in enumerate(body.table):
        call = None if row.id is None else by_row.get(row.id)
        if isinstance(row.content, AssistantTurn) and call is not None:
            turns.append((row.content, exchange_of(row.content, call.evidence)))
            last_row = index
    return GoingOn(
        body=replace(body, record=record, outcome=Completed(), unfinished=None),
        left=body.unfinished,
        operation=operation,
        turns=tuple(turns),
        last_row=last_row,
        open_calls=open_calls(body, session, late=late),
        was_asked=bool(calls),
        context=_context(calls),
        told=told,
        known=frozenset(entry.id for entry in told),
    )


def exchange_of(turn: AssistantTurn, evidence: CallEvidence) -> Exchange:
    """Return a call as it was answered, as far as it matters what the answer means for its run."""
    reason: RathLLMFinishReason = "tool_calls" if turn.calls else "stop"
    if evidence.finish_reason is not None:
        # The record holds it in the words of `RathLLMFinishReason`.
        reason = evidence.finish_reason  # type: ignore[assignment]  # as its docstring says
    refusal = turn.text if reason == "refusal" else None
    message = RathLLMAssistantMessage(content=turn.text, refusal=refusal)
    choice = RathLLMChatChoice(index=0, finish_reason=reason, message=message)
    response = RathLLMChatResponse(
        id=evidence.response_id or "",
        choices=(choice,),
        created=0,
        model=evidence.served_model or evidence.requested_model or "",
        usage=evidence.usage,
    )
    return Exchange(response, evidence)


def _own_calls(told: Iterable[Entry], operation: Operation) -> list[ModelCall]:
    return [
        entry
        for entry in told
        if isinstance(entry, ModelCall) and entry.operation == operation.operation
    ]


def _context(calls: list[ModelCall]) -> Context | None:
    seen = calls[0].seen if calls else None
    if seen is None or seen.context_at is None or seen.context is None:
        return None
    return Context(seen.context_at, RathLLMMessage("user", seen.context), seen.recalled)


def _given(asked: OpenCall) -> CurrentCall:
    said = asked.said
    answers = [
        Answer(Question(each.interrupt.question or "", each.interrupt.schema), each.answer.text)
        for each in said.questions
        if each.answer is not None and each.answer.text is not None
    ]
    is_edited = said.approval is not None and said.approval.edited is not None
    return CurrentCall(answers, is_edited=is_edited)


def _denied(asked: OpenCall, prepared: Prepared) -> Finished | None:
    """Return what the model reads of a call that was not allowed, None for one that is made."""
    approval = asked.said.approval
    if approval is None or approval.choice != "deny":
        return None
    why = DENIED if approval.text is None else f"{DENIED}: {approval.text}"
    return Finished(prepared, encode_failure("denied", why), "denied", decision=approval.id)


def _settled(asked: OpenCall, offer: Offer | None) -> Finished | None:
    prepared = Prepared(asked.call, offer)
    if asked.result is not None:
        run, row = asked.result.run, asked.result.shown
        assert row is not None, "a call without a row is not known"
        said = row.content.body if isinstance(row.content, ToolFeedback) else ""
        shown = ResultText(said, failure=run.error_kind, exit_code=run.exit_code, images=row.images)
        return Finished(prepared, shown, run.status, recorded=(run, row))
    decision = asked.decision
    if decision is None or decision.choice == "retry":
        return _denied(asked, prepared)
    if decision.choice == "skip":
        result = encode_failure("skipped", decision.text or SKIPPED)
        return Finished(prepared, result, "denied", decision=decision.id)
    result = encode_result(CARRIED_OUT if decision.text is None else decision.text)
    return Finished(prepared, result, "done", decision=decision.id)
