"""21: a dataset, three scorers, and a second evaluation that asks no agent again."""

from __future__ import annotations

import tempfile

from _shared import provider_from_env
from rath import flow
from rath.eval import Contains, Exact, Example, ModelJudge, evaluate
from rath.session import Session

QUESTIONS = [
    {"id": "fr", "input": "Capital of France?", "expected": "Paris", "tags": ["europe"]},
    {"id": "jp", "input": "Capital of Japan?", "expected": "Tokyo", "tags": ["asia"]},
]


def one_word(example: Example, session: Session) -> tuple[float, str]:
    """Score a short answer, and say how long it is."""
    n_words = len((session.text() or "").split())
    return float(n_words == 1), f"{n_words} words"


def run(store: str, answers: list[str], judgements: list[str]) -> None:
    agent = flow.Agent("Answer in one word.", provider_from_env(answers), system_tools=False)
    judge = ModelJudge("The answer is polite.", provider_from_env(judgements))
    scorers = [Exact(), Contains(), one_word, *([judge] if judgements else [])]
    done = evaluate(agent, QUESTIONS, scorers, job="capitals", store=store, concurrency=1)
    print(done.report())
    for each in done.worst(1):
        print("worst:", each.scorer, each.key, each.value, "since", each.reasons)


with tempfile.TemporaryDirectory() as folder:
    run(folder, ["Paris", "It is Tokyo."], [])
    # The store has the answers: only the new scorer is asked.
    run(folder, [], ['{"reason": "A plain name.", "passed": true}'] * 2)
