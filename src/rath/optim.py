"""Search for better prompts: GEPA over the parameters of a workflow, recorded in a store.

This is search and not autograd. A model reads what came of some items and what was wrong with it,
proposes another text for one parameter, and the text stays where more items come out well. The
algorithm is that of Agrawal et al., *GEPA: Reflective Prompt Evolution Can Outperform Reinforcement
Learning* (2025), in the package `gepa`; runs, their keys and the record are those of this library.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from decimal import Decimal
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from uuid import UUID, uuid4, uuid5

from rath._async.deferred import Deferred
from rath._core.dataclasses import dataclass
from rath.data import member_of, session_of
from rath.errors import JobBudgetExceeded, JobError, MissingExtra
from rath.flow.agent import Agent
from rath.flow.parameters import Parameter, state_digest
from rath.flow.workflow import Workflow
from rath.jobs.driver import JobItem
from rath.jobs.engine import DEFAULT_CONCURRENCY, Engine, job_id
from rath.jobs.job import map as map_items
from rath.llm import Provider
from rath.session import ChunkTable, Session
from rath.session.body import Body
from rath.session.chunk import user_text_chunk
from rath.session.graph.kind import LineageKind
from rath.session.graph.recording import Provenance
from rath.session.loading import load
from rath.session.log.store import SessionStore, default_store, open_store

if TYPE_CHECKING:
    from gepa.core.adapter import EvaluationBatch
    from gepa.core.result import GEPAResult

__all__ = ["GEPA", "Candidate", "Metric", "SearchResult"]

Metric: TypeAlias = Callable[[Any, Session], float | tuple[float, str]]
"""`metric(item, session)` returns a score in [0, 1], or the score and what was wrong, in words."""

OPERATOR = "optim.GEPA"
"""Lineage operator of the session of a candidate."""

REFLECTION_PROMPT = "You improve the instructions that other assistants are given."

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Texts of the parameters that were tried together."""

    texts: Mapping[str, str]
    """By the name of the parameter."""

    score: float
    """Mean score over the validation items."""

    session: UUID
    """The session in the store that records it; its parents are the candidates it comes from."""

    parents: tuple[int, ...]
    """Positions of the candidates that it was made of, in `SearchResult.candidates`."""

    _state: Mapping[str, Any] = field(repr=False)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the whole workflow with these texts; `rath.save` takes it."""
        return {**self._state, **self.texts}


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search."""

    candidates: tuple[Candidate, ...]
    """Accepted candidates in the order of their discovery; the first is the initial one."""

    n_evaluations: int
    """Items that were evaluated, those that the store served with them."""

    usd: Decimal
    """US dollars of all runs whose price is known, those of earlier starts with them."""

    @property
    def best(self) -> Candidate:
        """The candidate with the best score; the earlier one of two."""
        return max(self.candidates, key=lambda each: each.score)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the workflow with the best texts."""
        return self.best.state_dict()


@dataclass(frozen=True, slots=True)
class _Trial:
    """One item that was run with a candidate."""

    item: object
    answer: str
    score: float
    feedback: str


class GEPA:
    """Searches for texts with which a workflow scores better.

    The search is a function of its arguments, the seed and the answers of models. Each evaluation
    is a run by key in a job of its candidate, each proposal a run by key as well: a search that is
    started again under its `job` serves from the store what it had, asks nobody twice, and goes on.

    Args:
        parameters: `workflow.parameters()`; those with `requires_grad` are changed.
        metric: Scores the session that came of an item.
        reflection: Model that proposes texts; by default that of the first agent.
        reflection_prompt_template: Asks that model for a text: `<curr_param>` in it stands for the
            present one, `<side_info>` for items, answers and what was wrong. By default that of
            `gepa`, which is long; a small model needs a short one.
        budget_usd: US dollars for the whole search, overshot by one batch of items at most.
        max_metric_calls: Evaluations of items in all.
        job: Name of the search in its store; one that nobody else has by default.
        store: Where it is recorded, or the URL of that; by default the store of the home.
        engine: Where items are carried out, as in `flow.map`.
        concurrency: Items in flight at most.
        minibatch: Items of which a proposal is made.
        seed: Decides what is chosen by chance.

    Raises:
        MissingExtra: The package `gepa` is not installed.
        ValueError: There is no parameter with `requires_grad`, no limit was given, or the template
            lacks a placeholder.
        TypeError: An argument is of a wrong type.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        metric: Metric,
        *,
        reflection: Provider | None = None,
        reflection_prompt_template: str | None = None,
        budget_usd: Decimal | float | None = None,
        max_metric_calls: int | None = None,
        job: str | None = None,
        store: SessionStore | str | None = None,
        engine: Engine | str | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        minibatch: int = 3,
        seed: int = 0,
    ) -> None:
        if find_spec("gepa") is None:
            raise MissingExtra("optim", "searching for prompts")
        listed = list(parameters)
        if not all(isinstance(each, Parameter) for each in listed):
            raise TypeError("GEPA takes the parameters of a workflow: workflow.parameters()")
        self._parameters = {each.name: each for each in listed if each.requires_grad}
        if not self._parameters:
            raise ValueError(
                "no parameter may be changed; give prompts as rath.Prompt(...), or call "
                "workflow.requires_grad_()"
            )
        if budget_usd is None and max_metric_calls is None:
            raise ValueError("a search needs an end: give budget_usd, max_metric_calls or both")
        if not callable(metric):
            raise TypeError(f"metric must be a function of item and session, not {metric!r:.80}")
        if reflection_prompt_template is not None:
            for placeholder in ("<curr_param>", "<side_info>"):
                if placeholder not in reflection_prompt_template:
                    raise ValueError(
                        f"reflection_prompt_template lacks {placeholder}: write it where "
                        "the present text (<curr_param>) and the answers (<side_info>) belong"
                    )
        opened = open_store(store) if isinstance(store, str) else store
        self._options = _Options(
            workflow=listed[0].workflow,
            metric=metric,
            reflection=reflection or _first_provider(listed[0].workflow),
            prompt_template=reflection_prompt_template,
            budget=None if budget_usd is None else Decimal(str(budget_usd)),
            job=job if job is not None else f"search-{uuid4()}",
            store=opened or default_store(),
            engine=engine,
            concurrency=concurrency,
        )
        self._max_metric_calls = max_metric_calls
        self._minibatch = minibatch
        self._seed = seed

    @property
    def job(self) -> str:
        """The name of the search in its store."""
        return self._options.job

    def fit(self, train: Sequence[Any], val: Sequence[Any] | None = None) -> SearchResult:
        """Search, leave the best texts in the workflow, and return what was found; blocks.

        Args:
            train: Items of which proposals are made, as `flow.map` takes them.
            val: Items by which candidates are compared; `train` by default.

        Raises:
            ValueError: There are no items, or the metric gave no number in [0, 1].
            JobError: Every item failed with the texts of the beginning.
        """
        # Named by text: the types of the package are partly unknown.
        optimize = cast("Any", import_module("gepa.api")).optimize

        train_items, val_items = list(train), list(train if val is None else val)
        if not train_items or not val_items:
            raise ValueError("a search needs items: train or val is empty")
        search = _Search(self._options, self._parameters)
        first = {name: each.value for name, each in self._parameters.items()}
        try:
            result: GEPAResult[Any, Any] = optimize(
                seed_candidate=first,
                trainset=train_items,
                valset=val_items,
                adapter=cast("Any", search),
                reflection_minibatch_size=min(self._minibatch, len(train_items)),
                max_metric_calls=self._max_metric_calls,
                stop_callbacks=cast("Any", search.is_over),
                callbacks=cast("Any", [search]),
                logger=_Logger(),
                seed=self._seed,
                track_best_outputs=False,
            )
        except BaseException:
            search.put(first)
            raise
        found = search.result(result.total_metric_calls or 0)
        search.put(found.best.texts)
        if search.problem is not None:
            raise search.problem
        return found


