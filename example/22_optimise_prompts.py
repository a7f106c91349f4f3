"""22: search for a better prompt. Started again, the search asks no model twice."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import rath
from _shared import provider_from_env
from rath import flow
from rath.llm.chat_request import RathLLMChatRequest
from rath.optim import GEPA
from rath.session import Session

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


def exact(item: Any, session: Session) -> tuple[float, str]:
    """Score an answer, and say what was wrong with it."""
    said = (session.text() or "").strip()
    return float(said == item["expected"]), f"expected exactly {item['expected']!r}, got {said!r}"


def search(store: Path, proposals: list[str]) -> None:
    agent = flow.Agent(
        rath.Prompt("Name the capital."), provider_from_env([answer] * 20), system_tools=False
    )
    found = GEPA(
        agent.parameters(),
        exact,
        reflection=provider_from_env(proposals),
        max_metric_calls=9,
        job="capitals",
        store=str(store),
    ).fit(CAPITALS)
    for each in found.candidates:
        print(f"{each.score:.2f} from {each.parents}: {each.texts['agent.system_prompt']}")
    print("saved:", rath.save(found.state_dict(), store / "best.json").name)


with tempfile.TemporaryDirectory() as folder:
    search(Path(folder), ["```\nName the capital in one word.\n```"])
    search(Path(folder), [])  # everything is served from the store
