"""Evaluations: a job of runs, and a verdict of each scorer in the record of each output."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import field, replace
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias, cast
from uuid import UUID, uuid4, uuid5

from rath._async.deferred import Deferred
from rath._async.runtime import runtime, wait_interruptibly
from rath._core.dataclasses import dataclass
from rath.errors import JobError, PersistenceError
from rath.eval.dataset import Dataset, Example, read_dataset
from rath.eval.report import Comparison, Report, ScoredItem, compare, summarize
from rath.eval.scorers import Score, Scorer, ScorerLike, ScoringRun, as_scorer, scorers_of_dataset
from rath.flow.workflow import Workflow
from rath.jobs.engine import DEFAULT_CONCURRENCY, Engine, Rate
from rath.jobs.job import map as map_items
from rath.jobs.record import attempts_of, load_job
from rath.session import Session
from rath.session.graph.kind import LineageKind
from rath.session.graph.recording import LineageRecorder
from rath.session.loading import load
from rath.session.log.store import SessionStore, default_store, open_store
from rath.session.operation import Place
from rath.session.record import ItemRun, Operation, Verdict

__all__ = ["Evaluation", "Suite", "evaluate", "load_evaluation"]

PLACE = "rath.eval"
"""Path of the operations that scores belong to; other checks of a session are no scores. In the
provenance of the session with which a run begins, the name of tags and expected answer."""

SCORING_AT_ONCE = 8
"""Sessions that are scored side by side; a guess that leaves a server of models its time."""

_MAX_ERRORS = 5
MAX_ERROR_CHARS = 4000
"""Longest text of an error that a record holds; a guess, as for the errors of runs."""

_log = logging.getLogger("rath.eval")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The runs of an evaluation and their scores, as its store has them."""

    job: str
    """The name of the job."""

    store: SessionStore
    items: tuple[ScoredItem, ...]
    """A score, or the error of a scorer, for each run and scorer."""

    runs: tuple[ItemRun, ...] = field(repr=False)
    """The last attempt at each run."""

    def report(self) -> Report:
        """Return what it comes to."""
        failed = [each for each in self.runs if each.status != "done"]
        costs = [*(each.usd for each in self.runs), *(each.usd for each in self.items)]
        errors = [f"run {each.key}: {each.error or each.status}" for each in failed]
        errors += [
            f"scorer {each.scorer}, {each.key}: {each.error}"
            for each in self.items
            if each.error is not None
        ]
        return Report(
            job=self.job,
            scores=summarize(self.items),
            n_examples=len({each.key for each in self.runs}),
            n_runs=len(self.runs),
            n_failed=len(failed),
            tokens=sum(0 if each.usage is None else each.usage.total_tokens for each in self.runs),
            usd=sum((each for each in costs if each is not None), Decimal(0)),
            seconds=float(sum(each.seconds for each in self.runs)),
            first_errors=tuple(errors[:_MAX_ERRORS]),
        )

    def compare(self, baseline: Evaluation) -> tuple[Comparison, ...]:
        """Return how each scorer has changed since another evaluation of the same examples."""
        return compare(baseline.items, self.items)

    def worst(self, n: int = 10) -> tuple[ScoredItem, ...]:
        """Return the scores that are lowest, those with errors first."""
        ranked = sorted(self.items, key=lambda each: -1.0 if each.value is None else each.value)
        return tuple(ranked[:n])

    def __str__(self) -> str:
        return str(self.report())


