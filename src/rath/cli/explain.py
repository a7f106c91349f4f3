"""`rath explain`: the five questions, answered from a stored session alone."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, cast

import typer

from rath._core.text import one_line_preview, short_id
from rath.backend.abc import SandboxIdentity
from rath.backend.effects import FileEffect
from rath.cli.render import UNPRICED, count_of, head, item, outline_room
from rath.cli.stores import SessionText, StoreUrl, load_sessions
from rath.cli.terminal import AsJson, EvidenceMissing, NoPager, misuse_on, paged, say, say_json
from rath.llm.evidence import CallEvidence
from rath.session import questions
from rath.session.body import CostSum
from rath.session.outcome import Completed
from rath.session.questions import Question
from rath.session.questions.comparison import preview
from rath.session.questions.encode import encode_answer
from rath.session.questions.lineage import sessions_of
from rath.session.record import CHECK_ORIGIN, Decision, JobStart, ModelCall, ToolRun
from rath.session.session import Session

_PROOFS = {
    "same": "proved: rendered again it has the recorded sha256",
    "different": "NOT PROVED",
    "none": "not proved",
}
_WITHOUT_RESULT = {
    "asked": "it was not made",
    "suspended": "it stopped at a question, and has no result yet",
    "begun": "no result; whether it took effect is not known",
    "known": "its result was read by no model yet",
}
"""State of a call of a tool that has no result to its end as it is shown."""


def explain(
    session: SessionText,
    seen: Annotated[bool, typer.Option("--seen", help="What did the model see?")] = False,
    provider: Annotated[bool, typer.Option("--provider", help="Which provider answered?")] = False,
    where: Annotated[bool, typer.Option("--where", help="Where did tools run?")] = False,
    changed: Annotated[bool, typer.Option("--changed", help="What changed?")] = False,
    origin: Annotated[
        bool, typer.Option("--origin", help="Where did the final state come from?")
    ] = False,
    turn: Annotated[
        int | None,
        typer.Option("--turn", metavar="N", help="Only this answer of a model, and its tools."),
    ] = None,
    no_pager: NoPager = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Explain a session by its evidence: requests, models, tools, changes, origin.

    The exit status is 3 where evidence is missing; it is named, and what there is is shown.
    """
    flags = zip(_QUESTIONS, (seen, provider, where, changed, origin), strict=True)
    in_full: list[Question] = [name for name, is_set in flags if is_set]
    with load_sessions(session, store=store) as (found,), paged(is_off=no_pager):
        answers: dict[Question, Any] = {}
        for name in in_full or _QUESTIONS:
            with misuse_on(ValueError):
                answers[name] = _QUESTIONS[name][0](found, turn=turn)
        if as_json:
            encoded: dict[str, Any] = {
                name: encode_answer(answer) for name, answer in answers.items()
            }
            say_json({"session": found.id, **encoded})
        else:
            if not in_full:
                head(f"session {short_id(found.id)}, {count_of(len(found.chunk_table), 'row')}")
                _show_job(found)
            for name, answer in answers.items():
                _QUESTIONS[name][1 if in_full else 2](answer)
    require_evidence([each for answer in answers.values() for each in answer.missing])


def _show_job(session: Session) -> None:
    """Say of the record of a job where the answers of its runs are."""
    start = next((each for each in session.record if isinstance(each, JobStart)), None)
    if start is not None:
        name = shlex.quote(start.name)
        say(
            f"job: {count_of(start.n_items, 'item')}, each with sessions of its own, which these "
            f"answers leave out: rath jobs show {name}, rath ls --job {name}"
        )


def require_evidence(missing: Sequence[questions.Missing]) -> None:
    """End with status 3 where evidence is missing, and name each kind once.

    Raises:
        EvidenceMissing: Some is missing.
    """
    if missing:
        kinds: dict[str, dict[str, None]] = {}
        for each in missing:
            kinds.setdefault(each.reason, {})[each.kind] = None
        named = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in kinds.items())
        raise EvidenceMissing(f"evidence is missing: {named}")


def _in_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _turn(turn: int | None) -> str:
    return "no turn" if turn is None else f"turn {turn}"


def _preview(text: str, n_lines: int) -> str:
    """Return as much of a text as fits into some lines of an outline."""
    return one_line_preview(text, n_lines * outline_room(2))


def _title(turn: int | None, call: ModelCall) -> str:
    model = call.evidence.served_model or call.evidence.requested_model or "?"
    return f"{_turn(turn)} · {call.purpose} · {model}"


