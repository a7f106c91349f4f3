"""How the answers about model calls look: what the models saw, and which of them answered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from rath._core.text import one_line_preview
from rath.cli.outline import counted, head, item, room, short
from rath.cli.terminal import say
from rath.llm.evidence import CallEvidence
from rath.session.body import CostSum
from rath.session.questions import (
    AnsweredCall,
    SeenCall,
    WhatWasSeen,
    WhoAnswered,
)
from rath.session.questions.comparison import preview
from rath.session.record import ModelCall

__all__ = ["brief_provider", "brief_seen", "cost_in_words", "show_provider", "show_seen"]

_PROOFS = {
    "same": "proved: rendered again it has the recorded sha256",
    "different": "NOT PROVED",
    "none": "not proved",
}


def brief_seen(answer: WhatWasSeen) -> None:
    """Show what was seen in a few lines."""
    proofs = Counter(each.proof for each in answer.calls)
    head(f"seen: {counted(len(answer.calls), 'model call')}, {proofs['same']} requests proved")
    for each in answer.calls:
        if each.proof == "different":
            item(f"{_title(each.turn, each.call)}: {each.problem}")


def show_seen(answer: WhatWasSeen) -> None:
    """Show what each call saw; of a single turn every message."""
    for each in answer.calls:
        head(_title(each.turn, each.call))
        item(f"request {_PROOFS[each.proof]}" + (f": {each.problem}" if each.problem else ""))
        item(", ".join(_parts(each)))
        for note in each.recalled:
            score = "" if note.score is None else f" ({note.score:.3g})"
            label = f"note {note.uri or '(no address)'}{score}: "
            item(label + one_line_preview(note.text, 4 * room(2)))
        if each.question is not None and each.body is None:
            item(f"question: {one_line_preview(each.question, 2 * room(2))}")
        item(f"parameters: {_in_json(each.call.evidence.parameters)}")
        if each.body is None:
            for row in each.head:
                item(f"{row.kind_name}: {preview(row, 2 * room(2))}")
        else:
            _show_request(json.loads(each.body))
    if not answer.calls:
        head("no model was asked")


def brief_provider(answer: WhoAnswered) -> None:
    """Show who answered in a few lines."""
    models = ", ".join(f"{model} ({count})" for model, count in answer.models) or "no model"
    head(f"provider: {models}; {answer.tokens} tokens, {cost_in_words(answer.cost)}")
    for endpoint, count in Counter(map(_asked, answer.calls)).items():
        item(f"{endpoint}: {counted(count, 'call')}")


def show_provider(answer: WhoAnswered) -> None:
    """Show who answered each call."""
    for each in answer.calls:
        head(f"{_title(each.turn, each.call)} · {each.call.status}")
        for line in _about(each):
            item(line)
    cost = cost_in_words(answer.cost)
    head(f"together: {counted(len(answer.calls), 'model call')}, {answer.tokens} tokens, {cost}")


def cost_in_words(cost: CostSum) -> str:
    """Return what calls cost, as far as it is known."""
    if cost.n_priced == 0 and not cost.is_complete:
        return "cost not known"
    return f"{cost.usd:f} US dollars" + ("" if cost.is_complete else " and more")


def _title(turn: int | None, call: ModelCall) -> str:
    label = "no turn" if turn is None else f"turn {turn}"
    model = call.evidence.served_model or call.evidence.requested_model or "?"
    return f"{label} · {call.purpose} · {model}"


def _parts(each: SeenCall) -> Iterator[str]:
    seen = each.call.seen
    yield f"instructions: {counted(len(each.head), 'row')}"
    if seen is not None:
        yield counted(seen.n_rows, "row")
    yield f"{counted(len(each.recalled), 'note')}"
    yield counted(len(each.tools), "tool")
    if each.session is not None:
        yield f"for session {short(each.session)}"


def _show_request(request: Mapping[str, Any]) -> None:
    """Show the messages of a request as they were sent, and the tools by name."""
    for tool in cast("Sequence[Mapping[str, Any]]", request.get("tools") or ()):
        about = cast("Mapping[str, Any]", tool.get("function") or tool)
        told = f"tool {about.get('name')}: {about.get('description') or 'no description'}"
        item(one_line_preview(told, 2 * room(2)))
    for part in cast("Sequence[Mapping[str, Any]]", request.get("system") or ()):
        _show_text("system", part.get("text"))
    for message in cast("Sequence[Mapping[str, Any]]", request["messages"]):
        _show_text(str(message.get("role")), message.get("content"))
        for call in cast("Sequence[Any]", message.get("tool_calls") or ()):
            item(f"calls {_in_json(call)}", depth=2)


def _show_text(role: str, content: object) -> None:
    item(f"{role}:", style="bold")
    lines = content.split("\n") if isinstance(content, str) else [_in_json(content)]
    for line in lines if content is not None else ():
        say(f"    {line}")


def _asked(each: AnsweredCall) -> str:
    evidence = each.call.evidence
    where = evidence.endpoint or evidence.adapter
    return f"{evidence.provider_kind} at {where}"


def _about(each: AnsweredCall) -> Iterator[str]:
    evidence = each.call.evidence
    asked = evidence.requested_model or "no model"
    yield f"model: {evidence.served_model or 'not told'}, asked for {asked}"
    yield f"provider: {evidence.provider_kind}, {evidence.adapter} {evidence.adapter_version}"
    if evidence.sdk is not None:
        yield f"sdk: {evidence.sdk} {evidence.sdk_version or ''}".rstrip()
    yield f"endpoint: {evidence.endpoint or 'none'}"
    if evidence.origins:
        told = ", ".join(f"{name} from {origin}" for name, origin in evidence.origins)
        yield f"settings: {told}"
    if evidence.credential is not None:
        yield f"key: {evidence.credential}"
    if evidence.fallback_from is not None:
        yield f"in place of {evidence.fallback_from}, which failed"
    yield from _attempts(evidence)
    yield _time(evidence)
    yield _usage(evidence)
    if evidence.finish_reason is not None:
        yield f"finished: {evidence.finish_reason}"
    if evidence.error is not None:
        yield f"error: {one_line_preview(evidence.error, 4 * room(2))}"


def _attempts(evidence: CallEvidence) -> Iterator[str]:
    for attempt in evidence.attempts:
        if attempt.error is None and len(evidence.attempts) == 1:
            continue
        status = "" if attempt.status is None else f" with status {attempt.status}"
        came = "answered" if attempt.error is None else f"failed{status}"
        waited = f", then waited {attempt.wait:.3g} s" if attempt.wait else ""
        yield f"try {attempt.number}: {came} after {attempt.elapsed_ms:.0f} ms{waited}"


def _time(evidence: CallEvidence) -> str:
    first = evidence.first_token_ms
    begun = "" if first is None else f", first token after {first:.0f} ms"
    started = evidence.started.isoformat(" ", "seconds")
    return f"time: {evidence.duration_ms:.0f} ms{begun}, from {started}"


def _usage(evidence: CallEvidence) -> str:
    usage, cost = evidence.usage, evidence.cost
    if usage is None:
        return "tokens: not told"
    told = f"tokens: {usage.prompt_tokens} in, {usage.completion_tokens} out"
    return told + ("" if cost is None else f", {cost.usd:f} US dollars ({cost.source})")


def _in_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
