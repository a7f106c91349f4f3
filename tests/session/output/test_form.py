"""Texts of a model read as a type, and what a session says of its typed answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, RootModel, field_validator
from typing_extensions import TypedDict

from rath.errors import OutputError
from rath.llm import Provider
from rath.session import ChunkTable, Session, load_session, run_session_compress
from rath.session.output import OutputForm, output_form
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.api import Unfit, plain_answer
from tests.support.sessions import FunctionTool, run


class Count(BaseModel):
    words: int
    kind: Literal["text", "code"] = "text"


class Even(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def halves(cls, number: int) -> int:
        if number < 0:
            raise KeyError(number)
        if number % 2:
            raise ValueError("must be even")
        return number


class Numbers(RootModel[list[int]]):
    """A model that makes no JSON object."""


@dataclass
class Point:
    x: int


class Row(TypedDict):
    x: int


counts = st.builds(Count, words=st.integers(), kind=st.sampled_from(["text", "code"]))
prose = st.text(st.characters(blacklist_characters="`", codec="utf-8"), max_size=30)


def why(form: OutputForm, text: str) -> str:
    with pytest.raises(Unfit) as caught:
        form.read_answer(text)
    return str(caught.value)


@given(counts, prose, prose)
def test_a_fenced_block_is_found_in_any_prose(count: Count, before: str, after: str) -> None:
    reply = f"{before}\n```json\n{count.model_dump_json(indent=1)}\n```\n{after}"
    assert output_form(Count).read_answer(reply) == count


@given(st.text(max_size=40))
def test_any_text_that_does_not_fit_is_refused(text: str) -> None:
    assert why(output_form(Count), text)


@pytest.mark.parametrize(
    ("wanted", "text", "value"),
    [
        (list[int], "[1, 2]", [1, 2]),
        (list[Count], '{"value": [{"words": 1}]}', [Count(words=1)]),
        (int, "7", 7),
        (str, '"seven"', "seven"),
        (int | None, "null", None),
        (Optional[Count], '{"words": 1}', Count(words=1)),  # noqa: UP045  # users write it
        (Literal["a", "b"], '"b"', "b"),
        (Numbers, "[1]", Numbers([1])),
        (Point, '{"x": 1}', Point(1)),
        (Row, '{"x": 1}', {"x": 1}),
        (dict[str, int], '{"value": 1}', {"value": 1}),
    ],
    ids=str,
)
def test_any_type_that_pydantic_knows_will_do(wanted: Any, text: str, value: object) -> None:
    form = output_form(wanted)
    assert form.schema["type"] == "object"
    assert form.read_answer(text) == value


@pytest.mark.parametrize(
    "wanted",
    ["Count", 5, True, {"type": "object"}, Count(words=1), [Count], print],
    ids=["a name", "a number", "a flag", "a schema", "an object", "a list", "a function"],
)
def test_what_is_no_type_is_refused(wanted: object) -> None:
    with pytest.raises(TypeError, match="output must be a type"):
        output_form(wanted)


class Opaque:
    """Nothing that pydantic could make."""


class Colour(Enum):
    """An enum that is no text."""

    RED = "red"


@pytest.mark.parametrize(
    "wanted",
    [Opaque, list[Opaque], list["Nowhere"], Literal[Colour.RED], list[type[int]]],  # type: ignore[name-defined]  # noqa: F821  # nowhere is the point
)
def test_a_type_without_a_schema_is_refused(wanted: object) -> None:
    with pytest.raises(TypeError, match="has no JSON Schema"):
        output_form(wanted)


@pytest.mark.parametrize(
    ("wanted", "text", "problem"),
    [
        (Count, "", "it is empty"),
        (Count, "twelve", "it is not JSON"),
        (Count, '{"words": ', "it is not JSON"),
        (Count, "{}", "words: Field required"),
        (Count, '{"words": "twelve"}', "words: Input should be a valid integer"),
        (Count, '{"words": 1, "kind": "song"}', "not 'song'"),
        (Count, "[]", "the whole: Input should be an object"),
        (list[int], "one, two", "it is not JSON"),
        (Even, '{"number": 3}', "number: Value error, must be even, not 3"),
        (Even, '{"number": -1}', "KeyError: -1"),
    ],
)
def test_the_problem_of_an_answer_in_words(wanted: object, text: str, problem: str) -> None:
    assert problem in why(output_form(wanted), text)


def test_many_problems_are_counted() -> None:
    problem = why(output_form(list[int]), json.dumps(["x"] * 100))
    assert "and 90 more" in problem
    assert len(problem) < 3000


def typed(*turns: Any, output: object = Count, **options: Any) -> Session:
    return run(turns, output=output, **options).synchronize()


def error_of(session: Session) -> str:
    with pytest.raises(OutputError) as caught:
        _ = session.output
    return str(caught.value)


def derivations(session: Session) -> Sequence[Session]:
    return [
        session.fork(),
        session.detach(),
        session.fork().fork(),
        session.merge(Session.create("user", "x")),
    ]


def test_derived_sessions_keep_the_output() -> None:
    out = typed('{"words": 3}')
    assert [one.output for one in derivations(out)] == [Count(words=3)] * 4


def test_a_merge_tells_the_problem_of_its_right_side() -> None:
    merged = Session.create("user", "x").merge(typed("no", output_retries=0))
    assert "gave no Count" in error_of(merged)


def test_what_no_run_was_asked_for_is_no_output() -> None:
    out = typed('{"words": 3}')
    short = run_session_compress(out, out, agent_provider=ScriptedClient(["short"]).provider)
    for other in (Session.create("user", "x"), run(["more"], user=out), short):
        assert "no run was asked for one" in error_of(other)
    with pytest.raises(OutputError, match="holds no answer"):
        Session.create("user", '{"words": 3}').output_as(Count)
    assert plain_answer(Session.create("user", "x")) is None
    assert plain_answer(run(["no number"], output=int, output_retries=0)) == "no number"


def reloaded(session: Session) -> Session:
    loaded, _ = load_session(session.id).to_resumable_pair()
    return loaded


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_tool_of_the_user_is_not_taken_for_the_answer(is_loaded: bool) -> None:
    mine = FunctionTool("final_answer_log", lambda *_: 1)
    turns: list[Turn] = [tool_call("final_answer_log", {"words": 9}), '{"words": 3}']
    out = run(turns, mine, output=Count, persist=True).synchronize()
    log_only = ChunkTable(out.chunk_table.rows[:2])
    one = reloaded(out) if is_loaded else out
    assert one.output_as(Count) == Count(words=3)
    with pytest.raises(OutputError, match="is no Count"):
        Session(log_only).output_as(Count)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_of_tools_with_like_names_the_one_that_takes_the_answer_is_read(is_loaded: bool) -> None:
    mine = FunctionTool("final_answer", lambda *_: 1)
    turn = tool_call("final_answer_2", {"words": 3}, tool_call("final_answer", {"words": 9}))
    out = run([turn], mine, output=Count, persist=True).synchronize()
    assert (reloaded(out) if is_loaded else out).output_as(Count) == Count(words=3)


def test_the_answer_that_is_read_again_is_the_one_that_counted() -> None:
    out = typed(
        tool_call(
            "final_answer", {"words": "x"},
            tool_call("final_answer", {"words": 2}, tool_call("final_answer", {"words": 3})),
        )
    )  # fmt: skip
    assert out.output_as(Count) == out.output == Count(words=2)


@dataclass
class Found:
    where: str
    lines: list[int]


FOUND = {"where": "a.py", "lines": [1, 2]}


def typed_by(reply: Any, output: object, mode: str) -> Session:
    client = ScriptedClient([reply], provider=Provider(output_mode=mode))  # type: ignore[arg-type]  # a test says which
    return run([], agent_provider=client.provider, output=output).synchronize()


CASES: dict[str, tuple[Any, object, str, Any]] = {
    "by schema": ('{"where": "a.py", "lines": [1, 2]}', Found, "schema", FOUND),
    "by tool": (tool_call("final_answer", FOUND), Found, "tool", FOUND),
    "a number": ("7", int, "schema", 7),
    "a number by tool": (tool_call("final_answer", {"value": 7}), int, "tool", 7),
}


@pytest.mark.parametrize(("reply", "output", "mode", "answer"), CASES.values(), ids=CASES.keys())
def test_a_typed_answer_is_what_it_says_also_once_it_is_loaded(
    reply: Any, output: object, mode: str, answer: Any, tmp_path: Path
) -> None:
    session = typed_by(reply, output, mode)
    assert plain_answer(session) == answer
    session.save(path=tmp_path / "s.jsonl")
    assert plain_answer(Session.load(tmp_path / "s.jsonl")) == answer