@dataclass(frozen=True, slots=True)
class _Options:
    """What a search was asked for."""

    workflow: Workflow
    metric: Metric
    reflection: Provider
    prompt_template: str | None
    budget: Decimal | None
    job: str
    store: SessionStore
    engine: Engine | str | None
    concurrency: int


class _Search:
    """One search, as `gepa` asks for it: an adapter, and what it is told on the way."""

    propose_new_texts: Any

    def __init__(self, options: _Options, parameters: Mapping[str, Parameter]) -> None:
        self._options = options
        self._parameters = parameters
        self._reflector = Agent(
            REFLECTION_PROMPT, options.reflection, system_tools=False, store=options.store
        )
        self._usd: dict[str, Decimal] = {}
        self._n_asked: dict[str, int] = {}
        self._candidates: dict[int, Candidate] = {}
        self.problem: Exception | None = None
        """What ended the search before its limits did."""

        self.propose_new_texts = self._propose

    # Asked by `gepa`.

    def evaluate(
        self, batch: list[Any], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[_Trial, str]:
        """Return the scores of items with the texts of a candidate."""
        from gepa.core.adapter import EvaluationBatch  # noqa: PLC0415  # the optional package

        trials = self._trials(batch, candidate)
        return EvaluationBatch(
            outputs=[each.answer for each in trials],
            scores=[each.score for each in trials],
            trajectories=trials if capture_traces else None,
        )

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[_Trial, str],
        components_to_update: list[str],
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return what the model reads that proposes a text: input, answer, and what was wrong."""
        records = [
            {
                "Inputs": _text_of(each.item),
                "Generated Outputs": each.answer,
                "Feedback": each.feedback,
            }
            for each in eval_batch.trajectories or ()
        ]
        return dict.fromkeys(components_to_update, records)

    def _propose(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        """Return another text for each component, as a model says."""
        from gepa.strategies.instruction_proposal import (  # noqa: PLC0415  # the optional package
            InstructionProposalSignature as Proposal,
        )

        texts: dict[str, str] = {}
        for name in components_to_update:
            prompt = Proposal.prompt_renderer(
                {
                    "current_instruction_doc": candidate[name],
                    "dataset_with_feedback": reflective_dataset[name],
                    "prompt_template": self._options.prompt_template,
                }
            )
            texts[name] = Proposal.output_extractor(self._ask(str(prompt)))["new_instruction"]
        return texts

    def is_over(self, _: object) -> bool:
        """Tell whether the money is used up, or something ended the search."""
        budget = self._options.budget
        return self.problem is not None or (budget is not None and self._used >= budget)

    def on_valset_evaluated(self, event: Mapping[str, Any]) -> None:
        """Record a candidate that is kept."""
        parents = tuple(each for each in event["parent_ids"] if each is not None)
        score, texts = float(event["average_score"]), dict(event["candidate"])
        session = self._record(texts, score, parents)
        self._candidates[event["candidate_idx"]] = Candidate(
            texts, score, session, parents, self._options.workflow.state_dict()
        )

    # What it comes to.

    def put(self, texts: Mapping[str, str]) -> None:
        """Put texts into the workflow."""
        for name, text in texts.items():
            self._parameters[name].set(text)

    def result(self, n_evaluations: int) -> SearchResult:
        """Return what was found so far."""
        kept = tuple(self._candidates[index] for index in sorted(self._candidates))
        return SearchResult(kept, n_evaluations, self._used)

    @property
    def _used(self) -> Decimal:
        return sum(self._usd.values(), Decimal(0))

    def _trials(self, batch: Sequence[Any], texts: Mapping[str, str]) -> list[_Trial]:
        """Run each item with texts, or take from the store what came of it."""
        options = self._options
        self.put(texts)
        keys = [_key_of(item) for item in batch]
        left = None if options.budget is None else options.budget - self._used
        name = f"{options.job}/{_digest(texts)[:16]}"
        job = map_items(
            options.workflow,
            dict(zip(keys, batch, strict=True)).values(),
            key=_key_of,
            job=name,
            store=options.store,
            engine=options.engine,
            concurrency=options.concurrency,
            budget_usd=None if left is None else left + self._usd.get(name, Decimal(0)),
            progress=False,
        )
        try:
            job.synchronize()
        except JobBudgetExceeded as exc:
            self.problem = exc
        self._usd[name] = job.report().usd
        ended = {each.key: each for each in job.items}
        errors = [ended[key].error for key in keys if ended[key].state != "done"]
        if len(errors) == len(keys) and not self._candidates and self.problem is None:
            raise JobError(
                f"every item failed with the texts of the beginning; the first one: {errors[0]}"
            )
        return [self._trial(item, ended[key]) for key, item in zip(keys, batch, strict=True)]

    def _trial(self, item: object, ended: JobItem) -> _Trial:
        session = ended.session
        if ended.state != "done" or session is None:
            problem = f"the run failed: {ended.error or ended.state}"
            return _Trial(item, "", 0.0, problem)
        given = self._options.metric(item, session)
        score, feedback = given if isinstance(given, tuple) else (given, "")
        if not isinstance(cast("object", score), int | float) or not 0 <= score <= 1:
            raise ValueError(
                f"the metric gave {score!r:.80} for item {item!r:.80}; expected a number in [0, 1]"
            )
        expected = member_of(item, "expected")
        hint = f"score {score:g} of 1" + ("" if expected is None else f"; expected: {expected}")
        return _Trial(item, session.text(), float(score), feedback or hint)

    def _ask(self, prompt: str) -> str:
        """Return what the reflecting model says; the same prompt again is another question."""
        ordinal = self._n_asked[prompt] = self._n_asked.get(prompt, 0) + 1
        key = f"{self._options.job}/propose/{_digest({'prompt': prompt})}#{ordinal}"
        answer = self._reflector.run(
            Session.from_user_message(prompt), run=key, store=self._options.store
        )
        self._usd[key] = answer.cumulative_cost.usd
        return answer.text()

    def _record(self, texts: Mapping[str, str], score: float, parents: Sequence[int]) -> UUID:
        """Store the session of a candidate, whose parents are those that it comes from."""
        options = self._options
        session_id = uuid5(job_id(options.job), _digest(texts))
        if not options.store.holds(session_id):
            edges = [
                load(options.store, self._candidates[each].session).session.core.as_parent()
                for each in parents
            ]
            rows = ChunkTable((user_text_chunk(json.dumps(texts, ensure_ascii=False, indent=1)),))
            origin = Provenance(
                OPERATOR,
                LineageKind.OP_CREATE,
                tuple(edges),
                (("job", options.job), ("score", score), ("state", state_digest(options.workflow))),
            )
            session = Session.from_body(Deferred.of(Body(rows)), origin, id=session_id)
            session.save(store=options.store)
        return session_id


class _Logger:
    """Hands what the package says on to the log of this module."""

    def log(self, message: str) -> None:
        _log.info("%s", message)


def _digest(values: Mapping[str, str]) -> str:
    text = json.dumps(dict(values), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _key_of(item: object) -> str:
    """Return the key of an item in a job: its own `key`, else the digest of what it begins with."""
    key = member_of(item, "key")
    return str(key) if key is not None else session_of(item).chunk_table.digest()


def _text_of(item: object) -> str:
    return session_of(item).text() or str(session_of(item).chunk_table[-1].payload)


def _first_provider(workflow: Workflow) -> Provider:
    for module in workflow.modules():
        for _, part in module.named_agents():
            return part.provider
    raise ValueError("the workflow has no agent, so reflection=Provider(...) is needed")
