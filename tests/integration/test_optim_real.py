"""A search for a better prompt by a real model, which answers and proposes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rath
from rath import flow
from rath.llm import Provider
from rath.optim import GEPA
from rath.session import Session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

CITIES = {"France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Spain": "Madrid", "Cuba": "Havana"}
ITEMS = [{"input": country, "expected": city} for country, city in CITIES.items()]
START = "Talk about the country at length, in several sentences."


def exact(item: Any, session: Session) -> tuple[float, str]:
    """Score an answer by how much of it is the city, and say what was wrong with it."""
    said = (session.text() or "").strip().rstrip(".")
    city = item["expected"]
    if said == city:
        return 1.0, "right"
    problem = f"The answer must be one word alone, the capital city {city!r}. It was {said[:60]!r}."
    return (0.5 if city in said else 0.0), problem


def test_the_embedded_model_searches_and_asks_nothing_twice(
    embedded: Provider, tmp_path: Path
) -> None:
    def search() -> GEPA:
        agent = flow.Agent(rath.Prompt(START), embedded, system_tools=False)
        return GEPA(
            agent.parameters(),
            exact,
            reflection=embedded,
            max_metric_calls=60,
            job="capitals",
            store=f"files://{tmp_path}",
        )

    found = search().fit(ITEMS, ITEMS)
    again = search().fit(ITEMS, ITEMS)
    scores = [each.score for each in found.candidates]
    print([(each.score, each.parents, each.texts) for each in found.candidates])  # noqa: T201
    assert found.candidates[0].texts == {"agent.system_prompt": START}
    assert len(scores) > 1, "the model proposed something"
    assert max(scores) >= scores[0]
    assert found.state_dict() == again.state_dict()
    assert [each.texts for each in again.candidates] == [each.texts for each in found.candidates]
