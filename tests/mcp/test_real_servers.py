"""The client on servers that are not ours: the same suite on every transport that one has."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)

from rath.errors import MCPRequestError
from rath.mcp.client import MCPClient
from rath.mcp.spec import Transport
from tests.support.mcp_servers import (
    everything_on,
    filesystem_server,
    git_server,
    own_repository,
    time_server,
)

pytestmark = pytest.mark.timeout(120)
"""Servers take seconds to start on a busy machine."""

SLOW = "trigger-long-running-operation"


@contextmanager
def connected(transport: Transport, directory: Path) -> Generator[MCPClient]:
    """A client of the server with everything."""
    with everything_on(transport, directory) as spec, MCPClient(spec) as client:
        yield client


@pytest.fixture(scope="module", params=get_args(Transport))
def everything(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MCPClient]:
    """A client of the server with everything, on each transport."""
    with connected(request.param, tmp_path_factory.mktemp("everything")) as client:
        yield client


def text_of(result: CallToolResult) -> str:
    """The texts of a result, a line each."""
    return "\n".join(each.text for each in result.content if isinstance(each, TextContent))


def test_the_handshake_tells_who_the_server_is(everything: MCPClient) -> None:
    assert everything.server_info.name == "mcp-servers/everything"
    assert everything.server_info.version == "2.0.0"


def test_tools_are_listed_with_schema_and_annotations(everything: MCPClient) -> None:
    tools = {tool.name: tool for tool in everything.list_tools()}
    assert {"echo", "get-sum", "get-tiny-image", SLOW} <= set(tools)
    assert tools["echo"].input_schema["required"] == ["message"]
    hints = tools["echo"].annotations
    assert hints is not None
    assert (hints.read_only_hint, hints.idempotent_hint) == (True, True)


def test_a_call_gives_text(everything: MCPClient) -> None:
    result = everything.call_tool("echo", {"message": "a\nb \u2603 \U0001f426"})
    assert text_of(result) == "Echo: a\nb \u2603 \U0001f426"
    assert not result.is_error


def test_a_call_gives_structured_content(everything: MCPClient) -> None:
    result = everything.call_tool("get-structured-content", {"location": "Chicago"})
    assert result.structured_content == json.loads(text_of(result))
    assert result.structured_content["humidity"] == 82


def test_a_call_gives_an_image(everything: MCPClient) -> None:
    result = everything.call_tool("get-tiny-image", {})
    (image,) = [each for each in result.content if isinstance(each, ImageContent)]
    assert image.mime_type == "image/png"
    assert base64.b64decode(image.data).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("kind", "contents"), [("Text", TextResourceContents), ("Blob", BlobResourceContents)]
)
def test_a_call_gives_an_embedded_resource(
    everything: MCPClient, kind: str, contents: type[Any]
) -> None:
    asked = {"resourceType": kind, "resourceId": 3}
    result = everything.call_tool("get-resource-reference", asked)
    (embedded,) = [each for each in result.content if isinstance(each, EmbeddedResource)]
    assert isinstance(embedded.resource, contents)
    assert str(embedded.resource.uri) == f"demo://resource/dynamic/{kind.lower()}/3"


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("get-sum", {"a": "x", "b": 1}, "expected number, received string at a"),
        ("no-such-tool", {}, "Tool no-such-tool not found"),
    ],
    ids=["arguments", "name"],
)
def test_a_failed_call_is_a_result_that_says_so(
    everything: MCPClient, tool: str, arguments: dict[str, Any], said: str
) -> None:
    result = everything.call_tool(tool, arguments)
    assert result.is_error
    assert said in text_of(result)


def test_steps_are_reported_in_order(everything: MCPClient) -> None:
    steps: list[tuple[float, float | None]] = []
    asked = {"duration": 0.05, "steps": 5}
    result = everything.call_tool(
        SLOW, asked, on_progress=lambda done, total, _: steps.append((done, total))
    )
    assert steps == [(step, 5) for step in (1, 2, 3, 4, 5)]
    assert "completed" in text_of(result)


def test_answers_of_calls_at_once_are_not_mixed_up(everything: MCPClient) -> None:
    async def call_all() -> list[CallToolResult]:
        calls = [everything.acall_tool("get-sum", {"a": n, "b": 1000}) for n in range(50)]
        return await asyncio.gather(*calls)

    said = [text_of(result) for result in asyncio.run(call_all())]
    assert said == [f"The sum of {n} and 1000 is {n + 1000}." for n in range(50)]


def test_prompts_are_listed_and_filled_in(everything: MCPClient) -> None:
    assert {"simple-prompt", "args-prompt"} <= {each.name for each in everything.list_prompts()}
    (message,) = everything.get_prompt("args-prompt", {"city": "Bonn"}).messages
    assert isinstance(message.content, TextContent)
    assert message.content.text == "What's weather in Bonn?"


def test_resources_are_listed_and_read(everything: MCPClient) -> None:
    (uri,) = [str(each.uri) for each in everything.list_resources() if each.name == "features.md"]
    (content,) = everything.read_resource(uri).contents
    assert isinstance(content, TextResourceContents)
    assert content.text.startswith("# Everything Server")


def test_a_refused_request_is_an_error_with_its_code(everything: MCPClient) -> None:
    with pytest.raises(MCPRequestError, match="demo://nowhere not found") as refused:
        everything.read_resource("demo://nowhere")
    assert refused.value.code == -32602


def test_the_time_server_converts_a_time() -> None:
    asked = {"source_timezone": "Europe/Paris", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    with MCPClient(time_server()) as client:
        result = client.call_tool("convert_time", asked)
        refused = client.call_tool("get_current_time", {"timezone": "Mars/Olympus"})
    assert result.structured_content is not None
    assert result.structured_content["target"]["timezone"] == "Asia/Tokyo"
    assert refused.is_error


def test_the_git_server_shows_a_commit_and_keeps_to_its_repository(tmp_path: Path) -> None:
    repository = own_repository(tmp_path / "garden")
    elsewhere = own_repository(tmp_path / "elsewhere")
    with MCPClient(git_server(repository)) as client:
        log = client.call_tool("git_log", {"repo_path": str(repository)})
        refused = client.call_tool("git_log", {"repo_path": str(elsewhere)})
    assert "Plan" in text_of(log)
    assert refused.is_error


def test_the_filesystem_server_keeps_to_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "beside.txt").write_text("beside")
    with MCPClient(filesystem_server(folder)) as client:
        asked = {"path": str(folder / "a.txt"), "content": "written"}
        assert not client.call_tool("write_file", asked).is_error
        refused = client.call_tool("read_text_file", {"path": str(tmp_path / "beside.txt")})
    assert (folder / "a.txt").read_text() == "written"
    assert refused.is_error
    assert "beside.txt" in text_of(refused)
