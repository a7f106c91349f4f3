"""How the answers about tools and files look, and that about the way to the final state."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from rath._core.text import one_line_preview
from rath.backend.abc import SandboxIdentity
from rath.backend.effects import FileEffect
from rath.cli.outline import counted, head, item, room, short
from rath.cli.terminal import say
from rath.session.open_calls import CallState
from rath.session.outcome import Completed
from rath.session.questions import (
    Ancestor,
    BornRow,
    PlacedRun,
    WhatChanged,
    WhereFrom,
    WhereToolsRan,
)
from rath.session.questions.comparison import preview
from rath.session.questions.lineage import sessions_of
from rath.session.record import CHECK_ORIGIN, Decision, ToolRun

__all__ = [
    "brief_changed",
    "brief_origin",
    "brief_where",
    "file_in_words",
    "show_changed",
    "show_origin",
    "show_where",
]


def brief_where(answer: WhereToolsRan) -> None:
    """Show where tools ran in a few lines."""
    states = Counter(each.run.status for each in answer.runs)
    told = ", ".join(f"{count} {state}" for state, count in states.items()) or "none"
    head(f"where: {counted(len(answer.runs), 'tool run')} ({told})")
    for sandbox, count in answer.sandboxes:
        item(f"{_place(sandbox)}: {counted(count, 'run')}")
    _show_untold(answer)


def show_where(answer: WhereToolsRan) -> None:
    """Show where each tool run happened, and how it ended."""
    for each in answer.runs:
        run = each.run
        label = "check" if run.origin == CHECK_ORIGIN else _turn(each.turn)
        head(f"{label} · {run.tool} · {run.status} · {run.duration_ms:.0f} ms")
        for line in _about_run(each):
            item(line)
    _show_untold(answer)
    if not answer.runs:
        head("no tool ran")


def brief_changed(answer: WhatChanged) -> None:
    """Show what changed in a few lines."""
    head(f"changed: {counted(len(answer.files), 'file')}")
    for change in answer.files:
        item(file_in_words(change))
    _show_doubts(answer)


def show_changed(answer: WhatChanged) -> None:
    """Show what changed, by which calls, and the diff."""
    head(f"changed: {counted(len(answer.files), 'file')}")
    for each in answer.steps:
        made, effect = each.change.call, each.change.effect
        by = f"{made.tool} ({made.call_id})" if isinstance(made, ToolRun) else f"a {made.kind}"
        item(f"{_turn(each.turn)} · {file_in_words(effect)} by {by}")
    _show_doubts(answer)
    for line in answer.diff.split("\n")[:-1]:
        say(line)


def brief_origin(answer: WhereFrom) -> None:
    """Show where the final state came from in a few lines."""
    made = Counter(each.by for each in answer.rows)
    told = ", ".join(f"{count} by {by}" for by, count in made.items()) or "none"
    sessions, rows = counted(len(answer.ancestors), "session"), counted(len(answer.rows), "row")
    head(f"origin: {sessions}, {rows} ({told})")
    if answer.ancestors:
        item(_made(answer.ancestors[-1]))


def show_origin(answer: WhereFrom) -> None:
    """Show the sessions on the way, parents first, and where each row was born."""
    head("sessions, parents first:")
    for each in answer.ancestors:
        item(_made(each))
        for line in _details(each):
            item(line, depth=2)
    head("rows:")
    for row in answer.rows:
        item(_born(row))
        for change in row.changes:
            item(f"the hook {change.hook} changed the {change.what}", depth=2)


def file_in_words(change: FileEffect) -> str:
    """Return what became of a file, in a few words."""
    name = f"{change.renamed_from} to " if change.renamed_from else ""
    sure = "" if change.attribution == "exact" else f" ({change.attribution})"
    return f"{change.kind} {name}{change.path}{sure}"


def _about_run(each: PlacedRun) -> Iterator[str]:
    run = each.run
    yield f"in {_place(run.sandbox)}" if run.sandbox is not None else "in no sandbox"
    if run.sandbox is not None:
        yield f"cwd: {run.sandbox.cwd}"
    yield f"call {run.call_id} of {run.origin}, {run.effects_declared}"
    if run.arguments is not None:
        text = json.dumps(dict(run.arguments), ensure_ascii=False, default=str)
        yield f"arguments: {one_line_preview(text, 4 * room(2))}"
    if run.error_kind is not None:
        yield f"error: {run.error_kind}"
    if run.exit_code is not None:
        signal = "" if run.signal is None else f", signal {run.signal}"
        yield f"exit code {run.exit_code}{signal}"
    if run.decision is not None:
        yield f"allowed by decision {run.decision}"


_UNTOLD: dict[CallState, str] = {
    "asked": "it was not made",
    "suspended": "it stopped at a question, and has no result yet",
    "begun": "no result; whether it took effect is not known",
    "known": "its result was read by no model yet",
}


def _show_untold(answer: WhereToolsRan) -> None:
    for each in answer.untold:
        call = f"{each.call.name} ({each.call.id})"
        item(f"{_turn(each.turn)} · {call}: {_UNTOLD[each.state]}")


def _show_doubts(answer: WhatChanged) -> None:
    for told in answer.unsure:
        effect = told.change.effect
        item(f"unsure: {effect.path} changed while a call ran, which need not have done it")
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


def _made(each: Ancestor) -> str:
    born = f", {each.n_born} born here" if each.n_born else ""
    came = f" from {', '.join(map(short, each.parents))}" if each.parents else ""
    made = f"{short(each.session)} · {each.operator or 'unknown'}{came}"
    return f"{made} · {counted(each.n_rows, 'row')}{born}"


def _details(each: Ancestor) -> Iterator[str]:
    made = each.operation
    if made is not None and made.place.path:
        yield f"made in {made.place.path}, operation {made.place.ordinal}"
    if made is not None and made.workspace not in (None, "share"):
        yield f"with a workspace of its own: {made.workspace}"
    if each.summary is not None:
        yield f"in place of {counted(len(each.summary.replaced), 'row')}"
    if each.undone is not None:
        yield f"before {each.undone.tool} ({each.undone.call_id}), which is undone"
    if each.selections:
        yield f"{counted(len(each.selections), 'selection')} by a model"
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


def _born(row: BornRow) -> str:
    where = "?" if row.born is None else f"{short(row.born.session)}:{row.born.index}"
    turn = "" if row.turn is None else f" · {_turn(row.turn)}"
    label = f"{row.index} · born {where}{turn} · {row.by}: "
    return label + preview(row.row, max(24, 2 * room(1) - len(label)))


def _place(sandbox: SandboxIdentity) -> str:
    layer = "" if sandbox.layer is None else f", {sandbox.layer}"
    named = "" if sandbox.sandbox_id in ("", sandbox.root) else f" {sandbox.sandbox_id}"
    return f"{sandbox.backend}{named} {sandbox.root} ({sandbox.isolation}{layer})"


def _turn(turn: int | None) -> str:
    return "no turn" if turn is None else f"turn {turn}"
