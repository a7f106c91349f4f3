"""The page of an evaluation: runs side by side, scores over time, worst answers first."""

from __future__ import annotations

import html
import json
from collections import defaultdict
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from rath._core.dataclasses import dataclass
from rath._core.files import atomic_write_text
from rath._core.text import valid_unicode
from rath.errors import PersistenceError
from rath.eval.evaluation import Evaluation, scores_in
from rath.eval.report import ScoredItem, example_means
from rath.jobs.record import load_job, starts_of
from rath.session.content import AssistantTurn, SystemText, ToolFeedback, UserText
from rath.session.loading import load
from rath.session.record import ItemRun, Verdict
from rath.session.session import Session
from rath.session.view.page import document
from rath.session.view.page_data import CutText, cut_text, harmless

__all__ = ["EVALUATION_FILES", "EvaluationPageLimits", "write_page"]

STYLES = ("base.css", "evaluation.css")
SCRIPTS = ("evaluation.js",)
TEMPLATE = "evaluation.html"
EVALUATION_FILES = (*STYLES, *SCRIPTS, TEMPLATE)

Json = dict[str, Any]
Run = tuple[str, int]
"""Key of an example, and epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPageLimits:
    """Sizes above which the page shows a part; guesses that keep a page below 20 MB."""

    max_chars: int = 4_000
    """Of one text."""

    max_rows: int = 60
    """Rows of a session, the last ones."""

    max_sessions: int = 300
    """Sessions whose rows are shown, those of the worst scores."""


def write_page(
    evaluation: Evaluation,
    path: str | PathLike[str],
    others: Sequence[Evaluation] = (),
    *,
    limits: EvaluationPageLimits | None = None,
) -> Path:
    """Write the page of an evaluation, beside others; one file that needs no network.

    Args:
        evaluation: The one whose answers are shown.
        path: The file, which is replaced.
        others: Evaluations to compare it with.
        limits: How much is shown of what is long.

    Raises:
        OSError: The file cannot be written.
    """
    by_name = {each.job: each for each in (evaluation, *others)}
    runs = sorted(by_name.values(), key=lambda each: _started(each) or 0)
    data = {
        "name": evaluation.job,
        "scorers": list(dict.fromkeys(each.scorer for run in runs for each in run.items)),
        "runs": [_run(each) for each in runs],
        "tags": sorted({tag for each in evaluation.items for tag in each.tags}),
        "items": _answers(evaluation, runs, limits or EvaluationPageLimits()),
    }
    text = valid_unicode(json.dumps(data, ensure_ascii=False, allow_nan=False))
    parts = {
        "title": html.escape(valid_unicode(f"Evaluation {evaluation.job}")),
        "data": harmless(text),
    }
    target = Path(path)
    atomic_write_text(target, document(TEMPLATE, STYLES, SCRIPTS, parts))
    return target


def _started(evaluation: Evaluation) -> int | None:
    """Return when it was first started, in milliseconds since 1970."""
    recorded = load_job(evaluation.store, evaluation.job)
    starts = [] if recorded is None else starts_of(recorded.record)
    return int(starts[0].at.timestamp() * 1000) if starts else None


def _run(evaluation: Evaluation) -> Json:
    report = evaluation.report()
    counts: dict[str, int] = defaultdict(int)
    for each in evaluation.runs:
        counts[each.status] += 1
    return {
        "name": evaluation.job,
        "at": _started(evaluation),
        "counts": dict(counts),
        "tokens": report.tokens,
        "usd": f"{report.usd:f}",
        "seconds": report.seconds,
        "scores": {
            each.scorer: {
                "mean": each.mean,
                "interval": None if each.mean is None else [each.low, each.high],
                "errors": each.n_errors,
                "pass_at": list(each.pass_at.values()),
            }
            for each in report.scores
        },
    }


def _answers(
    evaluation: Evaluation, runs: Sequence[Evaluation], limits: EvaluationPageLimits
) -> list[Json]:
    """Return the answers, the worst first."""
    means = {run.job: _means(run) for run in runs}
    scores: dict[Run, list[ScoredItem]] = defaultdict(list)
    for each in evaluation.items:
        scores[each.key, each.epoch].append(each)
    ordered = sorted(evaluation.runs, key=lambda run: _goodness(run, scores[run.key, run.epoch]))
    made: list[Json] = []
    for at, run in enumerate(ordered):
        of_run = scores[run.key, run.epoch]
        session = _session(evaluation, run) if at < limits.max_sessions else None
        answer = _answer(run, of_run, limits)
        answer["runs"] = {
            job: {scorer: values[run.key] for scorer, values in of.items() if run.key in values}
            for job, of in means.items()
        }
        if session is not None:
            answer["rows"] = _rows(session, limits)
            answer["history"] = [
                *(_verdict(each, limits) for each in scores_in(session)),
                *(_score(each, limits) for each in of_run if each.error is not None),
            ]
            answer["question"] = _question(answer["rows"])
        made.append(answer)
    return made


def _means(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    of_scorer: dict[str, list[ScoredItem]] = defaultdict(list)
    for each in evaluation.items:
        of_scorer[each.scorer].append(each)
    return {scorer: example_means(items) for scorer, items in of_scorer.items()}


def _goodness(run: ItemRun, scores: Sequence[ScoredItem]) -> tuple[int, float]:
    """Order answers: without a run, without a score, and then by the mean of their scores."""
    values = [each.value for each in scores if each.value is not None]
    if run.status != "done":
        return 0, 0.0
    if not values or any(each.error for each in scores):
        return 1, sum(values)
    return 2, sum(values) / len(values)


def _session(evaluation: Evaluation, run: ItemRun) -> Session | None:
    if run.session is None:
        return None
    try:
        return load(evaluation.store, run.session).session
    except PersistenceError:
        return None  # removed since; its scores are known


def _answer(run: ItemRun, scores: Sequence[ScoredItem], limits: EvaluationPageLimits) -> Json:
    expected = next((each.expected for each in scores if each.expected is not None), None)
    return {
        "key": run.key,
        "epoch": run.epoch,
        "state": run.status,
        "error": _cut(run.error, limits),
        "session": None if run.session is None else str(run.session),
        "target": _cut(expected, limits),
        "tags": list(dict.fromkeys(tag for each in scores for tag in each.tags)),
        "usd": None if run.usd is None else f"{run.usd:f}",
        "seconds": float(run.seconds),
        "scores": {each.scorer: _score(each, limits) for each in scores},
    }


def _score(score: ScoredItem, limits: EvaluationPageLimits) -> Json:
    return {
        "name": score.scorer,
        "value": score.value,
        "passed": score.passed,
        "error": _cut(score.error, limits),
        "judge": "",
        "report": cut_text(score.reasons, limits.max_chars),
        "at": None,
        "sessions": [],
    }


def _verdict(verdict: Verdict, limits: EvaluationPageLimits) -> Json:
    return {
        "name": verdict.name,
        "value": verdict.score,
        "passed": verdict.passed,
        "error": None,
        "judge": cut_text(verdict.judge, limits.max_chars),
        "report": cut_text(verdict.report, limits.max_chars),
        "at": int(verdict.at.timestamp() * 1000),
        "sessions": [str(each) for each in verdict.sessions],
    }


def _cut(text: str | None, limits: EvaluationPageLimits) -> CutText | None:
    return None if text is None else cut_text(text, limits.max_chars)


def _rows(session: Session, limits: EvaluationPageLimits) -> list[Json]:
    made = [_row(row.content, limits) for row in session.chunk_table]
    left_out = len(made) - limits.max_rows
    if left_out <= 0:
        return made
    note: Json = {"kind": "note", "text": f"{left_out} earlier rows are left out"}
    return [note, *made[left_out:]]


def _row(content: object, limits: EvaluationPageLimits) -> Json:
    match content:
        case UserText():
            return {"kind": "user", "text": cut_text(content.text, limits.max_chars)}
        case SystemText():
            return {"kind": "system", "text": cut_text(content.text, limits.max_chars)}
        case AssistantTurn():
            calls = [
                {"name": each.name, "args": cut_text(each.arguments, limits.max_chars)}
                for each in content.calls
            ]
            text = cut_text(content.text or "", limits.max_chars)
            return {"kind": "assistant", "text": text, "calls": calls}
        case ToolFeedback():
            text = cut_text(content.body, limits.max_chars)
            return {"kind": "tool", "name": content.name, "text": text}
        case _:
            return {"kind": "note", "text": "a row of another kind"}


def _question(rows: Sequence[Json]) -> CutText:
    return next((each["text"] for each in rows if each["kind"] == "user"), "")
