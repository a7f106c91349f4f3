"""Runs and derivations that go on from what is recorded, or are served from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from rath._async.deferred import Deferred
from rath._core.dataclasses import dataclass
from rath._core.text import short_id
from rath.errors import ResumeMismatch
from rath.llm.chat_request import RathLLMMessage
from rath.llm.chat_response import RathLLMChatChoice
from rath.llm.evidence import Exchange
from rath.session.bindings import Placement
from rath.session.body import Body, cancelled_body
from rath.session.calls.requests import Context
from rath.session.calls.results import CallResult, CheckedCall
from rath.session.chunk import ChunkRow, ChunkTable, differing_row
from rath.session.content import (
    AssistantTurn,
    ResultText,
    ToolCall,
    ToolFeedback,
    encode_failure,
    encode_result,
    rows_digest,
)
from rath.session.graph.kind import LineageKind
from rath.session.graph.legacy import SessionLineage
from rath.session.graph.recording import Edge, Provenance, stamped
from rath.session.log.ancestors import alias, claim, is_superseded, latest_run
from rath.session.open_calls import (
    OpenCall,
    entries_since,
    open_calls,
    own_operation,
    waiting_outcome,
)
from rath.session.operation import Place
from rath.session.outcome import Cancelled, Completed, NeedsDecision, Suspended
from rath.session.record import (
    Entry,
    ModelCall,
    Operation,
    OperationKind,
    Record,
    Summary,
    Verdict,
    Workspace,
    is_inside_run,
    parent_sink,
)
from rath.session.run.recorded import response_of
from rath.session.scope import CancelledRuns as CancelledRuns
from rath.session.scope import RecordedSession, current_source
from rath.session.session import Session
from rath.session.tooling import Answer, CurrentCall, Question, ToolOffer


def find_recorded(place: Place) -> RecordedSession | None:
    """Return the session that was made at a place before, None where there is none."""
    source = current_source()
    found = None if source is None or place.run is None else source.find(place.new_id())
    if found is None or not is_superseded(found.body):
        return found
    return replace(found, body=latest_run(found.body), late=None)


def start_or_join(
    session: UUID, origin: Deferred[Body] | None, start: Callable[[], Deferred[Body]]
) -> tuple[Deferred[Body], bool]:
    """Submit a run, unless the same one was submitted meanwhile.

    Args:
        session: What it makes.
        origin: With what it goes on, or in whose place it is made anew; None where it is new.
        start: Submits it, and returns what it makes; must not wait.

    Returns:
        What the run makes, and whether it was started here.
    """
    source = current_source()
    if origin is None:
        return (start(), True) if source is None else source.begin(session, start)
    cell, is_new = claim(origin, start)
    if source is not None:
        source.note_run(session, cell)
    return cell, is_new


def discard_recorded(place: Place) -> None:
    """Forget the session that was made at a place before."""
    source = current_source()
    assert source is not None, "found, so something is known"
    source.drop(place.new_id())


def serve_recorded(
    found: RecordedSession,
    inputs: tuple[Deferred[Body], ...],
    check: Callable[..., None],
) -> Deferred[Body]:
    """Return the content of a session that was found, once it is sure that it is the same.

    Args:
        found: The session.
        inputs: What it is made of now.
        check: Gets their content; raises ResumeMismatch. It is called at once where the inputs are
            there, else when they are.
    """
    content = found.content
    assert content is not None, "what is served is there"
    own_entries = entries_since(content.record, found.id) if is_inside_run() else ()
    if all(cell.done() and cell.error() is None for cell in inputs):
        check(*(cell.result() for cell in inputs))
        if not own_entries:
            return found.body
    sink = parent_sink()

    async def wait_and_check(_: Deferred[Body]) -> Body:
        check(*[await cell for cell in inputs])
        for entry in own_entries:
            sink(entry, None)
        return await found.body

    recorded_run: Deferred[Body] = Deferred.start(
        wait_and_check,
        owner=found.id,
        label=f"session {short_id(found.id)} (served from its record)",
        inputs=inputs,
        on_cancel=lambda latest: latest or cancelled_body(found.id, inputs),
    )
    alias(recorded_run, found.body)
    return recorded_run


def required_operation(
    found: RecordedSession, kind: OperationKind, place: Place, *, workspace: Workspace | None = None
) -> Operation:
    """Return the operation of a session that was found.

    Raises:
        ResumeMismatch: It is none of that kind.
    """
    content = found.content
    operation = None if content is None else own_operation(content.record, found.id)
    description = (
        "no operation"
        if operation is None
        else _operation_name(operation.kind, operation.workspace)
    )
    if operation is None or (operation.kind, operation.workspace) != (kind, workspace):
        raise _mismatch(
            place, "another operation is made", description, _operation_name(kind, workspace)
        )
    return operation


def model_check(
    operation: Operation, place: Place, recorded: ChunkTable | None = None
) -> Callable[[Body, Body], None]:
    """Return the check that transcript and instructions are those that an operation had.

    Args:
        operation: It has the instructions, and the digest of the transcript.
        place: Where it is made.
        recorded: The rows that came of it; those of the transcript stand before its own.
    """
    return partial(_check_model, operation, place, recorded)


def check_equal(place: Place, what: str, expected: object, actual: object) -> None:
    """Refuse what is not what it was.

    Raises:
        ResumeMismatch: It is something else.
    """
    if expected != actual:
        raise _mismatch(place, f"{what} differs", repr(expected), repr(actual))


def _check_model(
    operation: Operation, place: Place, recorded: ChunkTable | None, user: Body, agent: Body
) -> None:
    digest, now = operation.input_digest or "", rows_digest(user.table)
    if now != digest:
        rows = () if recorded is None else recorded
        own = (row.id is not None and row.id.session == operation.session for row in rows)
        before = [*rows][: next((at for at, is_own in enumerate(own) if is_own), None)]
        if rows_digest(before) == digest:
            _check_rows(place, "the transcript", before, user.table)
        found = f"{len(user.table)} rows with the digest {now[:12]}"
        problem = "the transcript is another one"
        raise _mismatch(place, problem, f"rows with the digest {digest[:12]}", found)
    _check_rows(place, "the agent's prompt", operation.head, agent.table)


def _check_rows(
    place: Place, what: str, before: Iterable[ChunkRow], rows: Iterable[ChunkRow]
) -> None:
    if rows_digest(before) != rows_digest(rows):
        raise _mismatch(place, f"{what} is another one", *differing_row(before, rows))


def _digest(edge: Edge) -> str | UUID:
    body = None if edge.body is None else edge.body.latest
    return edge.id if body is None else rows_digest(body.table)


def _operation_name(kind: str, workspace: str | None) -> str:
    return kind if workspace is None else f"{kind} ({workspace})"


def _mismatch(place: Place, problem: str, expected: str, actual: str) -> ResumeMismatch:
    where = f"{place.path}#{place.ordinal}"
    return ResumeMismatch(problem, where=where, expected=expected, found=actual)


def find_derivation(
    place: Place,
    kind: OperationKind,
    inputs: tuple[Sequence[Edge], tuple[Deferred[Body], ...]],
    *,
    workspace: Workspace,
    rows: Sequence[ChunkRow] = (),
) -> RecordedSession | None:
    """Return the derivation that was made at a place before, None where it is to be made.

    Args:
        place: Where it is made.
        kind: What it is.
        inputs: The parents, and the content it is made of.
        workspace: With which files it begins.
        rows: The last ones, where they are not those of a parent.

    Raises:
        ResumeMismatch: At this place something else was made.
    """
    parents, cells = inputs
    found = find_recorded(place)
    if found is None or not found.body.done():
        return found
    content = found.content
    if content is None or found.body.error() or isinstance(content.outcome, Suspended):
        discard_recorded(place)  # it is not done, or is made of one that was not
        return None
    required_operation(found, kind, place, workspace=workspace)
    recorded, before = content.table, found.provenance.parents
    if rows:
        what = "the task" if kind == "delegate" else "what the user says"
        since = max(0, len(recorded) - len(rows))
        _check_rows(place, what, tuple(recorded.since(since)), rows)

    def check(*bodies: Body) -> None:
        if not before and not parents:
            # A detached session has none, and begins with the rows of one.
            _check_rows(place, "the transcript", recorded, bodies[0].table)
            return
        check_equal(place, "the number of parents", len(before), len(parents))
        for old, new in zip(before, parents, strict=True):
            # A program may name them anew.
            if old.id != new.id and _digest(old) != _digest(new):
                raise _mismatch(place, "a parent differs", f"session {old.id}", f"session {new.id}")

    return replace(found, body=serve_recorded(found, cells, check))


def find_selection(
    place: Place, record: Record, bodies: tuple[Body, Body], question: str
) -> RathLLMChatChoice | None:
    """Return a model's earlier choice at a place, None where it is to be asked.

    Args:
        place: Where it is asked.
        record: That of the session which the choice serves.
        bodies: Content of the user's and of the agent's session.
        question: The menu.

    Raises:
        ResumeMismatch: At this place something else was asked.
    """
    for operation in _operations_at(place, "select", record):
        calls = [one for one in _of(operation, record) if isinstance(one, ModelCall)]
        if not calls or calls[0].answer is None:
            continue
        model_check(operation, place)(*bodies)
        first, call = calls[-1], calls[0]
        earlier = None if first.seen is None else first.seen.question
        check_equal(place, "the menu", earlier, question)
        return response_of(call, None).primary_choice
    return None


def find_verdict(place: Place, record: Record, *, name: str, judge: str) -> Verdict | None:
    """Return the verdict that was given at a place before, None where it is to be given.

    Args:
        place: Where the check is made.
        record: That of the session which is checked.
        name: What is checked.
        judge: The command.

    Raises:
        ResumeMismatch: At this place something else was checked.
    """
    for operation in _operations_at(place, "check", record):
        verdict = next((one for one in _of(operation, record) if isinstance(one, Verdict)), None)
        if verdict is not None:
            check_equal(place, "the check", (verdict.name, verdict.judge), (name, judge))
            return verdict
    return None


def _operations_at(place: Place, kind: OperationKind, record: Record) -> list[Operation]:
    """Return the operations that serve a session and were made at a place, the last one first."""
    if current_source() is None or place.run is None:
        return []
    return [
        entry
        for entry in reversed(record)
        if isinstance(entry, Operation)
        and entry.kind == kind
        and (entry.place, entry.place.run) == (place, place.run)
    ]


def _of(operation: Operation, record: Record) -> Iterator[Entry]:
    """Yield the entries of an operation, the last one first."""
    return (entry for entry in reversed(record) if entry.operation == operation.operation)


SKIPPED = "the call was skipped by decision; whether it had taken effect before is not known"
DENIED = "the call was not allowed, and not made"
CARRIED_OUT = "the call was carried out; what came of it is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The state from which a run goes on."""

    body: Body
    """Rows, record and open calls so far."""

    operation: Operation
    """That of the run."""

    turns: tuple[tuple[AssistantTurn, Exchange], ...]
    """What the model said in this run, and the calls in which it did."""

    last_row: int
    """Index of the row of the last turn; 0 where there is none."""

    open_calls: tuple[OpenCall, ...]
    """The calls of the last turn that have no row."""

    has_calls: bool
    """Whether a model was asked in this run, so that what was recalled is known."""

    context: Context | None
    """The recalled notes, as the first request of the run showed them."""

    own_entries: tuple[Entry, ...]
    """What the run had noted by then, which the run around it may not know."""

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

    def known_results(self, tools: Mapping[str, ToolOffer]) -> dict[int, CallResult]:
        """Return the known results, by result or decision, of the open calls by their index."""
        results = {
            each.index: _known_result(each, tools.get(each.call.name)) for each in self.open_calls
        }
        return {index: finished for index, finished in results.items() if finished is not None}

    @property
    def decided(self) -> frozenset[int]:
        """The open calls, by their index, of which somebody has said whether they are made."""
        return frozenset(each.index for each in self.open_calls if each.is_allowed)

    @property
    def passed(self) -> frozenset[tuple[int, int]]:
        """The open calls, by row and index, that hooks have let pass."""
        return frozenset((one.row, one.index) for one in self.open_calls if one.has_passed)

    def effective_calls(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """Return the calls of the last turn as they are made: some with other arguments."""
        effective = list(calls)
        for each in self.open_calls:
            effective[each.index] = each.call
            approval = each.said.approval
            if approval is not None and approval.edited is not None:
                edited = json.dumps(dict(approval.edited), ensure_ascii=False)
                effective[each.index] = replace(effective[each.index], arguments=edited)
        return effective

    def answers(self) -> dict[int, CurrentCall]:
        """Return the answers to the open calls, by their index, for when they are made."""
        return {each.index: _answers_to(each) for each in self.open_calls}

    def with_decisions(self, done: Mapping[int, CallResult]) -> dict[int, CallResult]:
        """Return the results of calls, with the decisions by which they were made."""
        results = dict(done)
        for each in self.open_calls:
            if each.allowed_by is not None and each.index in done:
                results[each.index] = replace(done[each.index], decision=each.allowed_by.id)
        return results


def resume_point(body: Body, session: UUID, *, late: Record | None = None) -> ResumePoint | None:
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
    own_entries = tuple(entries_since(record, session))
    calls = _own_calls(own_entries, operation)
    by_row = {row: call for call in calls for row in call.rows}
    turns: list[tuple[AssistantTurn, Exchange]] = []
    last_row = 0
    for index, row in enumerate(body.table):
        call = None if row.id is None else by_row.get(row.id)
        if isinstance(row.content, AssistantTurn) and call is not None:
            turns.append((row.content, Exchange(response_of(call, row), call.evidence)))
            last_row = index
    return ResumePoint(
        body=replace(body, record=record, outcome=Completed()),
        operation=operation,
        turns=tuple(turns),
        last_row=last_row,
        open_calls=open_calls(body, session, late=late),
        has_calls=bool(calls),
        context=_context(calls),
        own_entries=own_entries,
    )


def _own_calls(own_entries: Iterable[Entry], operation: Operation) -> list[ModelCall]:
    return [
        entry
        for entry in own_entries
        if isinstance(entry, ModelCall) and entry.operation == operation.operation
    ]


def _context(calls: list[ModelCall]) -> Context | None:
    recorded_input = calls[0].seen if calls else None
    if (
        recorded_input is None
        or recorded_input.context_at is None
        or recorded_input.context is None
    ):
        return None
    return Context(
        recorded_input.context_at,
        RathLLMMessage("user", recorded_input.context),
        recorded_input.recalled,
    )


def _answers_to(open_call: OpenCall) -> CurrentCall:
    decisions = open_call.said
    answers = [
        Answer(Question(each.interrupt.question or "", each.interrupt.schema), each.answer.text)
        for each in decisions.questions
        if each.answer is not None and each.answer.text is not None
    ]
    is_edited = decisions.approval is not None and decisions.approval.edited is not None
    return CurrentCall(answers, is_edited=is_edited)


def _denial(open_call: OpenCall, prepared: CheckedCall) -> CallResult | None:
    """Return the result of a call that was not allowed, None for one that is made."""
    approval = open_call.said.approval
    if approval is None or approval.choice != "deny":
        return None
    why = DENIED if approval.text is None else f"{DENIED}: {approval.text}"
    return CallResult(prepared, encode_failure("denied", why), "denied", decision=approval.id)


def _known_result(open_call: OpenCall, offer: ToolOffer | None) -> CallResult | None:
    prepared = CheckedCall(open_call.call, offer)
    if open_call.result is not None:
        run, row = open_call.result.run, open_call.result.shown
        assert row is not None, "a call without a row is not known"
        body = row.content.body if isinstance(row.content, ToolFeedback) else ""
        result_text = ResultText(
            body, failure=run.error_kind, exit_code=run.exit_code, images=row.images
        )
        return CallResult(prepared, result_text, run.status, recorded=(run, row))
    decision = open_call.decision
    if decision is None or decision.choice == "retry":
        return _denial(open_call, prepared)
    if decision.choice == "skip":
        result = encode_failure("skipped", decision.text or SKIPPED)
        return CallResult(prepared, result, "denied", decision=decision.id)
    result = encode_result(CARRIED_OUT if decision.text is None else decision.text)
    return CallResult(prepared, result, "done", decision=decision.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedCompression:
    """A compression that failed or was cut off: it goes on with all that it had noted."""

    origin: Deferred[Body]
    """What it goes on with."""

    operation: Operation
    body: Body
    """Its record, with the calls that were paid for in vain; its rows are those of the summary,
    none where there is no summary yet."""

    own_entries: Sequence[Entry]
    """What it had noted by then, which the run around it may not know."""

    check: Callable[[Body, Body], None]
    """Raises ResumeMismatch where transcript and instructions are others than they were."""

    @property
    def has_summary(self) -> bool:
        """Whether the summary is there, so that no model is asked once more."""
        return len(self.body.table) > 0

    def start_with(self, user: Body) -> Body:
        """Return the content so far, with the rows of the input where there is no summary."""
        return self.body if self.has_summary else replace(self.body, table=user.table)


def find_earlier_compression(
    place: Place, cells: tuple[Deferred[Body], Deferred[Body]]
) -> RecordedSession | UnfinishedCompression | None:
    """Return the compression that was made at a place before, None where it is to be made.

    Args:
        place: Where it is made.
        cells: Content of the user's and of the agent's session.

    Raises:
        ResumeMismatch: At this place something else was made.
    """
    found = find_recorded(place)
    if found is None or not found.body.done():
        return found
    content, has_failed = found.content, found.body.error() is not None
    operation = None if content is None else own_operation(content.record, found.id)
    if content is None or (
        operation is None and (has_failed or isinstance(content.outcome, Suspended))
    ):
        discard_recorded(place)
        return None
    if operation is None:
        # The chain was at its budget, so that no model was asked: the rows are those of the input.
        expected = rows_digest(content.table)

        def check_input(user: Body, _: Body) -> None:
            check_equal(place, "the transcript", expected, rows_digest(user.table))

        return replace(found, body=serve_recorded(found, cells, check_input))
    check = model_check(required_operation(found, "compress", place), place)
    if not _goes_on(found, content):
        return replace(found, body=serve_recorded(found, cells, check))
    own_entries = entries_since(content.record, found.id)
    is_summed_up = any(
        isinstance(entry, Summary) and entry.operation == operation.operation
        for entry in own_entries
    )
    rows = content.table if is_summed_up else content.table.prefix(0)
    body = replace(content, table=rows, outcome=Completed(), unfinished=None)
    return UnfinishedCompression(
        origin=found.body, operation=operation, body=body, own_entries=own_entries, check=check
    )


def _goes_on(found: RecordedSession, content: Body) -> bool:
    """Tell whether the run of a session is not done."""
    source, outcome = current_source(), content.outcome
    if isinstance(outcome, Cancelled):
        return source is not None and source.cancelled == "go_on"
    return isinstance(outcome, Suspended) or found.body.error() is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """An earlier run of a loop."""

    session: UUID
    provenance: Provenance | None
    """Where the session comes from; None for what the call says."""

    lineage: SessionLineage | None
    """The documented DTO of it, None for what the call says."""

    cells: tuple[Deferred[Body], Deferred[Body]]
    """What a run that goes on waits for: content of the user's and of the agent's session."""

    origin: Deferred[Body] | None = None
    """What is gone on with, or made anew: of one content one run at most is made."""

    placement: Placement | None = None
    """In which place; None for that of the user's session."""

    goes_on: ResumePoint | None = None
    """Where the run goes on."""

    complete_run: Session | None = None
    """All that there is to it, where nothing is left to do."""


def find_earlier_run(user: Session, agent: Session, place: Place) -> EarlierRun | None:
    """Return the earlier run of the loop that is called here, None where there is none.

    Raises:
        ResumeMismatch: At this place something else was made.
    """
    found = find_recorded(place)
    if found is None:
        return _waiting(user, agent, place)
    return _resume_found(found, user, agent, place)


def _waiting(user: Session, agent: Session, place: Place) -> EarlierRun | None:
    """Return the run that made `user`, where it waits and belongs to this agent."""
    if (
        not user.core.body.done()
        or user.core.body.error() is not None
        or not agent.core.body.done()
    ):
        return None
    outcome = user.outcome
    if not isinstance(outcome, Suspended) or isinstance(outcome, Cancelled):
        return None
    before = resume_point(user.core.body.result(), user.id, late=user.record)
    if before is None or outcome.session not in (user.id, *before.children):
        return None
    # Within the program that made it, a session that waits is passed on to what comes next.
    began = before.operation
    is_passed_on = place.run is not None and place.run == began.place.run
    if is_passed_on or began.head != tuple(agent.chunk_table):
        return None
    origin = latest_run(user.core.body)
    if is_superseded(user.core.body):
        return _join_latest(user, agent, origin)
    earlier = _earlier_run(user, agent, origin, before)
    return (
        replace(earlier, complete_run=user) if before.waiting else replace(earlier, goes_on=before)
    )


def _join_latest(user: Session, agent: Session, origin: Deferred[Body]) -> EarlierRun:
    """Return the run that has gone on with a session that is given again."""
    written = origin.latest
    if not origin.done() or origin.error() is None or written is None:
        again = EarlierRun(
            session=user.id, provenance=None, lineage=None, cells=(origin, agent.core.body)
        )
        return replace(again, complete_run=_same_run(user, origin))
    before = resume_point(written, user.id)
    assert before is not None, "its operation is there"
    earlier = _earlier_run(user, agent, origin, before)
    if not before.waiting:
        return replace(earlier, goes_on=before)
    waits = _still_waiting(before, written, user.id, origin)
    return replace(earlier, complete_run=_same_run(user, waits))


def _still_waiting(
    before: ResumePoint, written: Body, session: UUID, origin: Deferred[Body]
) -> Deferred[Body]:
    """Return the content of a run with what it waits for by now."""
    outcome = waiting_outcome(before.open_calls, NeedsDecision(session, ()), session)
    waits = Deferred.of(replace(written, outcome=outcome))
    alias(waits, origin)
    return waits


def _earlier_run(
    user: Session, agent: Session, origin: Deferred[Body], before: ResumePoint
) -> EarlierRun:
    cells = (Deferred.of(before.body), agent.core.body)
    return EarlierRun(
        session=user.id,
        provenance=user.provenance,
        lineage=user.lineage,
        cells=cells,
        origin=origin,
    )


def _same_run(user: Session, content: Deferred[Body]) -> Session:
    """Return the session of a run that has gone on with `user`."""
    return Session.from_body(
        content,
        user.provenance,
        id=user.id,
        placement=user.core.placement.share(),
        provider=user.provider,
        lineage=user.lineage,
    )


def _resume_found(
    found: RecordedSession, user: Session, agent: Session, place: Place
) -> EarlierRun | None:
    content, cells, origin = found.content, (user.core.body, agent.core.body), found.body
    earlier = EarlierRun(
        session=found.id,
        provenance=None,
        lineage=None,
        cells=cells,
        origin=origin,
        placement=found.placed(user.core.placement),
    )
    if not found.body.done():
        return replace(earlier, complete_run=_session_of(found, found.body, user, agent))
    if content is None or own_operation(content.record, found.id) is None:
        discard_recorded(place)
        return earlier
    check = model_check(required_operation(found, "loop", place), place, content.table)
    if _goes_on(found, content):
        before = resume_point(found.written, found.id, late=found.late)
        assert before is not None, "its operation is there"
        if not before.waiting:
            return replace(earlier, goes_on=_check_resume(before, cells, check))
        found = replace(found, body=_still_waiting(before, content, found.id, origin))
    return replace(
        earlier, complete_run=_session_of(found, serve_recorded(found, cells, check), user, agent)
    )


def _session_of(
    found: RecordedSession, body: Deferred[Body], user: Session, agent: Session
) -> Session:
    """Return the session that was found, as the call makes it now."""
    parents = (user.core.as_parent(), agent.core.as_parent())
    session = Session.from_body(
        body,
        stamped(found.id, "run_session_loop", LineageKind.OP_SESSION_LOOP, parents),
        id=found.id,
        placement=found.placed(user.core.placement).share(),
        provider=user.provider,
        lineage=SessionLineage(user.id, agent.id),
    )
    session.core.late = found.late
    return session


def _check_resume(
    before: ResumePoint,
    cells: tuple[Deferred[Body], Deferred[Body]],
    check: Callable[[Body, Body], None],
) -> ResumePoint:
    """Check the inputs now where they are there, else have the run do it."""
    if all(cell.done() and cell.error() is None for cell in cells):
        check(cells[0].result(), cells[1].result())
        return before
    return replace(before, check=check)