def _brief_seen(answer: questions.WhatWasSeen) -> None:
    n_proved = sum(each.proof == "same" for each in answer.calls)
    proved = f"{count_of(n_proved, 'request')} proved"
    head(f"seen: {count_of(len(answer.calls), 'model call')}, {proved}")
    for each in answer.calls:
        if each.proof == "different":
            item(f"{_title(each.turn, each.call)}: {each.problem}")


def _show_seen(answer: questions.WhatWasSeen) -> None:
    """Show what each call saw; of a single turn every message."""
    for each in answer.calls:
        head(_title(each.turn, each.call))
        item(f"request {_PROOFS[each.proof]}" + (f": {each.problem}" if each.problem else ""))
        parts = [f"instructions: {count_of(len(each.head), 'row')}"]
        parts += [] if each.call.seen is None else [count_of(each.call.seen.n_rows, "row")]
        parts += [count_of(len(each.recalled), "note"), count_of(len(each.tools), "tool")]
        parts += [] if each.session is None else [f"for session {short_id(each.session)}"]
        item(", ".join(parts))
        for note in each.recalled:
            score = "" if note.score is None else f" ({note.score:.3g})"
            item(f"note {note.uri or '(no address)'}{score}: {_preview(note.text, 4)}")
        if each.question is not None and each.body is None:
            item(f"question: {_preview(each.question, 2)}")
        item(f"parameters: {_in_json(each.call.evidence.parameters)}")
        if each.body is None:
            for row in each.head:
                item(f"{row.kind_name}: {preview(row, 2 * outline_room(2))}")
        else:
            _show_request(json.loads(each.body))
    if not answer.calls:
        head("no model was asked")


def _show_request(request: Mapping[str, Any]) -> None:
    """Show the messages of a request as they were sent, and the tools by name."""
    for tool in cast("Sequence[Mapping[str, Any]]", request.get("tools") or ()):
        about = cast("Mapping[str, Any]", tool.get("function") or tool)
        text = f"tool {about.get('name')}: {about.get('description') or 'no description'}"
        item(_preview(text, 2))
    system = cast("Sequence[Mapping[str, Any]]", request.get("system") or ())
    messages = [{"role": "system", "content": part.get("text")} for part in system]
    for message in (*messages, *cast("Sequence[Mapping[str, Any]]", request["messages"])):
        item(f"{message.get('role')}:", style="bold")
        content = message.get("content")
        lines = content.split("\n") if isinstance(content, str) else [_in_json(content)]
        for text in lines if content is not None else ():
            say(f"    {text}")
        for call in cast("Sequence[Any]", message.get("tool_calls") or ()):
            item(f"calls {_in_json(call)}", depth=2)


def _brief_provider(answer: questions.WhoAnswered) -> None:
    models = ", ".join(f"{model} ({count})" for model, count in answer.models) or "no model"
    head(f"provider: {models}; {answer.tokens} tokens, {_cost(answer.cost)}")
    evidence = [each.call.evidence for each in answer.calls]
    endpoints = [f"{each.provider_kind} at {each.endpoint or each.adapter}" for each in evidence]
    for endpoint, count in Counter(endpoints).items():
        item(f"{endpoint}: {count_of(count, 'call')}")


def _show_provider(answer: questions.WhoAnswered) -> None:
    for each in answer.calls:
        head(f"{_title(each.turn, each.call)} · {each.call.status}")
        for text in _about_call(each.call.evidence):
            item(text)
    n_calls = count_of(len(answer.calls), "model call")
    head(f"together: {n_calls}, {answer.tokens} tokens, {_cost(answer.cost)}")


def _cost(cost: CostSum) -> str:
    if cost.n_priced == 0 and not cost.is_complete:
        return UNPRICED
    return f"{cost.usd:f} US dollars" + ("" if cost.is_complete else f" + {UNPRICED}")


