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

CITIES = {
    "France": "Paris",
    "Japan": "Tokyo",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Germany": "Berlin",
    "Egypt": "Cairo",
    "Russia": "Moscow",
    "China": "Beijing",
    "Greece": "Athens",
    "Poland": "Warsaw",
}
ITEMS = [{"input": country, "expected": city} for country, city in CITIES.items()]
START = "What is the capital of this country?"
SHORT_TEMPLATE = """The instruction was: <curr_param>
<side_info>
The feedback says what every answer must be. Write it as one instruction that begins with \
"Answer with"."""


def exact(item: Any, session: Session) -> tuple[float, str]:
    """Score an answer: all for the city alone, two fifths for a sentence that names it."""
    said = session.text().strip().rstrip(".")
    city = item["expected"]
    if said == city:
        return 1.0, "Right."
    problem = "Wrong. The answer must be the name of the capital city and no other word."
    return (0.4 if city in said else 0.0), problem


def test_the_embedded_model_finds_a_better_prompt_and_asks_nothing_twice(
    embedded: Provider, tmp_path: Path
) -> None:
    def search() -> GEPA:
        agent = flow.Agent(rath.Prompt(START), embedded, system_tools=False)
        return GEPA(
            agent.parameters(),
            exact,
            reflection=embedded,
            reflection_prompt_template=SHORT_TEMPLATE,
            max_metric_calls=40,
            job="capitals",
            store=f"files://{tmp_path}",
        )

    found = search().fit(ITEMS)
    again = search().fit(ITEMS)
    print([(each.score, each.parents, each.texts) for each in found.candidates])  # noqa: T201
    assert found.candidates[0].texts == {"agent.system_prompt": START}
    assert found.candidates[0].score <= 0.5
    assert found.best.score >= 0.9
    assert found.state_dict() == again.state_dict()
    assert [each.texts for each in again.candidates] == [each.texts for each in found.candidates]
