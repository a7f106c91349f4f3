"""A tool that a user writes: what it must give, what it gets, and what the model reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from rath import flow
from rath.flow.tool import FlowToolCall
from rath.session import ChunkKind, Session
from rath.testing import ScriptedClient, tool_call


class Plain(FlowToolCall):
    """Doubles a number."""

    @property
    def name(self) -> str:
        return "double"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
            "additionalProperties": False,
        }

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        return {"doubled": 2 * arguments["n"]}


class Awaited(Plain):
    """The same as a coroutine."""

    async def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        return {"doubled": 2 * arguments["n"]}


def test_a_tool_needs_name_parameters_and_call() -> None:
    assert FlowToolCall.__abstractmethods__ == {"name", "parameters", "__call__"}


def test_what_a_tool_gets_by_itself() -> None:
    tool = Plain()
    assert tool.description is None
    assert tool.parallel_safe is False
    assert tool.timeout is None
    assert tool.effects == "non_idempotent"
    assert tool.origin == f"{__name__}:Plain"


def test_the_lane_follows_parallel_safe() -> None:
    class Safe(Plain):
        parallel_safe = True

    assert Plain().resource_key({}) == ("global",)
    assert Safe().resource_key({}) == ("safe", "double")


@pytest.mark.parametrize("tool", [Plain(), Awaited()], ids=["def", "async def"])
def test_an_agent_runs_it_and_the_model_reads_its_result(tool: FlowToolCall) -> None:
    client = ScriptedClient([tool_call("double", {"n": 21}), "42"])
    out = flow.Agent("p", client.provider, [tool])(Session.from_user_message("hi"))
    assert out.text() == "42"
    results = [row for row in out.chunk_table if row.kind is ChunkKind.TOOL_RESULT]
    assert [json.loads(row.payload["content"]) for row in results] == [{"doubled": 42}]
