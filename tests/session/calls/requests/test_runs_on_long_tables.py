"""A run on a long table goes on from the requests of the run before, and asks the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from rath.flow import Agent, Provider
from rath.flow.tool import FlowToolCall
from rath.session import ChunkTable, Session, user_text_chunk
from rath.session.chunk import assistant_turn_chunk
from rath.session.record import ModelCall
from rath.testing import ScriptedClient, tool_call
from tests.support.api import MANY_ROWS

ROWS = [
    user_text_chunk(f"question {i}")
    if i % 2 == 0
    else assistant_turn_chunk(tool_calls=None, content=f"answer {i}")
    for i in range(MANY_ROWS + 1)
]


def agent(prompt: str = "You answer.", *, n_turns: int = 4) -> Agent:
    client = ScriptedClient([f"said {i}" for i in range(n_turns)])
    return Agent(prompt, client.provider, system_tools=False)


def digest(session: Session) -> str:
    """That of the last request."""
    call = session.record[-1]
    assert isinstance(call, ModelCall)
    return call.evidence.request_digest


def digest_made_anew(session: Session, prompt: str) -> str:
    """That of a request on the rows before the answer, in a table of its own."""
    rows = session.chunk_table.rows[:-1]
    return digest(agent(prompt)(Session(ChunkTable(rows))).synchronize())


def asked_on(session: Session) -> Session:
    return Session(session.chunk_table.extend(user_text_chunk("and then?")))


NEXT: dict[str, Callable[[Session], Session]] = {
    "itself": lambda session: session,
    "fork": lambda session: session.fork(),
    "merged": lambda session: session.merge(Session.from_user_message("and then?")),
}


@pytest.mark.parametrize("go_on", NEXT.values(), ids=NEXT.keys())
def test_the_next_run_goes_on_from_the_requests_of_the_one_before(
    go_on: Callable[[Session], Session],
) -> None:
    asked = agent()
    first = asked(Session(ChunkTable(ROWS))).synchronize()
    left = first.chunk_table.cache.requests
    assert left is not None
    second = asked(go_on(first)).synchronize()
    again = second.chunk_table.cache.requests
    assert again is not None
    assert again[1] is left[1]
    assert digest(second) == digest_made_anew(second, "You answer.")
    assert [row.kind_name for row in second.chunk_table][-1] == "assistant"


def test_of_two_branches_one_goes_on_and_both_ask_what_they_should() -> None:
    asked = agent(n_turns=5)
    first = asked(Session(ChunkTable(ROWS))).synchronize()
    branches = [
        asked(first.merge(Session.from_user_message(text))).synchronize()
        for text in ("one way", "another way")
    ]
    third = asked(asked_on(branches[0])).synchronize()
    for session in (*branches, third):
        assert digest(session) == digest_made_anew(session, "You answer.")


@pytest.mark.parametrize("prompt", ["You answer.", "You doubt."])
def test_another_agent_and_a_session_without_the_record_begin_anew(prompt: str) -> None:
    asked = agent()
    first = asked(Session(ChunkTable(ROWS))).synchronize()
    left = first.chunk_table.cache.requests
    if prompt == "You answer.":
        second = asked(asked_on(first)).synchronize()
    else:
        second = agent(prompt)(first).synchronize()
    again = second.chunk_table.cache.requests
    assert left is not None
    assert again is not None
    assert again[1] is not left[1]
    assert digest(second) == digest_made_anew(second, prompt)


class Pick(FlowToolCall):
    """A tool whose schema its program may change."""

    def __init__(self, **schema: Any) -> None:
        self.schema: dict[str, Any] = {"type": "object", "properties": {"x": schema}}

    @property
    def name(self) -> str:
        return "pick"

    @property
    def description(self) -> str:
        return "Picks."

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.schema

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return "x"


Setting = tuple[Pick, Provider]


def with_longer_enum(tool: Pick, provider: Provider) -> Setting:
    tool.schema["properties"]["x"]["enum"].append("b")
    return tool, provider


def with_other_default(_: Pick, provider: Provider) -> Setting:
    return Pick(default=True), provider


def with_float_temperature(tool: Pick, provider: Provider) -> Setting:
    return tool, replace(provider, temperature=1.0)


def with_other_extra(tool: Pick, provider: Provider) -> Setting:
    return tool, replace(provider, extra_create_args={"logprobs": True})


def with_longer_metadata(tool: Pick, provider: Provider) -> Setting:
    provider.extra_create_args["metadata"]["b"] = "2"
    return tool, provider


Case = tuple[Callable[[Pick, Provider], Setting], Pick, dict[str, Any]]
CASES: dict[str, Case] = {
    "enum in place": (with_longer_enum, Pick(enum=["a"]), {}),
    "default": (with_other_default, Pick(default=1), {}),
    "temperature": (with_float_temperature, Pick(), {"temperature": 1}),
    "extra": (with_other_extra, Pick(), {"extra_create_args": {"logprobs": 1}}),
    "extra in place": (
        with_longer_metadata, Pick(), {"extra_create_args": {"metadata": {"a": "1"}}}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "tool", "fields"), CASES.values(), ids=CASES.keys())
def test_a_request_that_would_be_another_in_bytes_is_made_anew(
    change: Callable[[Pick, Provider], tuple[Pick, Provider]], tool: Pick, fields: dict[str, Any]
) -> None:
    client = ScriptedClient([f"said {i}" for i in range(4)])

    def ask(tool: Pick, provider: Provider, session: Session) -> Session:
        return Agent("You answer.", provider, [tool], system_tools=False)(session).synchronize()

    provider = replace(client.provider, **fields)
    first = ask(tool, provider, Session(ChunkTable(ROWS)))
    tool, provider = change(tool, provider)
    second = ask(tool, provider, asked_on(first))
    rows = second.chunk_table.rows[:-1]
    anew = ask(tool, provider, Session(ChunkTable(rows)))
    assert digest(second) == digest(anew)
    assert digest(second) != digest(first)


def test_what_goes_on_from_earlier_requests_replays_without_a_difference() -> None:
    client = ScriptedClient(
        ["first", tool_call("workspace_path_exists", {"path": "a"}), "second", "third"]
    )
    asked = Agent("You answer.", client.provider)
    session = Session(ChunkTable(ROWS)).to("local")
    for _ in range(3):
        session = asked(session)
    assert session.replay().chunk_table == session.chunk_table


def test_a_short_session_keeps_no_requests() -> None:
    session = agent()(Session.from_user_message("hello")).synchronize()
    assert session.chunk_table.cache.requests is None


def test_digest_of_a_table_is_that_of_its_rows_on_every_branch() -> None:
    root = ChunkTable(ROWS)
    digests = [root.digest()]
    for text in ("one way", "another way"):
        branch = root.extend(user_text_chunk(text))
        digests.append(branch.digest())
        assert branch.digest() == ChunkTable(branch.rows).digest()
    assert root.prefix(3).digest() == ChunkTable(ROWS[:3]).digest()
    assert len({*digests}) == 3
    assert root.digest() == digests[0]