def evaluate(
    workflow: Workflow,
    dataset: Dataset,
    scorers: ScorerLike | Sequence[ScorerLike] = (),
    *,
    epochs: int = 1,
    job: str | None = None,
    store: SessionStore | str | None = None,
    engine: Engine | str | None = None,
    concurrency: int = DEFAULT_CONCURRENCY,
    retries: int = 2,
    timeout: float | None = None,
    budget_usd: Decimal | float | None = None,
    rate: Rate | None = None,
    progress: bool | None = None,
) -> Evaluation:
    """Run a workflow on each example of a dataset, score what comes of it, and return that; blocks.

    The runs are a job of `flow.map`, the scores verdicts in the records of their sessions. Called
    again under the same job, it serves what is there: no agent is asked again, and no scorer that
    gave a score to the same answer and expected answer. Other or changed scorers are asked, and
    those that raised an error.

    Args:
        workflow: What is evaluated.
        dataset: See `read_dataset`; a dataset of pydantic-evals brings evaluators of its own.
        scorers: One or several, see `ScorerLike`.
        epochs: How often each example is run, each time anew.
        job: Name of the evaluation in its store; one that nobody else has by default.
        store: Where it is recorded, or the URL of that; by default the store of the home.
        engine: Where runs are carried out, as in `flow.map`.
        concurrency: Runs in flight at most.
        retries: Further attempts at a run that failed.
        timeout: Seconds that an attempt may take.
        budget_usd: US dollars for all runs; judges of scorers are not counted in it.
        rate: The limits of model calls.
        progress: Whether to show a progress bar; by default where stderr is a terminal.

    Raises:
        ValueError: The dataset is empty, there is no scorer, or two have one name or key.
        TypeError: Something is no scorer, or no session can be made of a row.
        JobError: The job was given up.
    """
    examples = read_dataset(dataset)
    listed = _scorers(scorers, dataset, examples)
    opened = open_store(store) if isinstance(store, str) else store or default_store()
    started = map_items(
        workflow,
        examples,
        key="key",
        session=_first_session,
        job=job,
        epochs=epochs,
        store=opened,
        engine=engine,
        concurrency=concurrency,
        retries=retries,
        timeout=timeout,
        budget_usd=budget_usd,
        rate=rate,
        progress=progress,
    )
    by_key = {each.key: each for each in examples}
    pending: deque[Future[list[ScoredItem]]] = deque()
    scored: list[ScoredItem] = []
    for item in started:
        if item.state != "done" or item.session is None:
            continue
        run = partial(_score_session, by_key[item.key], item.epoch, item.session, listed, opened)
        pending.append(runtime().start_in_worker(run))
        if len(pending) >= SCORING_AT_ONCE:
            scored += _first_of(pending)
    while pending:
        scored += _first_of(pending)
    order = {each.key: at for at, each in enumerate(examples)}
    scored.sort(key=lambda each: (order[each.key], each.epoch))
    return Evaluation(started.name, opened, tuple(scored), _runs(opened, started.name))


def load_evaluation(job: str, store: SessionStore | str | None = None) -> Evaluation:
    """Return an evaluation from its store, with the last score of each scorer.

    Tags and expected answers are those with which each run began.

    Raises:
        JobError: There is no such job.
    """
    opened = open_store(store) if isinstance(store, str) else store or default_store()
    runs = _runs(opened, job)
    found: list[ScoredItem] = []
    examples: dict[str, _StoredExample] = {}
    for each in runs:
        if each.status != "done" or each.session is None:
            continue
        session = load(opened, each.session).session
        last = {verdict.name: verdict for verdict in scores_in(session)}
        # Epochs begin with one content, which is stored with the first of them alone.
        stored = None if each.key in examples else _stored_example(opened, each.run)
        if stored is not None:
            examples[each.key] = stored
        found += [
            _of_verdict(verdict, each.key, each.epoch, each.session) for verdict in last.values()
        ]
    nothing: _StoredExample = ((), None)
    items = [(each, examples.get(each.key, nothing)) for each in found]
    scored = tuple(replace(item, tags=tags, expected=expected) for item, (tags, expected) in items)
    return Evaluation(job, opened, scored, runs)


_StoredExample: TypeAlias = tuple[tuple[str, ...], str | None]
"""Tags and expected answer."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A workflow, the dataset on which it is evaluated, and the scorers; `rath eval` runs it."""

    workflow: Workflow
    dataset: Any
    scorers: Any
    epochs: int = 1

    def run(self, **options: Any) -> Evaluation:
        """Evaluate; options as those of `evaluate`."""
        given: dict[str, Any] = {"epochs": self.epochs, **options}
        return evaluate(self.workflow, self.dataset, self.scorers, **given)


def _first_session(example: Example) -> Session:
    """Return the session with which a run begins; its provenance holds what its scores are about.

    Of a row that is a session the content is in a cell of its own, with that beside its own
    provenance: content that is stored under one id already is not stored under another.
    """
    row = (PLACE, json.dumps({"tags": example.tags, "expected": _expected_text(example)}))
    given = example.input
    if isinstance(given, Session):
        provenance = given.provenance
        own = tuple(extra for extra in provenance.extras if extra[0] != PLACE)
        return Session.from_body(
            Deferred.of(given.core.body.result()),
            replace(provenance, extras=(*own, row)),
            id=given.id,
            placement=given.core.placement.share(),
            provider=given.provider,
            lineage=given.lineage,
        )
    session = Session.from_user_message(given)
    LineageRecorder.stamp_new_session(
        session,
        parent_session_ids=(),
        lineage_operator=PLACE,
        lineage_kind=LineageKind.LEAF_USER,
        lineage_extras=(row,),
    )
    return session


def _stored_example(store: SessionStore, run: UUID) -> _StoredExample | None:
    """Return tags and expected answer of a run, as the session with which it began has them.

    None where that is not stored under an id of its own, or was removed since.
    """
    try:
        extras = dict(load(store, uuid5(run, "input")).session.provenance.extras)
    except PersistenceError:
        return None
    row: dict[str, Any] = json.loads(str(extras.get(PLACE, "{}")))
    expected = row.get("expected")
    return tuple(map(str, row.get("tags", ()))), None if expected is None else str(expected)


