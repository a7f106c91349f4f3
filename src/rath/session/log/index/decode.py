"""The events of a log to the facts of an index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from uuid import UUID

from rath._core.text import valid_unicode
from rath.errors import SessionDamaged
from rath.llm.evidence import CallEvidence
from rath.session.body import was_refused
from rath.session.content import AssistantTurn, Content, SystemText, ToolFeedback, UserText
from rath.session.log.build import ParsedLog, parse_log
from rath.session.log.index.database import (
    OUTCOME_STATES,
    CallPrice,
    IndexedCall,
    LogFacts,
    RowRange,
    RowText,
)
from rath.session.log.reader import read_lines
from rath.session.outcome import NeedsDecision
from rath.session.record import Entry, ModelCall, Operation, ToolRun

__all__ = ["facts_of"]

_MAX_CHARS = 100_000
"""Of a row that can be searched; a longer one is kept by its beginning."""


def facts_of(
    session: UUID, data: bytes, *, is_finished: bool = False, with_text: bool = True
) -> LogFacts:
    """Read the facts of a log; of one that cannot be believed, those before the bad line.

    Args:
        session: Whose log.
        data: All of it.
        is_finished: Whether its writer has finished it: then its run has an end.
        with_text: Whether the texts of its rows are read.
    """
    facts = LogFacts(session=session, size=len(data), texts=[] if with_text else None)
    try:
        read = read_lines(data, "", is_finished=is_finished, recover=True)
    except SessionDamaged as exc:
        return _damaged(facts, exc)
    if read.header.session != session:
        problem = f"this is the log of session {read.header.session}"
        return _damaged(facts, SessionDamaged(problem, where="", line=1))
    content = parse_log(read, recover=True)
    reader, state = read.reader, content.state
    _tell_header(facts, content)
    _tell_rows(facts, content)
    _tell_entries(facts, content.entries)
    facts.updated_at, facts.backend = state.last_at, content.place.sandbox_backend
    facts.n_rows, facts.n_lines = state.n_rows, reader.n_lines
    if content.problem is not None:
        if read.problem is None:
            facts.n_lines = (content.problem.line or 1) - 1
        return _damaged(facts, content.problem)
    trailer = state.trailer
    facts.is_open = trailer is None
    if not reader.takes_more and trailer is not None and trailer.usage is not None:
        # Version 1 kept no calls, but their sum.
        facts.given[session] = trailer.usage.total_tokens
    failure = state.failure if trailer is None else None
    if failure is not None:
        facts.state = failure.how
        facts.problem = valid_unicode(failure.error) if failure.how == "failed" else ""
    elif trailer is not None or state.outcome != NeedsDecision(session, ()):
        facts.state = OUTCOME_STATES[type(state.outcome).__name__]
    return facts


def _damaged(facts: LogFacts, problem: SessionDamaged) -> LogFacts:
    """Return the facts known of a log that cannot be believed."""
    facts.state = "damaged"
    facts.problem = valid_unicode(f"line {problem.line}: {problem.problem}")
    facts.is_open = not facts.n_lines
    return facts


def _tell_header(facts: LogFacts, content: ParsedLog) -> None:
    header = content.header
    facts.created_at = header.created_at
    facts.operator = valid_unicode(header.operator)
    facts.kind, facts.parents = header.kind, header.parents
    facts.begins_with = tuple(RowRange(part.session, part.start, part.stop) for part in header.rows)
    facts.given = {each.session: each.usage.total_tokens for each in header.given}


def _tell_rows(facts: LogFacts, content: ParsedLog) -> None:
    for index, row in enumerate(content.rows, start=content.state.n_before):
        kind = row.kind_name
        if facts.texts is None and (kind != "user" or facts.title is not None):
            continue
        text = "\n".join(filter(None, _row_texts(row.content)))
        if text and not text.isspace():
            told = RowText(index, kind, valid_unicode(text[:_MAX_CHARS]))
            if facts.title is None and kind == "user":
                facts.title = told
            if facts.texts is not None:
                facts.texts.append(told)


def _tell_entries(facts: LogFacts, entries: Iterable[Entry]) -> None:
    for entry in entries:
        match entry:
            case Operation():
                if entry.session == facts.session and not facts.path:
                    facts.path = valid_unicode(entry.place.path)
                    facts.ordinal, facts.run = entry.place.ordinal, entry.place.run
            case ModelCall():
                facts.calls[entry.id] = _call(entry)
            case ToolRun():
                facts.n_tool_runs += 1
            case _:
                pass


def _row_texts(content: Content) -> Iterator[str | None]:
    """Yield the texts of a row."""
    match content:
        case SystemText(text) | UserText(text):
            yield text
        case AssistantTurn(text, calls):
            yield text
            for call in calls:
                yield f"{call.name} {call.arguments}"
        case ToolFeedback(body=body):
            yield body
        case _:
            pass


def _call(entry: ModelCall) -> IndexedCall:
    evidence, usage = entry.evidence, entry.evidence.usage
    model = evidence.served_model or evidence.requested_model
    cost = evidence.cost
    return IndexedCall(
        id=entry.id,
        at=entry.at,
        model=valid_unicode(model or evidence.provider_kind),
        purpose=entry.purpose,
        status=entry.status,
        prompt_tokens=0 if usage is None else usage.prompt_tokens,
        cached_tokens=evidence.cached_tokens or 0,
        completion_tokens=0 if usage is None else usage.completion_tokens,
        total_tokens=0 if usage is None else usage.total_tokens,
        usd=None if cost is None else cost.usd,
        price=_price(evidence),
    )


def _price(evidence: CallEvidence) -> CallPrice:
    """Return the known cost of a call, as `rath.session.body` tells it."""
    if evidence.cost is not None:
        return "known"
    if evidence.usage is not None:
        return "unpriced"
    return "uncounted" if evidence.was_sent and not was_refused(evidence) else "nothing"
