"""Agents: what their constructor takes, makes and refuses."""

from __future__ import annotations

import functools
import socket
import traceback
from typing import Any, cast

import pytest

import rath
from rath import flow
from rath.errors import ProviderConnectionError, ToolNameConflictError
from rath.session import Session, run_session_loop
from rath.testing import ScriptedClient, tool_call
from tests.support.sessions import AGENT

PROVIDER = flow.Provider(model="m", api_key="k")


def weather(city: str) -> str:
    """Weather of a city."""
    return f"rain in {city}"


class Desk:
    def note(self, text: str) -> str:
        """Note something."""
        return text


def results(out: Session) -> list[str]:
    return [str(row.payload["content"]) for row in out.chunk_table if row.kind == "tool_result"]


# ---------------------------------------------------------------- errors


def test_an_endpoint_that_is_not_there_is_told_in_a_few_lines() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    nowhere = flow.Provider(
        model="m", api_key="k", base_url=f"http://127.0.0.1:{port}/v1", retry_base_seconds=0,
        retry_max_attempts=2,
    )  # fmt: skip
    out = flow.Agent("p", nowhere)(Session.from_user_message("?"))
    with pytest.raises(ProviderConnectionError) as caught:
        out.synchronize()
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    assert len(lines) < 20
    assert "direct cause" not in "".join(lines)
    assert lines[-2] == "2 tries failed; this is the last one"


# ---------------------------------------------------------------- repr


def test_a_plain_agent_shows_prompt_provider_and_tools() -> None:
    agent = flow.Agent("Answer.", flow.Provider(model="m", api_key="abcdefghijk"), [weather])
    assert str(agent) == (
        "Agent(prompt='Answer.', provider=Provider(model='m', api_key='***'), tools=[weather])"
    )


def test_a_long_agent_stands_on_several_lines() -> None:
    agent = flow.Agent(
        "Answer.\n" * 100, flow.Provider(model="m"), system_tools=["run_code"], output=int,
        description="Good at sums.",
    )  # fmt: skip
    lines = repr(agent).splitlines()
    assert lines[0] == "Agent("
    assert lines[1].startswith(r"  prompt='Answer.\\nAns")
    assert len(lines[1]) < 80
    assert lines[2:] == [
        "  provider=Provider(model='m')", "  tools=[]", "  system_tools=['run_code']",
        "  output=int", "  description='Good at sums.'", ")",
    ]  # fmt: skip


def test_what_an_agent_holds_besides_is_shown_below_it() -> None:
    agent = flow.Agent("p", flow.Provider(model="m"))
    agent.helper = flow.EmptyWorkflow()  # type: ignore[attr-defined]  # set by name
    assert "\n  (helper): EmptyWorkflow()\n" in repr(agent)


# ---------------------------------------------------------------- tools


def test_a_typed_function_is_a_tool() -> None:
    model = ScriptedClient([tool_call("weather", {"city": "Oslo"}), "Wet."])
    out = flow.Agent("Answer.", model.provider, tools=[weather])(Session.from_user_message("?"))
    assert out.text() == "Wet."
    assert results(out) == ['"rain in Oslo"']
    (tool,) = [each for each in model.requests[0].tools or () if each.name == "weather"]
    assert tool.description == "Weather of a city."


@pytest.mark.parametrize(
    ("function", "name"),
    [(Desk().note, "note"), (functools.partial(weather, city="Oslo"), "weather")],
    ids=["method", "partial"],
)
def test_methods_and_partials_are_tools(function: Any, name: str) -> None:
    if isinstance(function, functools.partial):
        functools.update_wrapper(cast("Any", function), weather)
    given: list[Any] = [function]
    (tool,) = flow.Agent("p", PROVIDER, tools=given).tools
    assert tool.name == name


def test_a_function_is_registered_as_a_tool_once() -> None:
    agent = flow.Agent("p", PROVIDER)
    agent.register_tool(weather)
    agent.register_tool(rath.tool(weather))
    assert [tool.name for tool in agent.tools] == ["weather"]
    agent.unregister_tool("weather")
    assert agent.tools == []


def test_a_loop_takes_functions() -> None:
    model = ScriptedClient([tool_call("weather", {"city": "Oslo"}), "Wet."])
    out = run_session_loop(
        Session.from_user_message("?"), AGENT, agent_provider=model.provider, tools=[weather]
    )
    assert out.text() == "Wet."


def test_two_functions_of_one_name_are_told_apart_by_where_they_stand() -> None:
    agent = flow.Agent("p", PROVIDER, [weather, rath.tool(weather)], system_tools=False)
    with pytest.raises(ToolNameConflictError, match=r"named 'weather' \(\S+:weather and \S+:weath"):
        agent(Session.from_user_message("?"))


def untyped(city: str) -> str:
    return city


untyped.__annotations__.clear()


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([3], r"3 is no tool; expected a typed function, what @rath\.tool makes of one"),
        ([untyped], r"as @rath\.tool makes one.*parameter 'city' has no hint"),
        ([cast("Any", lambda: None)], r"as @rath\.tool makes one.*a lambda has no name"),
        ([flow.EmptyWorkflow()], r"EmptyWorkflow is no tool by itself.*as_tool\(name"),
        ([Desk], r"Desk is a class.*give Desk\(\.\.\.\).*@rath\.tool above it"),
        (weather, r"tools must be a list.*tools=\[my_tool\]"),
        (rath.tool(weather), r"tools must be a list"),
        ("run_shell_command", r"tools must be a list.*system_tools="),
    ],
    ids=["number", "untyped", "lambda", "workflow", "class", "function", "tool", "name"],
)
def test_what_is_no_tool_is_refused_at_once(tools: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        flow.Agent("p", PROVIDER, tools=tools)


def test_no_tool_is_registered_that_is_none() -> None:
    with pytest.raises(TypeError, match="is no tool"):
        flow.Agent("p", PROVIDER).register_tool(3)  # type: ignore[arg-type]  # refused


@pytest.mark.parametrize(
    ("names", "near"), [(["shell"], "run_shell_command"), (["read_file"], "read_workspace_file")]
)
def test_an_unknown_system_tool_is_refused_with_the_nearest_name(
    names: list[str], near: str
) -> None:
    with pytest.raises(LookupError, match=f"Did you mean '{near}'"):
        flow.Agent("p", PROVIDER, system_tools=names)


@pytest.mark.parametrize("wanted", ["shell", None, 3, [weather]])
def test_system_tools_are_a_flag_or_names(wanted: Any) -> None:
    with pytest.raises(TypeError, match="system_tools"):
        flow.Agent("p", PROVIDER, system_tools=wanted)
