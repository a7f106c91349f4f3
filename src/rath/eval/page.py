"""The page of jobs and evaluations: their numbers, each run, and the session of each."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any
from uuid import UUID

from rath._core.dataclasses import dataclass
from rath._core.files import atomic_write_text
from rath._core.text import valid_unicode
from rath.errors import JobError, PersistenceError
from rath.eval.evaluation import Evaluation
from rath.eval.report import ScoredItem, example_means
from rath.jobs.record import load_job, starts_of
from rath.session.content import UserText
from rath.session.loading import load
from rath.session.record import ItemRun
from rath.session.session import Session
from rath.session.view.page import page_html
from rath.session.view.page_data import CutText, PageEncoder, PageLimits, cut_text, nodes_of

__all__ = ["EvaluationPageLimits", "write_page"]

Json = dict[str, Any]
Run = tuple[str, int]
"""Key of an example, and epoch."""

MAX_QUESTION = 300
"""Characters of an input in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPageLimits:
    """Sizes above which the page shows a part; guesses that keep a page below 20 MB."""

    max_chars: int = 4_000
    """Of one text."""

    max_rows: int = 20_000
    """Rows of all sessions together; a session that would go beyond is left out."""

    max_sessions: int = 300
    """Runs whose sessions are on the page, those of the worst scores."""


def write_page(
    evaluation: Evaluation,
    path: str | PathLike[str],
    others: Sequence[Evaluation] = (),
    *,
    limits: EvaluationPageLimits | None = None,
) -> Path:
    """Write the page of an evaluation or a job, beside others; one file that needs no network.

    It lists the runs with scores, cost, tokens and time; a run opens its session, with all its
    rows and what they rest on, alone or beside the same run of the evaluation before.

    Args:
        evaluation: The one whose runs are listed. `load_evaluation` gives that of a job, too.
        path: The file, which is replaced.
        others: Evaluations to compare it with.
        limits: How much is shown of what is long.

    Raises:
        JobError: It is not in its store any more.
        OSError: The file cannot be written.
    """
    chosen = limits or EvaluationPageLimits()
    by_name = {each.job: each for each in (evaluation, *others)}
    evaluations = sorted(by_name.values(), key=lambda each: _started(each) or 0)
    runs = _worst_first(evaluation)
    sessions = _Sessions(evaluations, chosen)
    shown = [sessions.of(run.key, run.epoch) for run in runs[: chosen.max_sessions]]
    record = load_job(evaluation.store, evaluation.job)
    if record is None:
        raise JobError(f"there is no job {evaluation.job!r} in {evaluation.store.where}")
    heads = [record, *(each for found in shown for each in found.values())]
    page_limits = PageLimits(max_chars=chosen.max_chars, max_diff_chars=chosen.max_chars)
    data = PageEncoder(page_limits).encode(nodes_of(each.core.as_parent() for each in heads))
    board = {
        "name": evaluation.job,
        "scorers": list(dict.fromkeys(each.scorer for run in evaluations for each in run.items)),
        "runs": [_run(each) for each in evaluations],
        "tags": sorted({tag for each in evaluation.items for tag in each.tags}),
        "items": _items(evaluation, runs, evaluations, shown, chosen),
    }
    target = Path(path)
    noun = "Evaluation" if board["scorers"] else "Job"
    page = page_html(
        data,
        [record.core.as_parent()],
        title=f"{noun} {evaluation.job}",
        board=valid_unicode(json.dumps(board, ensure_ascii=False, allow_nan=False)),
    )
    atomic_write_text(target, page)
    return target


class _Sessions:
    """The sessions of a run in several evaluations, while the page has room for them."""

    def __init__(self, evaluations: Sequence[Evaluation], limits: EvaluationPageLimits) -> None:
        self._evaluations = evaluations
        self._n_rows_left = limits.max_rows
        self._runs = {
            each.job: {(run.key, run.epoch): run for run in each.runs} for each in evaluations
        }

    def of(self, key: str, epoch: int) -> Mapping[str, Session]:
        """Return the sessions of a run, by the names of the evaluations that have one."""
        found: dict[str, Session] = {}
        for each in self._evaluations:
            run = self._runs[each.job].get((key, epoch))
            session = None if run is None else _session(each, run)
            if session is None or len(session.chunk_table) > self._n_rows_left:
                continue
            self._n_rows_left -= len(session.chunk_table)
            found[each.job] = session
        return found


