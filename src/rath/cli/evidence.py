"""What the record says about a row or a session, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from rath.cli.layout import money, number, one_line, span
from rath.session.chunk import ChunkRow, RowId, readable_json
from rath.session.content import AssistantTurn, Opaque, SystemText, ToolFeedback, UserText
from rath.session.outcome import Completed, Outcome, OutputMissing
from rath.session.record import (
    Change,
    Decision,
    Entry,
    Interrupt,
    ModelCall,
    Operation,
    Summary,
    ToolRun,
    Verdict,
)

__all__ = ["brief", "made_by", "outcome_text", "said"]

_MAX_PATHS = 3


def said(row: ChunkRow) -> str:
    """Return what a row says, on one line: its text, and the calls that it asks for."""
    match row.content:
        case SystemText(text):
            return one_line(text)
        case UserText() as content:
            return one_line(content.described)
        case AssistantTurn(text, calls):
            asked = [f"→ {call.name}({one_line(readable_json(call.arguments))})" for call in calls]
            return "  ".join(filter(None, (one_line(text or ""), *asked)))
        case ToolFeedback(_, name, body, images):
            labels = [image.label for image in images]
            return " ".join([f"{name}:", *labels, one_line(readable_json(body))])
        case Opaque(payload):
            return one_line(str(dict(payload)))
        case _:
            assert_never(row.content)


def brief(entry: Entry) -> str:
    """Return what an entry of the record says, on one line."""
    match entry:
        case Operation():
            place = f" at {entry.place.path}#{entry.place.ordinal}" if entry.place.path else ""
            return f"{entry.kind}{place}"
        case ModelCall():
            return ", ".join(_of_call(entry))
        case ToolRun():
            return ", ".join(_of_run(entry))
        case Summary():
            return f"summary of {number(len(entry.replaced), 'row')}"
        case Verdict():
            score = "" if entry.score is None else f", score {entry.score:g}"
            return f"check {entry.name}: {'passed' if entry.passed else 'failed'}{score}"
        case Interrupt():
            calls = f" on {', '.join(entry.calls)}" if entry.calls else ""
            inside = "" if entry.child is None else f", inside it session {entry.child}"
            asked = "" if entry.question is None else f": {one_line(entry.question)}"
            return f"waits for {entry.reason}{calls}{inside}{asked}"
        case Decision():
            call = "" if entry.call_id is None else f" {entry.call_id}"
            said = "" if entry.text is None else f": {one_line(entry.text)}"
            given = "" if entry.edited is None else f", with {one_line(str(dict(entry.edited)))}"
            return f"{entry.by} decided: {one_line(entry.choice)}{call}{given}{said}"
        case Change():
            call = "" if entry.call_id is None else f" of {one_line(entry.call_id)}"
            return f"hook {one_line(entry.hook)} changed the {entry.what}{call}"
        case _:
            assert_never(entry)


def outcome_text(outcome: Outcome) -> str:
    """Return how a run ended, with what belongs to it."""
    if isinstance(outcome, Completed):
        problem = outcome.output.problem if isinstance(outcome.output, OutputMissing) else ""
        return f"completed without its typed answer: {one_line(problem)}" if problem else ""
    calls: Iterable[str] = getattr(outcome, "calls", ())
    question: str = getattr(outcome, "question", "")
    return one_line(" ".join((*calls, question)))


def _of_call(call: ModelCall) -> Iterator[str]:
    evidence = call.evidence
    yield evidence.served_model or evidence.requested_model or evidence.provider_kind
    if call.purpose != "turn":
        yield call.purpose
    if call.status != "done":
        yield f"{call.status}: {one_line(evidence.error or '')}".removesuffix(": ")
    if evidence.usage is not None:
        usage = evidence.usage
        yield f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens"
    if evidence.cost is not None:
        yield money(evidence.cost.usd)
    if evidence.duration_ms:
        yield span(evidence.duration_ms)
    if len(evidence.attempts) > 1:
        yield f"{len(evidence.attempts)} tries"
    if evidence.fallback_from:
        yield f"instead of {evidence.fallback_from}"
    if evidence.finish_reason not in (None, "stop", "tool_calls"):
        yield f"ended by {evidence.finish_reason}"
    if call.seen is not None and call.seen.recalled:
        yield f"saw {number(len(call.seen.recalled), 'note')}"


def _of_run(run: ToolRun) -> Iterator[str]:
    yield run.status if run.error_kind is None else f"{run.status} ({run.error_kind})"
    if run.exit_code is not None:
        yield f"exit status {run.exit_code}"
    if run.signal is not None:
        yield f"signal {run.signal}"
    yield span(run.duration_ms)
    if run.sandbox is not None:
        yield f"in {run.sandbox.backend} {run.sandbox.root or ''}".rstrip()
    if run.file_effects:
        named = [f"{effect.kind} {effect.path}" for effect in run.file_effects[:_MAX_PATHS]]
        more = len(run.file_effects) - len(named)
        yield "; ".join(named) + (f" and {more} more" if more else "")
    if run.full is not None:
        yield "shown in part"


def made_by(entries: Iterable[Entry]) -> dict[RowId, Entry]:
    """Return the entry that made each row, by row id."""
    made: dict[RowId, Entry] = {}
    for entry in entries:
        if isinstance(entry, ModelCall | ToolRun | Summary):
            for row in entry.rows:
                made.setdefault(row, entry)
    return made
