"""21: a dataset, three scorers, and a second evaluation that asks no agent again."""

from __future__ import annotations

import os

import rath
from _shared import provider_from_env
from rath.eval import Contains, Exact, Example, ModelJudge, evaluate

JOB = f"capitals-{os.getpid()}"  # answers are found again by this name
QUESTIONS = [
    {"id": "fr", "input": "Capital of France?", "expected": "Paris", "tags": ["europe"]},
    {"id": "jp", "input": "Capital of Japan?", "expected": "Tokyo", "tags": ["asia"]},
]


def one_word(example: Example, session: rath.Session) -> tuple[float, str]:
    """Score a short answer, and say how long it is."""
    n_words = len(session.text().split())
    return float(n_words == 1), f"{n_words} words"


def run(answers: list[str], judgements: list[str]) -> None:
    agent = rath.Agent("Answer in one word.", provider_from_env(answers))
    judge = ModelJudge("The answer is polite.", provider_from_env(judgements))
    scorers = [Exact(), Contains(), one_word, *([judge] if judgements else [])]
    done = evaluate(agent, QUESTIONS, scorers, job=JOB, concurrency=1)
    print(done.report())
    for each in done.worst(1):
        print(f"worst: {each.key} by {each.scorer}, {each.value}: {each.reasons}")


run(["Paris", "It is Tokyo."], [])
# The store has the answers: only the new scorer is asked.
run([], ['{"reason": "A plain name.", "passed": true}'] * 2)