def _started(evaluation: Evaluation) -> int | None:
    """Return when it was first started, in milliseconds since 1970."""
    recorded = load_job(evaluation.store, evaluation.job)
    starts = [] if recorded is None else starts_of(recorded.record)
    return int(starts[0].at.timestamp() * 1000) if starts else None


def _run(evaluation: Evaluation) -> Json:
    report = evaluation.report()
    costs = [*(each.usd for each in evaluation.runs), *(each.usd for each in evaluation.items)]
    counts: dict[str, int] = defaultdict(int)
    for each in evaluation.runs:
        counts[each.status] += 1
    return {
        "name": evaluation.job,
        "at": _started(evaluation),
        "counts": dict(counts),
        "tokens": report.tokens,
        "usd": f"{report.usd:f}" if any(each is not None for each in costs) else None,
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


def _worst_first(evaluation: Evaluation) -> list[ItemRun]:
    """Return the runs: without an answer, without a score, and then by the mean of their scores."""
    scores = _by_run(evaluation.items)

    def goodness(run: ItemRun) -> tuple[int, float]:
        of_run = scores[run.key, run.epoch]
        values = [each.value for each in of_run if each.value is not None]
        if run.status != "done":
            return 0, 0.0
        if not values or any(each.error for each in of_run):
            return 1, sum(values)
        return 2, sum(values) / len(values)

    return sorted(evaluation.runs, key=goodness)


def _by_run(items: Iterable[ScoredItem]) -> dict[Run, list[ScoredItem]]:
    found: dict[Run, list[ScoredItem]] = defaultdict(list)
    for each in items:
        found[each.key, each.epoch].append(each)
    return found


def _items(
    evaluation: Evaluation,
    runs: Sequence[ItemRun],
    evaluations: Sequence[Evaluation],
    shown: Sequence[Mapping[str, Session]],
    limits: EvaluationPageLimits,
) -> list[Json]:
    """Return the lines of the table."""
    means = {each.job: _means(each) for each in evaluations}
    scores = _by_run(evaluation.items)
    made: list[Json] = []
    for at, run in enumerate(runs):
        sessions: Mapping[str, Session] = shown[at] if at < len(shown) else {}
        made.append(
            {
                **_item(run, scores[run.key, run.epoch], limits),
                "question": _question(sessions.values()),
                "sessions": {job: str(session.id) for job, session in sessions.items()},
                "runs": {
                    job: {name: values[run.key] for name, values in of.items() if run.key in values}
                    for job, of in means.items()
                },
            }
        )
    return made


def _means(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    of_scorer: dict[str, list[ScoredItem]] = defaultdict(list)
    for each in evaluation.items:
        of_scorer[each.scorer].append(each)
    return {scorer: example_means(items) for scorer, items in of_scorer.items()}


def _session(evaluation: Evaluation, run: ItemRun) -> Session | None:
    if run.session is None:
        return None
    try:
        return load(evaluation.store, run.session).session
    except PersistenceError:
        return None  # removed since; its scores are known


def _item(run: ItemRun, scores: Sequence[ScoredItem], limits: EvaluationPageLimits) -> Json:
    expected = next((each.expected for each in scores if each.expected is not None), None)
    return {
        "key": run.key,
        "epoch": run.epoch,
        "state": run.status,
        "error": _cut(run.error, limits),
        "session": _text_of(run.session),
        "target": _cut(expected, limits),
        "tags": list(dict.fromkeys(tag for each in scores for tag in each.tags)),
        "usd": None if run.usd is None else f"{run.usd:f}",
        "tokens": None if run.usage is None else run.usage.total_tokens,
        "seconds": float(run.seconds),
        "scores": {
            each.scorer: {
                "value": each.value,
                "passed": each.passed,
                "error": _cut(each.error, limits),
                "report": cut_text(each.reasons, limits.max_chars),
            }
            for each in scores
        },
    }


def _text_of(session: UUID | None) -> str | None:
    return None if session is None else str(session)


def _cut(text: str | None, limits: EvaluationPageLimits) -> CutText | None:
    return None if text is None else cut_text(text, limits.max_chars)


def _question(sessions: Iterable[Session]) -> CutText:
    """Return what the user said first."""
    texts = (
        row.content.text
        for session in sessions
        for row in session.chunk_table
        if isinstance(row.content, UserText)
    )
    return cut_text(next(texts, ""), MAX_QUESTION)
