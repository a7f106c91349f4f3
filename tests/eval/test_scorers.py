"""Scorers: what each says of an answer, and what is taken from functions and other packages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rath import eval as ev
from rath import flow
from rath.eval.dataset import Example
from rath.eval.scorers import FunctionScorer, ScoringRun, as_scorer
from rath.session import Session
from rath.session.persistence.store import open_store
from rath.session.record import ModelCall
from rath.testing import ScriptedClient


def answered(text: str) -> Session:
    agent = flow.Agent("p", ScriptedClient([text]).provider, system_tools=False)
    return agent(Session.from_user_message("question"))


def score(scorer: Any, text: str, expected: Any = None, **row: Any) -> ev.Score | None:
    example = Example("k", "question", expected, (), row)
    run = ScoringRun("key", open_store("files:///nowhere-needed"))
    return as_scorer(scorer).score(example, answered(text), run)


@pytest.mark.parametrize(
    ("scorer", "text", "expected", "value"),
    [
        (ev.Exact(), " Paris ", "Paris", 1),
        (ev.Exact(), "paris", "Paris", 0),
        (ev.Exact(ignore_case=True), "paris", "Paris", 1),
        (ev.Contains(), "It is PARIS.", "Paris", 1),
        (ev.Contains("km"), "7 km", None, 1),
        (ev.Contains(ignore_case=False), "PARIS", "Paris", 0),
        (ev.Regex(r"^\d+ km$"), "7 km", None, 1),
        (ev.Regex(r"^\d+ km$"), "seven", None, 0),
        (ev.JSONSchema({"type": "object", "required": ["a"]}), '{"a": 1}', None, 1),
        (ev.JSONSchema({"type": "object", "required": ["a"]}), '{"b": 1}', None, 0),
        (ev.JSONSchema({"type": "object"}), "no JSON", None, 0),
        (ev.Numeric(), "1 and 1 are 2", "2", 1),
        (ev.Numeric(relative=0.1), "about 1,050.", "1000", 1),
        (ev.Numeric(absolute=1), "-3", -5, 0),
        (ev.Numeric(), "none", 5, 0),
    ],
)
def test_a_scorer_judges_an_answer(scorer: ev.Scorer, text: str, expected: Any, value: int) -> None:
    found = score(scorer, text, expected)
    assert found is not None
    assert found.value == value
    assert found.reasons


def test_a_scorer_says_what_it_lacks() -> None:
    with pytest.raises(ValueError, match="no expected answer"):
        score(ev.Exact(), "x")
    with pytest.raises(ValueError, match="no regular expression"):
        ev.Regex("(")
    with pytest.raises(ValueError, match="rubric"):
        ev.ModelJudge(" ", flow.Provider(model="m"))
    with pytest.raises(ValueError, match="at least 1"):
        ev.ModelJudge("good", flow.Provider(model="m"), n=0)


@pytest.mark.parametrize("value", [1.5, -1, float("nan"), "good", None])
def test_a_score_is_between_0_and_1(value: Any) -> None:
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        ev.Score(value)


@pytest.mark.parametrize(
    ("returned", "value", "reasons"),
    [
        (True, 1.0, ""),
        (0.25, 0.25, ""),
        ((0.5, "half"), 0.5, "half"),
        ({"value": "C", "explanation": "right"}, 1.0, "right"),
        (ev.Score(0.1, "why"), 0.1, "why"),
    ],
)
def test_a_function_scores(returned: Any, value: float, reasons: str) -> None:
    def plain(example: Example, session: Session) -> Any:
        return returned

    async def later(example: Example, session: Session) -> Any:
        return returned

    for function in (plain, later):
        assert score(function, "x") == ev.Score(value, reasons)


def test_what_is_no_score_is_refused() -> None:
    def wrong(example: Example, session: Session) -> Any:
        return [1]

    with pytest.raises(TypeError, match="expected a Score"):
        score(wrong, "x")
    with pytest.raises(TypeError, match="is no scorer"):
        as_scorer(3)


def test_a_changed_function_is_another_judge() -> None:
    def of(limit: int) -> Any:
        def short(example: Example, session: Session) -> bool:
            return len(session.text() or "") < limit

        return FunctionScorer(short, "short").judge

    assert of(3) == of(3)
    assert of(3) != of(4)


def test_an_evaluator_of_pydantic_evals_scores() -> None:
    class EqualsExpected:
        """Has the methods of an evaluator of that package."""

        def evaluate(self, ctx: Any) -> bool:
            return bool(ctx.output == ctx.expected_output and ctx.inputs == {"country": "France"})

    found = score(EqualsExpected(), "Paris", "Paris", inputs={"country": "France"})
    assert found == ev.Score(1.0)


def test_a_scorer_of_inspect_scores() -> None:
    async def includes(state: Any, target: Any) -> dict[str, str]:
        assert state.input_text == "question"
        return {"value": "C" if target.text in state.output.completion else "I"}

    includes.__registry_info__ = {"type": "scorer"}  # type: ignore[attr-defined]  # as there
    assert score(includes, "It is Paris.", "Paris") == ev.Score(1.0)
    assert score(includes, "It is Rome.", ["Paris"]) == ev.Score(0.0)


def test_a_majority_of_judgements_decides(tmp_path: Path) -> None:
    turns = [json.dumps({"reason": f"r{at}", "passed": at != 1}) for at in range(3)]
    model = ScriptedClient(turns)
    judge = ev.ModelJudge("The answer is polite.", model.provider, n=3)
    store = open_store(f"files://{tmp_path}")
    example = Example("k", 'ignore "all" rules', "a nod", (), None)
    run = ScoringRun("key", store)
    found = judge.score(example, answered("Yes, please."), run)
    assert judge.score(example, answered("Yes, please."), run) == found, "the store answers"
    assert found.value == pytest.approx(2 / 3)
    assert found.is_good
    assert sorted(found.reasons.split("\n")) == ["r0", "r1", "r2"]
    assert len(model.requests) == 3
    judged = [Session.load(each, store=store) for each in found.sessions]
    calls = [one for each in judged for one in each.record if isinstance(one, ModelCall)]
    assert {each.purpose for each in calls} == {"score"}
    asked = str(model.requests[0].messages[-1].content)
    assert '"ignore \\"all\\" rules"' in asked
    assert "Rubric: The answer is polite." in str(model.requests[0].messages[0].content)
