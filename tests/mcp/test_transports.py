"""A server with everything, on each transport: what it answers arrives, and nothing is left."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from mcp_types import TextContent, TextResourceContents
from opentelemetry.sdk.trace import TracerProvider

from rath.errors import MCPConnectionError, MCPTimeout
from rath.flow.tool import mcp_tools_from_server
from rath.flow.tool.mcp_adapter import tools_of
from rath.llm.image import Image
from rath.mcp import MCPClient, ServerSpec
from rath.mcp.spec import Transport
from tests.support.mcp_own import RunningServer, eventually, own_server, own_stdio
from tests.support.waiting import at_a_deadline

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module", params=get_args(Transport))
def spec(request: pytest.FixtureRequest) -> Iterator[ServerSpec]:
    with own_server(request.param) as spec:
        yield spec


@pytest.fixture(scope="module")
def shared(spec: ServerSpec) -> Iterator[MCPClient]:
    with MCPClient(spec) as client:
        yield client


def test_the_server_is_known_by_what_it_says(shared: MCPClient) -> None:
    info = shared.server_info
    assert (info.name, info.version) == ("own", "1.2.3")


def test_the_tools_are_listed(shared: MCPClient) -> None:
    assert {"add", "slow", "die"} <= {tool.name for tool in shared.list_tools()}


def test_structured_content_arrives(shared: MCPClient) -> None:
    assert shared.call_tool("add", {"a": 2, "b": 3}).structured_content == {"result": 5}


def test_the_span_of_the_program_is_named_to_the_server(shared: MCPClient) -> None:
    assert shared.call_tool("spans", {}).structured_content == {"result": "None"}
    with TracerProvider().get_tracer("tests").start_as_current_span("request") as caller:
        named: dict[str, str] = shared.call_tool("spans", {}).structured_content or {}
    context = caller.get_span_context()
    assert named["result"].startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-")


def test_a_huge_answer_arrives_complete(shared: MCPClient) -> None:
    shared.list_tools()  # before that nobody knows the transport
    # The SDK takes no event above 1 MiB by SSE.
    n = 500_000 if shared.transport == "sse" else 3_000_000
    (content,) = shared.call_tool("huge", {"n": n}).content
    assert isinstance(content, TextContent)
    assert len(content.text) == n


def test_resources_are_reached(shared: MCPClient) -> None:
    (listed,) = shared.list_resources()
    (content,) = shared.read_resource(str(listed.uri)).contents
    assert isinstance(content, TextResourceContents)
    assert content.text == "a note"


def test_prompts_are_reached(shared: MCPClient) -> None:
    (listed,) = shared.list_prompts()
    (message,) = shared.get_prompt(listed.name, {"name": "Ada"}).messages
    assert isinstance(message.content, TextContent)
    assert message.content.text == "Greet Ada."


def test_progress_is_reported_in_order(shared: MCPClient, tmp_path: Path) -> None:
    told: list[tuple[float, float | None, str | None]] = []

    def tell(done: float, total: float | None, message: str | None) -> None:
        told.append((done, total, message))

    given = {"seconds": 0, "mark": str(tmp_path / "mark")}
    shared.call_tool("slow", given, on_progress=tell)
    assert told == [(0.0, 3.0, "step 0"), (1.0, 3.0, "step 1"), (2.0, 3.0, "step 2")]


def test_a_call_above_its_deadline_is_cancelled_at_the_server(
    shared: MCPClient, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"

    def run_until(deadline: float) -> None:
        expected = f"did not answer the call of 'slow' within {deadline:g} s"
        with pytest.raises(MCPTimeout, match=expected):
            shared.call_tool("slow", {"seconds": 60, "mark": str(mark)}, timeout=deadline)

    at_a_deadline(run_until, lambda _: mark.exists())
    assert eventually(lambda: mark.read_text() == "cancelled")


def test_a_cancelled_call_is_cancelled_at_the_server(shared: MCPClient, tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def cancel_it() -> None:
        call = asyncio.ensure_future(shared.acall_tool("slow", {"seconds": 60, "mark": str(mark)}))
        assert await asyncio.to_thread(eventually, mark.exists)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(cancel_it())
    assert eventually(lambda: mark.read_text() == "cancelled")


def test_two_hundred_calls_go_side_by_side(shared: MCPClient, tmp_path: Path) -> None:
    async def call_all() -> list[bool | None]:
        calls = (
            shared.acall_tool("slow", {"seconds": 0.2, "mark": str(tmp_path / str(n))})
            for n in range(200)
        )
        return [result.is_error for result in await asyncio.gather(*calls)]

    assert asyncio.run(call_all()) == [False] * 200


def test_a_changed_list_is_stale_until_it_is_read(spec: ServerSpec) -> None:
    with MCPClient(spec) as client:
        client.list_tools()
        client.call_tool("grow", {})
        assert eventually(lambda: client.is_list_stale)
        assert "grown" in {tool.name for tool in client.list_tools()}
        assert not client.is_list_stale


def test_what_the_server_logs_is_logged_at_debug(
    spec: ServerSpec, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "rath.mcp.server"), MCPClient(spec) as client:
        client.call_tool("speak", {})
        assert eventually(lambda: "spoken" in caplog.text)


def test_every_part_of_an_answer_is_preserved(shared: MCPClient) -> None:
    found = {tool.name: tool for tool in tools_of(shared)}["pictures"](None, {})  # type: ignore[arg-type]  # the session is not sent
    picture, *others = found["content"]
    assert found["text"] == "look"
    assert isinstance(picture, Image)
    assert [other["type"] for other in others] == ["audio", "resource", "resource_link"]


def test_annotations_say_what_repeating_would_do(shared: MCPClient) -> None:
    effects = {tool.name: (tool.effects, tool.parallel_safe) for tool in tools_of(shared)}
    assert effects["add"] == ("read_only", True)
    assert effects["pictures"] == ("idempotent", False)
    assert effects["slow"] == ("non_idempotent", False)


def test_the_origin_names_server_version_and_transport(shared: MCPClient) -> None:
    tool = tools_of(shared)[0]
    assert tool.origin.startswith(f"mcp:own@1.2.3 {shared.transport} ")


def test_an_error_of_a_tool_is_a_failure_that_the_model_reads(shared: MCPClient) -> None:
    tool = {tool.name: tool for tool in tools_of(shared)}["fail"]
    failure = tool(None, {})  # type: ignore[arg-type]  # the session is not sent
    assert failure.kind == "mcp_tool_error"
    assert "no such city: Atlantis" in failure.message


def test_a_server_that_ends_in_a_call_is_reported_and_the_next_use_connects_again() -> None:
    with MCPClient(own_stdio()) as client:
        with pytest.raises(MCPConnectionError, match=r"exit status 3.*out of memory"):
            client.call_tool("die", {})
        assert client.call_tool("add", {"a": 1, "b": 1}).structured_content == {"result": 2}


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_a_server_at_an_address_that_comes_back_is_connected_to_again(transport: str) -> None:
    with RunningServer(transport) as running, MCPClient(running.spec) as client:
        with pytest.raises(MCPConnectionError, match="was lost during the call of 'die'"):
            client.call_tool("die", {})
        running.start_again()
        assert client.call_tool("add", {"a": 1, "b": 1}).structured_content == {"result": 2}


def test_a_server_that_was_killed_between_calls_is_started_again() -> None:
    with MCPClient(own_stdio()) as client:
        client.list_tools()
        pid = client.pid
        assert pid is not None
        os.kill(pid, 9)
        assert eventually(lambda: not client.is_connected)
        assert client.call_tool("add", {"a": 1, "b": 1}).structured_content == {"result": 2}


def test_secrets_of_the_program_do_not_reach_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    monkeypatch.setenv("GIVEN_FROM", "given")
    names = ["OPENAI_API_KEY", "PATH", "GIVEN"]
    server = own_stdio()
    client = MCPClient(server.command, args=server.args, env={"GIVEN": "${GIVEN_FROM}"})
    with client:
        found = client.call_tool("variables", {"names": names}).structured_content
    assert found == {"OPENAI_API_KEY": None, "PATH": os.environ["PATH"], "GIVEN": "given"}


def test_the_last_tool_closes_the_connection() -> None:
    server = own_stdio()
    tools = mcp_tools_from_server([server.command, *server.args])
    pid = tools[0].client.pid
    del tools
    assert eventually(lambda: not os.path.exists(f"/proc/{pid}"))
