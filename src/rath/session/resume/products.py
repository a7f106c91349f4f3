"""Whether what is derived, selected or checked had been made before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from rath._async.lazy import Deferred
from rath.llm.chat_response import RathLLMChatChoice
from rath.session.body import Body
from rath.session.chunk import ChunkTable
from rath.session.content import AssistantTurn
from rath.session.graph.provenance import Edge
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
)
from rath.session.resume.going_on import exchange_of
from rath.session.resume.matching import (
    check_equal,
    derivation_check,
    model_check,
    required_operation,
)
from rath.session.resume.serving import Found, found_at, known_run, make_anew, served

Cells = tuple[Deferred[Body], ...]


def derivation_before(
    place: Place,
    kind: OperationKind,
    inputs: tuple[Sequence[Edge], Cells],
    *,
    workspace: Workspace,
    rows: ChunkTable | None = None,
) -> Found | None:
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

    def check(found: Found) -> Callable[..., None]:
        required_operation(found, kind, place, workspace=workspace)
        return derivation_check(found, parents, place, rows=rows)

    return _before(place, cells, check)


def selection_before(
    place: Place, record: Record, bodies: tuple[Body, Body], question: str
) -> RathLLMChatChoice | None:
    """Return what a model chose at a place before, None where it is to be asked.

    Args:
        place: Where it is asked.
        record: That of the session which the choice serves.
        bodies: Content of the user's and of the agent's session.
        question: The menu.

    Raises:
        ResumeMismatch: At this place something else was asked.
    """
    for made in _operations_at(place, "select", record):
        calls = [one for one in _of(made, record) if isinstance(one, ModelCall)]
        if not calls or (answer := calls[0].answer) is None:
            continue
        model_check(made, place)(*bodies)
        first, call = calls[-1], calls[0]
        asked = None if first.seen is None else first.seen.question
        check_equal(place, "the menu", asked, question)
        exchange = exchange_of(AssistantTurn(answer), call.evidence)
        return exchange.response.primary_choice
    return None


def verdict_before(place: Place, record: Record, *, name: str, judge: str) -> Verdict | None:
    """Return the verdict that was given at a place before, None where it is to be given.

    Args:
        place: Where the check is made.
        record: That of the session which is checked.
        name: What is checked.
        judge: The command.

    Raises:
        ResumeMismatch: At this place something else was checked.
    """
    for made in _operations_at(place, "check", record):
        verdict = next((one for one in _of(made, record) if isinstance(one, Verdict)), None)
        if verdict is not None:
            check_equal(place, "the check", (verdict.name, verdict.judge), (name, judge))
            return verdict
    return None


def _before(
    place: Place, cells: Cells, check: Callable[[Found], Callable[..., None]]
) -> Found | None:
    found = found_at(place)
    if found is None or not found.body.done():
        return found
    if _is_void(found):
        make_anew(place)
        return None
    return replace(found, body=served(found, cells, check(found)))


def _is_void(found: Found) -> bool:
    """Tell whether a session is not done, or is made of one that was not."""
    content = found.content
    if content is None or found.body.error() is not None:
        return True
    return isinstance(content.outcome, Suspended)


def _operations_at(place: Place, kind: OperationKind, record: Record) -> list[Operation]:
    """Return the operations that serve a session and were made at a place, the last one first."""
    if known_run() is None or place.run is None:
        return []
    return [
        entry
        for entry in reversed(record)
        if isinstance(entry, Operation)
        and entry.kind == kind
        and (entry.place, entry.place.run) == (place, place.run)
    ]


def _of(made: Operation, record: Record) -> Iterator[Entry]:
    """Yield the entries of an operation, the last one first."""
    return (entry for entry in reversed(record) if entry.operation == made.operation)
