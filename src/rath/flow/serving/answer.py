"""What a client reads of a call: text, and the same with ids and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_never

from rath._core.text import cut_middle
from rath.errors import RathError
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session import Session
from rath.session.log.index.database import OUTCOME_STATES
from rath.session.outcome import (
    BudgetExceeded,
    Cancelled,
    Completed,
    DeadlineExceeded,
    NeedsApproval,
    NeedsDecision,
    NeedsInput,
    Outcome,
    OutputMissing,
    RoundLimit,
)
from rath.session.output import plain_answer

MAX_ERROR_CHARS = 4_000
"""How much of an error a client reads; a guess."""

OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "The answer."},
        "output": {"description": "The typed answer, where the workflow gives one."},
        "session_id": {
            "type": ["string", "null"],
            "description": "Go on with this session by giving its id with the next message.",
        },
        "outcome": {
            "type": "string",
            "enum": [*OUTCOME_STATES.values(), "failed", "refused"],
            "description": "How the run ended, or what it waits for.",
        },
        "waits_for": {"type": ["string", "null"]},
        "usage": {
            "type": ["object", "null"],
            "properties": {
                "prompt_tokens": {"type": "integer"},
                "completion_tokens": {"type": "integer"},
                "total_tokens": {"type": "integer"},
            },
        },
    },
    "required": ["text", "session_id", "outcome", "usage"],
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client reads."""

    text: str
    structured: dict[str, Any]
    is_error: bool = False


def refused(problem: str) -> Answer:
    """Return what is said of a call that nothing was made of."""
    told = {"text": problem, "session_id": None, "outcome": "refused", "usage": None}
    return Answer(problem, told, is_error=True)


def failed(session: Session | None, error: Exception) -> Answer:
    """Return what is said of a run that failed, or did not begin."""
    kind = "" if isinstance(error, RathError) else f"{type(error).__name__}: "
    said = cut_middle(f"the run failed: {kind}{error}", MAX_ERROR_CHARS)[0]
    made = None if session is None else str(session.id)
    told = {"text": said, "session_id": made, "outcome": "failed", "usage": None}
    return Answer(said, told, is_error=True)


def answered(session: Session) -> Answer:
    """Return what is said of a run that has ended or waits."""
    outcome = session.outcome
    note = _note(session, outcome)
    said = plain_answer(session)
    text = said if isinstance(said, str) else _last_text(session)
    shown = "\n\n".join(filter(None, (text, note)))
    told: dict[str, Any] = {
        "text": text,
        "session_id": str(session.id),
        "outcome": OUTCOME_STATES[type(outcome).__name__],
        "usage": _usage(session.cumulative_usage),
    }
    if isinstance(outcome, NeedsApproval | NeedsInput | NeedsDecision):
        told["waits_for"] = note
    if said is not None and not isinstance(said, str):
        told["output"] = said
    return Answer(shown or "(no answer)", told)


def _last_text(session: Session) -> str:
    return session.text() or ""


def _note(session: Session, outcome: Outcome) -> str:
    """Return what is to be said beside the answer; nothing of a run that was completed."""
    match outcome:
        case Completed(OutputMissing(problem)):
            return f"(no answer of the type that was asked for: {problem})"
        case Completed():
            return ""
        case RoundLimit(n_rounds):
            return f"(the run was not done after {n_rounds} model calls)"
        case BudgetExceeded():
            return f"(the run was stopped by its budget: {outcome})"
        case DeadlineExceeded(seconds):
            return f"(the run was not done after {seconds:g} s)"
        case Cancelled():
            return "(the run was cancelled)"
        case NeedsApproval() | NeedsInput() | NeedsDecision():
            return _waiting(session, outcome)
        case _:
            assert_never(outcome)


def _waiting(session: Session, outcome: NeedsApproval | NeedsInput | NeedsDecision) -> str:
    match outcome:
        case NeedsInput():
            what = f"an answer to the question: {outcome.question}"
        case NeedsApproval():
            what = f"somebody to allow the calls {', '.join(outcome.calls)}"
        case _:
            what = f"somebody to decide about the calls {', '.join(outcome.calls)}"
    return (
        f"Session {outcome.session} waits for {what}. Once that is said where the server runs, "
        f"call again with session_id {session.id} and an empty message to go on."
    )


def _usage(usage: RathLLMTokenUsage | None) -> dict[str, int] | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