def _about_call(evidence: CallEvidence) -> Iterator[str]:
    wanted = evidence.requested_model or "no model"
    yield f"model: {evidence.served_model or 'not told'}, asked for {wanted}"
    yield f"provider: {evidence.provider_kind}, {evidence.adapter} {evidence.adapter_version}"
    if evidence.sdk is not None:
        yield f"sdk: {evidence.sdk} {evidence.sdk_version or ''}".rstrip()
    yield f"endpoint: {evidence.endpoint or 'none'}"
    if evidence.origins:
        yield f"settings: {', '.join(f'{name} from {origin}' for name, origin in evidence.origins)}"
    if evidence.credential is not None:
        yield f"key: {evidence.credential}"
    if evidence.fallback_from is not None:
        yield f"in place of {evidence.fallback_from}, which failed"
    for attempt in evidence.attempts:
        if attempt.error is not None or len(evidence.attempts) > 1:
            status = "" if attempt.status is None else f" with status {attempt.status}"
            came = "answered" if attempt.error is None else f"failed{status}"
            wait = f", then waited {attempt.wait:.3g} s" if attempt.wait else ""
            yield f"try {attempt.number}: {came} after {attempt.elapsed_ms:.0f} ms{wait}"
    first = evidence.first_token_ms
    token = "" if first is None else f", first token after {first:.0f} ms"
    start = evidence.started.isoformat(" ", "seconds")
    yield f"time: {evidence.duration_ms:.0f} ms{token}, from {start}"
    usage, cost = evidence.usage, evidence.cost
    if usage is None:
        yield "tokens: not told"
    else:
        price = "" if cost is None else f", {cost.usd:f} US dollars ({cost.source})"
        yield f"tokens: {usage.prompt_tokens} in, {usage.completion_tokens} out{price}"
    if evidence.finish_reason is not None:
        yield f"finished: {evidence.finish_reason}"
    if evidence.error is not None:
        yield f"error: {_preview(evidence.error, 4)}"


def _brief_where(answer: questions.WhereToolsRan) -> None:
    states = Counter(each.run.status for each in answer.runs)
    ends = ", ".join(f"{count} {state}" for state, count in states.items()) or "none"
    head(f"where: {count_of(len(answer.runs), 'tool run')} ({ends})")
    for sandbox, count in answer.sandboxes:
        item(f"{_sandbox(sandbox)}: {count_of(count, 'run')}")
    _show_without_result(answer)


def _show_where(answer: questions.WhereToolsRan) -> None:
    for each in answer.runs:
        label = "check" if each.run.origin == CHECK_ORIGIN else _turn(each.turn)
        head(f"{label} · {each.run.tool} · {each.run.status} · {each.run.duration_ms:.0f} ms")
        for text in _about_run(each.run):
            item(text)
    _show_without_result(answer)
    if not answer.runs:
        head("no tool ran")


def _about_run(run: ToolRun) -> Iterator[str]:
    if run.sandbox is None:
        yield "in no sandbox"
    else:
        yield f"in {_sandbox(run.sandbox)}"
        yield f"cwd: {run.sandbox.cwd}"
    yield f"call {run.call_id} of {run.origin}, {run.effects_declared}"
    if run.arguments is not None:
        yield f"arguments: {_preview(_in_json(dict(run.arguments)), 4)}"
    if run.error_kind is not None:
        yield f"error: {run.error_kind}"
    if run.traceback is not None:
        yield f"raised at {run.traceback.place}"
        yield from run.traceback.text.splitlines()[1:]
    if run.exit_code is not None:
        signal = "" if run.signal is None else f", signal {run.signal}"
        yield f"exit code {run.exit_code}{signal}"
    if run.decision is not None:
        yield f"allowed by decision {run.decision}"


def _sandbox(sandbox: SandboxIdentity) -> str:
    layer = "" if sandbox.layer is None else f", {sandbox.layer}"
    name = "" if sandbox.sandbox_id in ("", sandbox.root) else f" {sandbox.sandbox_id}"
    return f"{sandbox.backend}{name} {sandbox.root} ({sandbox.isolation}{layer})"


def _show_without_result(answer: questions.WhereToolsRan) -> None:
    for each in answer.untold:
        call = f"{each.call.name} ({each.call.id})"
        item(f"{_turn(each.turn)} · {call}: {_WITHOUT_RESULT[each.state]}")


def _brief_changed(answer: questions.WhatChanged) -> None:
    head(f"changed: {count_of(len(answer.files), 'file')}")
    for change in answer.files:
        item(effect_text(change))
    _show_doubts(answer)


def _show_changed(answer: questions.WhatChanged) -> None:
    head(f"changed: {count_of(len(answer.files), 'file')}")
    for each in answer.steps:
        call, effect = each.change.call, each.change.effect
        by = f"{call.tool} ({call.call_id})" if isinstance(call, ToolRun) else f"a {call.kind}"
        item(f"{_turn(each.turn)} · {effect_text(effect)} by {by}")
    _show_doubts(answer)
    for text in answer.diff.split("\n")[:-1]:
        say(text)


