"""Reports of evaluations: means with intervals, pass@k, and the change since another one."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from statistics import fmean
from typing import Any
from uuid import UUID

from rath._core import html
from rath._core.dataclasses import dataclass
from rath._core.text import visible

__all__ = ["Comparison", "Report", "ScoreSummary", "ScoredItem", "bootstrap_interval", "pass_at_k"]

RESAMPLES = 1000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class ScoredItem:
    """One score of one run of an example, or why there is none."""

    key: str
    """Of the example."""

    epoch: int
    scorer: str
    session: UUID | None
    value: float | None
    """In [0, 1]; None where there is an error."""

    passed: bool = False
    reasons: str = ""
    usd: Decimal | None = None
    error: str | None = None
    """The error of the scorer."""

    tags: tuple[str, ...] = ()
    expected: str | None = None
    """The expected answer, where the evaluation knows it."""


@dataclass(frozen=True, slots=True)
class ScoreSummary:
    """Summary of the scores of one scorer."""

    scorer: str
    mean: float | None
    """Mean over the examples of the mean over their epochs; None where there is no score."""

    low: float | None
    """Lower end of the 95 % interval of the mean, by bootstrap over the examples."""

    high: float | None
    n_scores: int
    n_errors: int
    """Scores that are missing since the scorer raised; they count as no zero."""

    pass_at: Mapping[int, float]
    """By k: the chance that at least one of k runs of an example passes, see `pass_at_k`."""

    by_tag: Mapping[str, float]
    """Mean by tag of the examples."""


@dataclass(frozen=True, slots=True)
class Report:
    """Results of an evaluation; `print` it."""

    job: str
    scores: tuple[ScoreSummary, ...]
    n_examples: int
    n_runs: int
    n_failed: int
    """Runs that gave no answer; they have no scores."""

    tokens: int
    usd: Decimal
    """US dollars of all runs and judges whose price is known."""

    seconds: float
    """Seconds that all runs took, one after the other."""

    first_errors: tuple[str, ...] = ()
    """Errors of runs and scorers, a few."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {
            "job": self.job,
            "scores": [
                {
                    "scorer": each.scorer,
                    "mean": each.mean,
                    "interval": [each.low, each.high],
                    "n_scores": each.n_scores,
                    "n_errors": each.n_errors,
                    "pass_at": {str(k): value for k, value in each.pass_at.items()},
                    "by_tag": dict(each.by_tag),
                }
                for each in self.scores
            ],
            "n_examples": self.n_examples,
            "n_runs": self.n_runs,
            "n_failed": self.n_failed,
            "tokens": self.tokens,
            "usd": f"{self.usd:f}",
            "seconds": self.seconds,
            "errors": list(self.first_errors),
        }

    def __str__(self) -> str:
        lines = [
            f"evaluation {self.job}: {self.n_examples} examples, {self.n_runs} runs, "
            f"{self.n_failed} failed",
            f"{self.tokens:,} tokens, {self.usd:f} US dollars, {self.seconds:.1f} s of runs",
        ]
        width = max([len(each.scorer) for each in self.scores], default=0)
        for each in self.scores:
            lines.append(f"{each.scorer:<{width}}  {_mean_text(each)}")
            lines += [f"{'':<{width}}    {tag}: {mean:.3f}" for tag, mean in each.by_tag.items()]
        lines += [f"error: {each}" for each in self.first_errors]
        return "\n".join(visible(line, but="") for line in lines)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the scores, also by tag, and the first errors."""
        rows = [
            row
            for each in self.scores
            for row in (
                (each.scorer, _mean_text(each)),
                *((f"    {tag}", f"{mean:.3f}") for tag, mean in each.by_tag.items()),
            )
        ]
        details = [
            f"{self.n_examples:,} examples",
            f"{self.n_runs:,} runs",
            f"{self.n_failed:,} failed",
            f"{self.tokens:,} tokens",
            f"${self.usd:f}",
        ]
        errors = "".join(html.note(f"error: {each}") for each in self.first_errors)
        head = html.facts(f"Evaluation {self.job}", details)
        return head + html.table(("scorer", "mean and 95 % interval"), rows) + errors


def _mean_text(each: ScoreSummary) -> str:
    if each.mean is None:
        return f"no score, {each.n_errors} errors"
    passes = "".join(f", pass@{k} {value:.3f}" for k, value in each.pass_at.items() if k > 1)
    errors = f", {each.n_errors} errors" if each.n_errors else ""
    interval = f"({each.low:.3f} to {each.high:.3f})"
    return f"{each.mean:.3f} {interval}, {each.n_scores} scores{passes}{errors}"


def summarize(items: Iterable[ScoredItem]) -> tuple[ScoreSummary, ...]:
    """Return the summary of each scorer, in the order in which they come."""
    of_scorer: dict[str, list[ScoredItem]] = defaultdict(list)
    for item in items:
        of_scorer[item.scorer].append(item)
    return tuple(_summary(name, scores) for name, scores in of_scorer.items())


def _summary(name: str, items: Sequence[ScoredItem]) -> ScoreSummary:
    means = example_means(items)
    low, high = bootstrap_interval(list(means.values())) if means else (None, None)
    of_tag: dict[str, dict[str, float]] = defaultdict(dict)
    for item in items:
        for tag in item.tags if item.key in means else ():
            of_tag[tag][item.key] = means[item.key]
    return ScoreSummary(
        scorer=name,
        mean=fmean(means.values()) if means else None,
        low=low,
        high=high,
        n_scores=sum(each.value is not None for each in items),
        n_errors=sum(each.error is not None for each in items),
        pass_at=_passes(items),
        by_tag={tag: fmean(values.values()) for tag, values in sorted(of_tag.items())},
    )


def example_means(items: Iterable[ScoredItem]) -> dict[str, float]:
    """Return the mean over the epochs of each example that has a score."""
    values: dict[str, list[float]] = defaultdict(list)
    for item in items:
        if item.value is not None:
            values[item.key].append(item.value)
    return {key: fmean(each) for key, each in values.items()}


def _passes(items: Iterable[ScoredItem]) -> dict[int, float]:
    """Return pass@k for each k up to the fewest runs that an example has."""
    runs: dict[str, list[bool]] = defaultdict(list)
    for item in items:
        if item.value is not None:
            runs[item.key].append(item.passed)
    most = min((len(each) for each in runs.values()), default=0)
    return {
        k: fmean(pass_at_k(len(each), sum(each), k) for each in runs.values())
        for k in range(1, most + 1)
    }


def pass_at_k(n: int, n_passed: int, k: int) -> float:
    """Return the chance that at least one of k runs passes, without bias: 1 - C(n-c, k) / C(n, k).

    Chen et al., *Evaluating Large Language Models Trained on Code* (2021), equation 1.

    Args:
        n: Runs that were made, at least k.
        n_passed: Those of them that passed, c.
        k: How many runs there would be.

    Raises:
        ValueError: The numbers are out of range.
    """
    if not 1 <= k <= n or not 0 <= n_passed <= n:
        raise ValueError(f"pass@{k} needs at least {k} runs and up to n passes: {n_passed} of {n}")
    return 1.0 - math.comb(n - n_passed, k) / math.comb(n, k)


def bootstrap_interval(
    values: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean by bootstrap; the same for equal values.

    Efron and Tibshirani, *An Introduction to the Bootstrap* (1993), chapter 13.

    Args:
        values: At least one.
        resamples: How many samples are drawn with replacement.
        seed: Decides them.
    """
    draw = random.Random(seed)
    n = len(values)
    means = sorted(fmean(draw.choices(values, k=n)) for _ in range(resamples))
    tail = (1 - CONFIDENCE) / 2
    return means[int(tail * resamples)], means[min(resamples - 1, int((1 - tail) * resamples))]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One scorer in two evaluations, over the examples that both have scored."""

    scorer: str
    before: float
    after: float
    n_examples: int
    worse: tuple[str, ...]
    """Keys of the examples that score less than before, the worst first."""

    @property
    def change(self) -> float:
        """The mean of now less that of before."""
        return self.after - self.before

    def is_regression(self, max_regression: float) -> bool:
        """Tell whether the mean has fallen by more than this."""
        return -self.change > max_regression + 1e-12


def compare(before: Iterable[ScoredItem], after: Iterable[ScoredItem]) -> tuple[Comparison, ...]:
    """Return how each scorer has changed that both evaluations have."""
    groups: list[dict[str, list[ScoredItem]]] = []
    for items in (before, after):
        of_scorer: dict[str, list[ScoredItem]] = defaultdict(list)
        for item in items:
            of_scorer[item.scorer].append(item)
        groups.append(of_scorer)
    found: list[Comparison] = []
    for scorer, now in groups[1].items():
        old, new = example_means(groups[0].get(scorer, ())), example_means(now)
        shared = [key for key in new if key in old]
        if shared:
            fallen = sorted((new[key] - old[key], key) for key in shared if new[key] < old[key])
            found.append(
                Comparison(
                    scorer,
                    fmean(old[key] for key in shared),
                    fmean(new[key] for key in shared),
                    len(shared),
                    tuple(key for _, key in fallen),
                )
            )
    return tuple(found)
