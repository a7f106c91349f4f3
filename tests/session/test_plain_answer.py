"""The last answer as JSON can hold it: the same of a session in memory and of a loaded one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rath.llm import Provider
from rath.session import Session
from rath.testing import ScriptedClient, tool_call
from tests.support.api import plain_answer
from tests.support.sessions import run


@dataclass
class Found:
    where: str
    lines: list[int]


FOUND = {"where": "a.py", "lines": [1, 2]}


def typed(said: Any, output: object, mode: str) -> Session:
    client = ScriptedClient([said], provider=Provider(output_mode=mode))  # type: ignore[arg-type]  # a test says which
    return run([], agent_provider=client.provider, output=output).synchronize()


CASES: dict[str, tuple[Any, object, str, Any]] = {
    "by schema": ('{"where": "a.py", "lines": [1, 2]}', Found, "schema", FOUND),
    "by tool": (tool_call("final_answer", FOUND), Found, "tool", FOUND),
    "a number": ("7", int, "schema", 7),
    "a number by tool": (tool_call("final_answer", {"value": 7}), int, "tool", 7),
}


@pytest.mark.parametrize(("said", "output", "mode", "answer"), CASES.values(), ids=CASES.keys())
def test_a_typed_answer_is_what_it_says_also_once_it_is_loaded(
    said: Any, output: object, mode: str, answer: Any, tmp_path: Path
) -> None:
    session = typed(said, output, mode)
    assert plain_answer(session) == answer
    session.save(path=tmp_path / "s.jsonl")
    assert plain_answer(Session.load(tmp_path / "s.jsonl")) == answer


def test_an_answer_that_did_not_fit_is_its_text() -> None:
    session = run(["no number"], output=int, output_retries=0).synchronize()
    assert plain_answer(session) == "no number"


def test_plain_text_is_text() -> None:
    assert plain_answer(run(["hello"]).synchronize()) == "hello"


def test_where_nothing_was_said_there_is_none() -> None:
    assert plain_answer(Session.from_user_message("go")) is None