def effect_text(effect: FileEffect) -> str:
    """Return the change of a file in a few words."""
    name = f"{effect.renamed_from} to " if effect.renamed_from else ""
    sure = "" if effect.attribution == "exact" else f" ({effect.attribution})"
    return f"{effect.kind} {name}{effect.path}{sure}"


def _show_doubts(answer: questions.WhatChanged) -> None:
    for doubt in answer.unsure:
        path = doubt.change.effect.path
        item(f"unsure: {path} changed while a call ran, which need not have done it")
    for gap in answer.gaps:
        item(f"gap: {gap.call.tool} ({gap.call.call_id}): {gap.reason}")
    for conflict in answer.conflicts:
        item(f"conflict: {conflict.path} ({conflict.kind}); the first side's was kept")
    for reason in answer.unknown:
        item(f"not known: {reason}")
    for status in answer.verdicts:
        verdict = status.verdict
        came = "passed" if verdict.passed else "failed"
        stale = f"; stale: {status.why}" if status.is_stale else ""
        item(f"check {verdict.name}: {came} by {verdict.judge!r}{stale}")


def _brief_origin(answer: questions.WhereFrom) -> None:
    makers = Counter(each.by for each in answer.rows)
    origins = ", ".join(f"{count} by {by}" for by, count in makers.items()) or "none"
    sessions, rows = count_of(len(answer.ancestors), "session"), count_of(len(answer.rows), "row")
    head(f"origin: {sessions}, {rows} ({origins})")
    if answer.ancestors:
        item(_ancestor(answer.ancestors[-1]))


def _show_origin(answer: questions.WhereFrom) -> None:
    """Show the sessions on the way, parents first, and where each row was born."""
    head("sessions, parents first:")
    for each in answer.ancestors:
        item(_ancestor(each))
        for text in _about_ancestor(each):
            item(text, depth=2)
    head("rows:")
    for row in answer.rows:
        where = "?" if row.born is None else f"{short_id(row.born.session)}:{row.born.index}"
        turn = "" if row.turn is None else f" · {_turn(row.turn)}"
        label = f"{row.index} · born {where}{turn} · {row.by}: "
        item(label + preview(row.row, max(24, 2 * outline_room(1) - len(label))))
        for change in row.changes:
            item(f"the hook {change.hook} changed the {change.what}", depth=2)


def _ancestor(each: questions.Ancestor) -> str:
    born = f", {each.n_born} born here" if each.n_born else ""
    came = f" from {', '.join(map(short_id, each.parents))}" if each.parents else ""
    name = f"{short_id(each.session)} · {each.operator or 'unknown'}{came}"
    return f"{name} · {count_of(each.n_rows, 'row')}{born}"


def _about_ancestor(each: questions.Ancestor) -> Iterator[str]:
    operation = each.operation
    if operation is not None and operation.place.path:
        yield f"made in {operation.place.path}, operation {operation.place.ordinal}"
    if operation is not None and operation.place.state is not None:
        yield f"state of the workflow: sha256 {operation.place.state}"
        for row in operation.head[:1]:
            yield f"prompt: {preview(row, outline_room(3))}"
    if operation is not None and operation.workspace not in (None, "share"):
        yield f"with a workspace of its own: {operation.workspace}"
    if each.summary is not None:
        yield f"in place of {count_of(len(each.summary.replaced), 'row')}"
    if each.undone is not None:
        yield f"before {each.undone.tool} ({each.undone.call_id}), which is undone"
    if each.selections:
        yield f"{count_of(len(each.selections), 'selection')} by a model"
    for wait in each.waits:
        if isinstance(wait, Decision):
            yield f"decided by {wait.by}: {wait.choice} for {wait.call_id or 'the run'}"
        else:
            yield f"waited for {wait.reason}: {wait.question or ', '.join(wait.calls)}"
    for change in each.changes:
        before, after = sessions_of(change)
        yield f"{change.what}: the hook {change.hook} gave {after[:8]} in place of {before[:8]}"
    if each.outcome is not None and not isinstance(each.outcome, Completed):
        yield f"ended as {each.outcome}"


_QUESTIONS: Mapping[Question, tuple[Callable[..., Any], ...]] = {
    "seen": (questions.what_was_seen, _show_seen, _brief_seen),
    "provider": (questions.who_answered, _show_provider, _brief_provider),
    "where": (questions.where_tools_ran, _show_where, _brief_where),
    "changed": (questions.what_changed, _show_changed, _brief_changed),
    "origin": (questions.where_from, _show_origin, _brief_origin),
}
"""How each question is answered, and shown in full and in brief."""