def _first_of(pending: deque[Future[list[ScoredItem]]]) -> list[ScoredItem]:
    future = pending.popleft()
    wait_interruptibly(future)
    return future.result()


def _scorers(given: object, dataset: object, examples: Sequence[Example]) -> list[Scorer]:
    """Return the scorers, those that the dataset brings with them.

    Raises:
        ValueError: There is none, or two have one name.
    """
    several = isinstance(given, Sequence) and not isinstance(given, str)
    listed: list[Any] = list(cast("Sequence[Any]", given)) if several else [given]
    scorers = [as_scorer(each, default_name=f"scorer_{at}") for at, each in enumerate(listed)]
    scorers += scorers_of_dataset(dataset, examples)
    if not scorers:
        raise ValueError("an evaluation needs a scorer, such as rath.eval.Exact()")
    names: set[str] = set()
    for each in scorers:
        if each.name in names:
            raise ValueError(
                f"two scorers have the name {each.name!r}; give one of them name='...'"
            )
        names.add(each.name)
    return scorers


def _runs(store: SessionStore, job: str) -> tuple[ItemRun, ...]:
    recorded = load_job(store, job)
    if recorded is None:
        raise JobError(f"there is no job {job!r} in {store.where}")
    return tuple(each[-1] for each in attempts_of(recorded.record).values())


# ---------------------------------------------------------------- scores in the record


def scores_in(session: Session) -> list[Verdict]:
    """Return the verdicts of scorers in the record of a session, in order."""
    scorings = {
        each.operation
        for each in session.record
        if isinstance(each, Operation) and each.kind == "check" and each.place.path == PLACE
    }
    return [
        each for each in session.record if isinstance(each, Verdict) and each.operation in scorings
    ]


def _score_session(
    example: Example, epoch: int, session: Session, scorers: Sequence[Scorer], store: SessionStore
) -> list[ScoredItem]:
    """Return the scores of a session, and record those that are new; on a worker thread."""
    known = {(each.name, each.judge): each for each in scores_in(session)}
    found: list[ScoredItem] = []
    new: list[Verdict] = []
    for scorer in scorers:
        judge = f"{scorer.judge} [{example.digest()[:12]}]"
        verdict = known.get((scorer.name, judge))
        if verdict is None or verdict.error is not None:
            before = verdict
            try:
                key = f"{session.id}/{scorer.name}/{judge}"
                score = scorer.score(example, session, ScoringRun(key, store))
            except Exception as exc:  # noqa: BLE001  # of somebody else: told in the report
                _log.info("scorer %s, %s: %r", scorer.name, example.key, exc)
                error = f"{type(exc).__name__}: {exc}"[:MAX_ERROR_CHARS]
                verdict = _verdict(scorer.name, judge, Score(0.0), error=error)
            else:
                if score is None:
                    continue
                verdict = _verdict(scorer.name, judge, score)
            if before is None or before.error != verdict.error:
                new.append(verdict)
        item = _of_verdict(verdict, example.key, epoch, session.id)
        found.append(replace(item, tags=example.tags, expected=_expected_text(example)))
    if new:
        _record(session, new, store)
    return found


def _verdict(name: str, judge: str, score: Score, *, error: str | None = None) -> Verdict:
    return Verdict(
        operation=uuid4(),
        name=name,
        judge=judge,
        passed=score.is_good and error is None,
        score=score.value if error is None else None,
        report=score.reasons,
        usd=score.usd,
        sessions=score.sessions,
        error=error,
    )


def _record(session: Session, verdicts: Sequence[Verdict], store: SessionStore) -> None:
    """Add verdicts to the record of a session, each with its operation.

    Where somebody else has added to it since, they are added behind that.
    """
    entries = [
        entry
        for verdict in verdicts
        for entry in (
            Operation(
                operation=verdict.operation,
                kind="check",
                place=Place(PLACE, 0),
                session=session.id,
            ),
            verdict,
        )
    ]
    try:
        session.add_entry(*entries)
    except PersistenceError:
        load(store, session.id).session.add_entry(*entries)


def _expected_text(example: Example) -> str | None:
    return None if example.expected is None else str(example.expected)


def _of_verdict(verdict: Verdict, key: str, epoch: int, session: UUID) -> ScoredItem:
    return ScoredItem(
        key=key,
        epoch=epoch,
        scorer=verdict.name,
        session=session,
        value=None if verdict.score is None else float(verdict.score),
        passed=verdict.passed,
        reasons=verdict.report,
        usd=verdict.usd,
        error=verdict.error,
    )
