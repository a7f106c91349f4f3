"""Search for prompts: a toy that gets better, started again, out of money, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rath
from rath import flow
from rath.errors import JobError
from rath.llm.chat_request import RathLLMChatRequest
from rath.optim import GEPA
from rath.session import Session
from rath.testing import ScriptedClient

RULES = ("Answer in capitals.", "End with a full stop.")
WORDS = ["ONE.", "TWO.", "THREE.", "FOUR.", "five.", "six.", "seven.", "EIGHT", "NINE", "ten"]
ITEMS = [{"input": word, "expected": word.upper().rstrip(".") + "."} for word in WORDS]


def follow(request: RathLLMChatRequest) -> str:
    """Answer as a model that follows the rules of its instructions, and no others."""
    instructions, text = (str(each.content) for each in request.messages[:2])
    text = text.upper() if RULES[0] in instructions else text
    return text.rstrip(".") + "." if RULES[1] in instructions else text


def propose(request: RathLLMChatRequest) -> str:
    """Add a rule to the instructions that stand in the prompt, the first one that is missing."""
    prompt = str(request.messages[-1].content)
    old = prompt.partition("```")[2].partition("```")[0].strip()
    missing = [rule for rule in RULES if rule not in old]
    return f"```\n{' '.join([old, *missing[:1]])}\n```"


def exact(item: Any, session: Session) -> float:
    return float(session.text() == item["expected"])


class Toy:
    """A workflow whose models are functions, and which counts what they are asked."""

    def __init__(self, answer: Any = follow) -> None:
        self.model = ScriptedClient([answer] * 500)
        self.teacher = ScriptedClient([propose] * 100)
        self.agent = flow.Agent(
            rath.Prompt("Repeat the word."), self.model.provider, system_tools=False
        )

    def search(self, store: Path, **options: Any) -> GEPA:
        given: dict[str, Any] = {"max_metric_calls": 120, "job": "toy", **options}
        return GEPA(
            self.agent.parameters(),
            given.pop("metric", exact),
            reflection=self.teacher.provider,
            store=f"files://{store}",
            **given,
        )

    @property
    def n_asked(self) -> int:
        return len(self.model.requests) + len(self.teacher.requests)


def test_a_toy_goes_from_two_fifths_to_all(tmp_path: Path) -> None:
    toy = Toy()
    found = toy.search(tmp_path).fit(ITEMS)
    assert found.candidates[0].score == 0.4
    assert found.best.score >= 0.9
    assert all(rule in str(toy.agent.agent.system_prompt) for rule in RULES)
    assert found.state_dict() == toy.agent.state_dict()


def test_a_search_that_is_started_again_asks_nobody(tmp_path: Path) -> None:
    first = Toy().search(tmp_path).fit(ITEMS)
    again = Toy()
    second = again.search(tmp_path).fit(ITEMS)
    assert again.n_asked == 0
    assert [each.texts for each in second.candidates] == [each.texts for each in first.candidates]


def test_the_question_of_a_proposal_may_be_worded_anew(tmp_path: Path) -> None:
    toy = Toy()
    template = "Was: ```<curr_param>``` Said: <side_info> Better?"
    found = toy.search(tmp_path, reflection_prompt_template=template).fit(ITEMS)
    assert found.best.score >= 0.9
    asked = str(toy.teacher.requests[0].messages[-1].content)
    assert asked.startswith("Was: ```Repeat the word.``` Said: # Example 1")
    assert asked.endswith("Better?")


def test_each_candidate_and_its_lineage_stand_in_the_record(tmp_path: Path) -> None:
    found = Toy().search(tmp_path).fit(ITEMS)
    for each in found.candidates:
        session = Session.load(each.session, store=f"files://{tmp_path}")
        parents = [found.candidates[index].session for index in each.parents]
        assert [edge.id for edge in session.provenance.parents] == parents
        assert dict(session.provenance.extras)["score"] == each.score
    assert found.candidates[1].parents == (0,)


def test_a_search_ends_when_its_money_is_used_up(tmp_path: Path) -> None:
    toy, vendor = Toy(), flow.Provider(model="gpt-5-mini", base_url="https://api.openai.com/v1")
    toy.agent.to(ScriptedClient([follow] * 500, provider=vendor).provider)
    whole = toy.search(tmp_path / "whole").fit(ITEMS)
    toy.agent.agent.system_prompt = "Repeat the word."
    part = toy.search(tmp_path / "part", budget_usd=whole.usd / 3, max_metric_calls=None)
    found = part.fit(ITEMS)
    assert 0 < whole.usd / 3 <= found.usd < whole.usd
    assert len(found.candidates) < len(whole.candidates)


def test_a_run_that_fails_scores_nothing_and_is_told(tmp_path: Path) -> None:
    def answer(request: RathLLMChatRequest) -> str:
        if "six" in str(request.messages[-1].content):
            raise ValueError("no sixes")
        return follow(request)

    toy = Toy(answer)
    found = toy.search(tmp_path, max_metric_calls=20).fit(ITEMS)
    assert found.candidates[0].score == 0.4
    told = [str(each.messages[-1].content) for each in toy.teacher.requests]
    assert any("the run failed" in each and "no sixes" in each for each in told)


def test_a_workflow_that_always_fails_is_no_bad_prompt(tmp_path: Path) -> None:
    toy = Toy(ValueError("no model"))
    with pytest.raises(JobError, match=r"every item failed.*no model"):
        toy.search(tmp_path).fit(ITEMS)
    assert toy.agent.agent.system_prompt == "Repeat the word."


@pytest.mark.parametrize("value", [1.5, -0.1, float("nan"), None, "good"])
def test_a_metric_gives_a_number_between_0_and_1(tmp_path: Path, value: Any) -> None:
    def metric(item: Any, session: Session) -> Any:
        return value

    with pytest.raises(ValueError, match=r"expected a number in \[0, 1\]"):
        Toy().search(tmp_path, metric=metric).fit(ITEMS)


def test_what_cannot_be_searched_is_refused(tmp_path: Path) -> None:
    toy = Toy()
    with pytest.raises(ValueError, match="train or val is empty"):
        toy.search(tmp_path).fit([])
    with pytest.raises(ValueError, match="needs an end"):
        toy.search(tmp_path, max_metric_calls=None)
    with pytest.raises(ValueError, match="lacks <side_info>"):
        toy.search(tmp_path, reflection_prompt_template="Improve <curr_param>.")
    with pytest.raises(TypeError, match="metric must be a function"):
        toy.search(tmp_path, metric=3)
    with pytest.raises(ValueError, match="no parameter may be changed"):
        GEPA(toy.agent.requires_grad_(False).parameters(), exact, max_metric_calls=3)
    with pytest.raises(TypeError, match="takes the parameters"):
        GEPA(["prompt"], exact, max_metric_calls=3)  # type: ignore[list-item]  # the point of it
