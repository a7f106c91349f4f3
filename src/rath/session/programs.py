"""Programs that run again: recorded sessions are served, unfinished ones go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar
from uuid import UUID

from rath._async.deferred import Deferred
from rath._core.text import short_id
from rath.errors import ResumeMismatch
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMFinishReason,
)
from rath.llm.evidence import CallEvidence, Exchange
from rath.session.body import Body, cancelled_body
from rath.session.chunk import ChunkRow, ChunkTable
from rath.session.content import (
    AssistantTurn,
    rows_digest,
)
from rath.session.graph.recording import Edge
from rath.session.log.open_logs import alias, claim, is_superseded, latest_run
from rath.session.open_calls import entries_since, own_operation
from rath.session.operation import Place
from rath.session.outcome import Suspended
from rath.session.record import (
    Entry,
    ModelCall,
    Operation,
    OperationKind,
    Record,
    Verdict,
    Workspace,
    is_inside_run,
    parent_sink,
)
from rath.session.scope import CancelledRuns as CancelledRuns
from rath.session.scope import RecordedSession, current_source


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
    if origin is not None:
        return claim(origin, start)
    source = current_source()
    return (start(), True) if source is None else source.begin(session, start)


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


T = TypeVar("T")


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


def model_check(operation: Operation, place: Place) -> Callable[[Body, Body], None]:
    """Return the check that transcript and instructions are those that an operation had."""
    return partial(_check_model, operation, place)


def derivation_check(
    found: RecordedSession,
    parents: Sequence[Edge],
    place: Place,
    *,
    rows: Iterable[ChunkRow] | None = None,
) -> Callable[..., None]:
    """Return the check that a derivation has the parents that it had, and the rows of its own.

    Raises:
        ResumeMismatch: The rows are others; the check says so of the parents.
    """
    if rows is not None:
        content = found.content
        assert content is not None, "what is served is there"
        _check_rows(place, "the task", rows_digest(content.table), rows)
    return partial(_check_parents, found, parents, place)


def check_equal(place: Place, what: str, expected: object, actual: object) -> None:
    """Refuse what is not what it was.

    Raises:
        ResumeMismatch: It is something else.
    """
    if expected != actual:
        raise _mismatch(place, f"{what} differs", repr(expected), repr(actual))


def _check_model(operation: Operation, place: Place, user: Body, agent: Body) -> None:
    _check_rows(place, "the transcript", operation.input_digest or "", user.table)
    _check_rows(place, "the agent's instructions", rows_digest(operation.head), agent.table)


def _check_rows(place: Place, what: str, expected: str, rows: Iterable[ChunkRow]) -> None:
    now = rows_digest(rows)
    if now != expected:
        listed = list(rows)
        description = f"{len(listed)} rows with the digest {now[:12]}"
        raise _mismatch(
            place, f"{what} differs", f"rows with the digest {expected[:12]}", description
        )


def _check_parents(
    found: RecordedSession, parents: Sequence[Edge], place: Place, *inputs: Body
) -> None:
    """Compare parents by id, and where a program names them anew by what they say."""
    before = found.provenance.parents
    if not before and not parents:
        # A detached session has none, and begins with the rows of one.
        content = found.content
        assert content is not None, "what is served is there"
        _check_rows(place, "the transcript", rows_digest(content.table), inputs[0].table)
        return
    check_equal(place, "the number of parents", len(before), len(parents))
    for old, new in zip(before, parents, strict=True):
        if old.id != new.id and _digest(old) != _digest(new):
            raise _mismatch(place, "a parent differs", f"session {old.id}", f"session {new.id}")


def _digest(edge: Edge) -> str | UUID:
    body = None if edge.body is None else edge.body.latest
    return edge.id if body is None else rows_digest(body.table)


def _operation_name(kind: str, workspace: str | None) -> str:
    return kind if workspace is None else f"{kind} ({workspace})"


def _mismatch(place: Place, problem: str, expected: str, actual: str) -> ResumeMismatch:
    where = f"{place.path}#{place.ordinal}"
    return ResumeMismatch(problem, where=where, expected=expected, found=actual)


Cells = tuple[Deferred[Body], ...]


def find_derivation(
    place: Place,
    kind: OperationKind,
    inputs: tuple[Sequence[Edge], Cells],
    *,
    workspace: Workspace,
    rows: ChunkTable | None = None,
) -> RecordedSession | None:
    """Return the derivation that was made at a place before, None where it is to be made.

    Args:
        place: Where it is made.
        kind: What it is.
        inputs: The parents, and the content it is made of.
        workspace: With which files it begins.
        rows: Those that it begins with, where they are not those of a parent.

    Raises:
        ResumeMismatch: At this place something else was made.
    """
    parents, cells = inputs

    def check(found: RecordedSession) -> Callable[..., None]:
        required_operation(found, kind, place, workspace=workspace)
        return derivation_check(found, parents, place, rows=rows)

    return _before(place, cells, check)


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
        if not calls or (answer := calls[0].answer) is None:
            continue
        model_check(operation, place)(*bodies)
        first, call = calls[-1], calls[0]
        earlier = None if first.seen is None else first.seen.question
        check_equal(place, "the menu", earlier, question)
        exchange = exchange_of(AssistantTurn(answer), call.evidence)
        return exchange.response.primary_choice
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


def _before(
    place: Place, cells: Cells, check: Callable[[RecordedSession], Callable[..., None]]
) -> RecordedSession | None:
    found = find_recorded(place)
    if found is None or not found.body.done():
        return found
    if _is_void(found):
        discard_recorded(place)
        return None
    return replace(found, body=serve_recorded(found, cells, check(found)))


def _is_void(found: RecordedSession) -> bool:
    """Tell whether a session is not done, or is made of one that was not."""
    content = found.content
    if content is None or found.body.error() is not None:
        return True
    return isinstance(content.outcome, Suspended)


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
