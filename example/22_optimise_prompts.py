"""22: search for a better prompt. Started again, the search asks no model twice."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import rath
from _shared import provider_from_env
from rath.llm.chat_request import RathLLMChatRequest
from rath.optim import GEPA

JOB = f"capitals-{os.getpid()}"  # answers are found again by this name
CAPITALS = [
    {"input": "France", "expected": "Paris"},
    {"input": "Japan", "expected": "Tokyo"},
    {"input": "Kenya", "expected": "Nairobi"},
]


def answer(request: RathLLMChatRequest) -> str:
    """Answer as a model that says one word only where it is told to."""
    prompt, country = (str(each.content) for each in request.messages[:2])
    city = next(each["expected"] for each in CAPITALS if each["input"] == country)
    return city if "one word" in prompt else f"The capital of {country} is {city}."


def exact(item: Any, session: rath.Session) -> tuple[float, str]:
    """Score an answer, and say what was wrong with it."""
    said = session.text().strip()
    return float(said == item["expected"]), f"expected exactly {item['expected']!r}, got {said!r}"


def search(proposals: list[str]) -> None:
    agent = rath.Agent(rath.Prompt("Name the capital."), provider_from_env([answer] * 20))
    found = GEPA(
        agent.parameters(),
        exact,
        reflection=provider_from_env(proposals),
        max_metric_calls=9,
        job=JOB,
    ).fit(CAPITALS)
    for each in found.candidates:
        print(f"score {each.score:.2f}: {each.texts['agent.system_prompt']}")
    with tempfile.TemporaryDirectory() as folder:
        path = rath.save(found.state_dict(), Path(folder, "best.json"))
        agent.load_state_dict(rath.load(path))  # as a program does that uses the prompt
    print("the best prompt:", found.state_dict()["agent.system_prompt"])


search(["```\nName the capital in one word.\n```"])
search([])  # everything is served from the store
