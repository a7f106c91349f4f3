"""How a run ends that waits for somebody: what it notes, and what it keeps until it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, assert_never
from uuid import UUID

from rath.session.approvals.asking import InnerRun, Question
from rath.session.chunk import ChunkRow, RowId
from rath.session.content import ToolCall
from rath.session.outcome import NeedsApproval, NeedsInput, Outcome
from rath.session.persistence.lines import ResultLine
from rath.session.persistence.loading.unfinished import Unfinished
from rath.session.record import Entry, Interrupt, ToolRun
from rath.session.running.finished import Finished, tool_run_entry
from rath.session.tooling import Offer, tool_digest


@dataclass(frozen=True, slots=True)
class Round:
    """The calls of a turn as one run makes them."""

    operation: UUID
    asked_in: RowId
    """The row in which the model asked."""

    calls: Mapping[int, ToolCall]
    """By their place in it."""

    tools: Mapping[str, Offer]


@dataclass(frozen=True, slots=True)
class Suspending:
    """How a run ends that waits."""

    outcome: Outcome
    entries: tuple[Entry, ...]
    """What is noted of it."""

    left: Unfinished | None = None
    """Results of the round that are no rows yet."""


def for_approval(here: Round, places: list[int], done: Mapping[int, Finished]) -> Suspending:
    """Return how a run ends that waits for approvals: none of its calls was made now.

    Args:
        here: The round.
        places: The calls that somebody must allow.
        done: What is known of others from before.
    """
    entry = _interrupt(here, places, "approval")
    outcome = NeedsApproval(here.asked_in.session, entry.calls)
    return Suspending(outcome, (entry,), _kept(here, done))


def for_answers(here: Round, done: Mapping[int, Finished]) -> Suspending | None:
    """Return how a run ends some of whose calls wait, None where none does.

    Args:
        here: The round.
        done: What became of its calls.
    """
    waiting = [
        (at, one, waits) for at, one in sorted(done.items()) if (waits := one.waits) is not None
    ]
    if not waiting:
        return None
    entries: list[Entry] = []
    outcomes: list[Outcome] = []
    inner: list[InnerRun] = []
    for at, one, waits in waiting:
        entries.append(_recorded(here, one)[0])
        match waits:
            case Question(text, schema):
                asked = None if schema is None else dict(schema)
                entries.append(_interrupt(here, [at], "input", question=text, schema=asked))
                outcomes.insert(len(outcomes) - len(inner), NeedsInput(here.asked_in.session, text))
            case InnerRun() as run:
                entries.append(_inner_interrupt(here, at, run))
                outcomes.append(run.outcome)
                inner.append(run)
            case _:
                assert_never(waits)
    sessions = tuple(run.session for run in inner)
    return Suspending(outcomes[0], tuple(entries), _kept(here, done, inner=sessions))


def _inner_interrupt(here: Round, at: int, run: InnerRun) -> Interrupt:
    outcome = run.outcome
    reason: Literal["approval", "input", "decision"] = "decision"
    if isinstance(outcome, NeedsApproval | NeedsInput):
        reason = "approval" if isinstance(outcome, NeedsApproval) else "input"
    question = outcome.question if isinstance(outcome, NeedsInput) else None
    return _interrupt(here, [at], reason, question=question, child=run.child)


def _interrupt(
    here: Round,
    places: list[int],
    reason: Literal["approval", "input", "decision"],
    *,
    question: str | None = None,
    schema: Mapping[str, Any] | None = None,
    child: UUID | None = None,
) -> Interrupt:
    calls = [here.calls[at] for at in places]
    return Interrupt(
        operation=here.operation,
        rows=(here.asked_in,),
        reason=reason,
        calls=tuple(call.id for call in calls),
        question=question,
        places=tuple(places),
        bound=tuple(tool_digest(here.tools[call.name]) for call in calls),
        schema=schema,
        child=child,
    )


def _kept(
    here: Round, done: Mapping[int, Finished], *, inner: tuple[object, ...] = ()
) -> Unfinished | None:
    """Return the results that are no rows yet; a decision is read again when the run goes on."""
    results: list[ResultLine] = []
    for at, one in sorted(done.items()):
        is_decided = one.recorded is None and one.decision is not None
        if one.is_cut_off or is_decided:
            continue
        run, shown = _recorded(here, one)
        results.append(ResultLine(row=here.asked_in.index, call=at, run=run, shown=shown))
    if not results and not inner:
        return None
    return Unfinished(operation=here.operation, results=tuple(results), has_ended=True, inner=inner)


def _recorded(here: Round, one: Finished) -> tuple[ToolRun, ChunkRow]:
    if one.recorded is not None:
        return one.recorded
    return tool_run_entry(one, operation=here.operation), one.shown_row
