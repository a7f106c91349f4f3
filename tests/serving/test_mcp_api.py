"""Served workflows as tools over MCP, each call that of a principal."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette
from starlette.routing import Mount

from rath._async.runtime import runtime
from rath.flow import Agent
from rath.llm.chat_request import RathLLMChatRequest
from rath.serving import Principal, ServerOptions, TokenFile, asgi
from rath.session.persistence.store import FileStore
from rath.testing import ScriptedClient, tool_call
from tests.support.serving import listening
from tests.support.sessions import FunctionTool


def echo(request: RathLLMChatRequest) -> str:
    """Answer as a model that says again what was said last."""
    return f"you said {request.messages[-1].content}"


class Served:
    """A server with tokens for two principals."""

    def __init__(self, url: str, tokens: TokenFile) -> None:
        self.url = url
        self.one = tokens.add(Principal(name="one"))
        self.two = tokens.add(Principal(name="two", workflows=("other",), max_runs=1))

    def call(self, token: str, message: str, **more: object) -> dict[str, Any]:
        """Call the tool with a token, and return the answer."""
        return asked(self.url, token, message, **more)


def asked(url: str, token: str, message: str, **more: object) -> dict[str, Any]:
    """Call the tool, and return the answer."""

    async def call() -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            result = await client.call_tool("team", {"message": message, **more})
            answer: dict[str, Any] = result.structured_content
            return answer

    answer: dict[str, Any] = runtime().run(call, label="a client")
    return answer


@pytest.fixture
def served(tmp_path: Path) -> Generator[Served]:
    tokens = TokenFile(tmp_path / "serve" / "tokens.json")
    options = ServerOptions(
        tokens=tokens, store=FileStore(tmp_path / "sessions"), openai=False, a2a=False
    )
    team = Agent("x", ScriptedClient([echo] * 3).provider, system_tools=False)
    with listening(asgi({"team": team}, options)) as url:
        yield Served(f"{url}/mcp/team", tokens)


def test_a_principal_calls_a_workflow_and_goes_on_with_its_session(served: Served) -> None:
    first = served.call(served.one, "hello")
    second = served.call(served.one, "again", session_id=first["session_id"])
    assert (first["text"], second["text"]) == ("you said hello", "you said again")


def test_a_mounted_application_serves_its_tool(tmp_path: Path) -> None:
    options = ServerOptions(
        tokens=TokenFile(tmp_path / "tokens.json"), store=FileStore(tmp_path / "sessions")
    )
    team = Agent("x", ScriptedClient([echo] * 2).provider, system_tools=False)
    outer = Starlette(routes=[Mount("/agents", asgi({"team": team}, options))])
    with listening(outer) as url:
        answers = [asked(f"{url}/agents/mcp/team", "any", each) for each in ("hello", "again")]
    assert [each["text"] for each in answers] == ["you said hello", "you said again"]


def test_sessions_of_others_are_not_there(served: Served, tmp_path: Path) -> None:
    first = served.call(served.one, "hello")
    three = TokenFile(tmp_path / "serve" / "tokens.json").add(Principal(name="three"))
    refused = served.call(three, "again", session_id=first["session_id"])
    unknown = served.call(three, "again", session_id="00000000-0000-0000-0000-000000000001")
    assert refused["outcome"] == unknown["outcome"] == "refused"
    assert refused["text"].replace(first["session_id"], "?") == unknown["text"].replace(
        "00000000-0000-0000-0000-000000000001", "?"
    )


def test_a_workflow_of_others_is_not_there(served: Served) -> None:
    headers = {"Authorization": f"Bearer {served.two}"}
    assert httpx2.post(served.url, headers=headers, json={}).status_code == 404
    assert httpx2.post(served.url, json={}).status_code == 401


def test_a_call_has_the_limits_of_the_server(tmp_path: Path) -> None:
    async def wait(*_: object) -> str:
        await asyncio.Event().wait()
        return ""

    tokens = TokenFile(tmp_path / "serve" / "tokens.json")
    options = ServerOptions(
        tokens=tokens,
        store=FileStore(tmp_path / "sessions"),
        openai=False,
        a2a=False,
        run_seconds=0.2,
        max_message_chars=10,
    )
    script = ScriptedClient([tool_call("wait"), "done"])
    team = Agent("x", script.provider, [FunctionTool("wait", wait)], system_tools=False)
    token = tokens.add(Principal(name="me", max_runs=1))
    with listening(asgi({"team": team}, options)) as url:
        long = asked(f"{url}/mcp/team", token, "x" * 11)
        assert (long["outcome"], "at most 10 are read" in long["text"]) == ("refused", True)
        cut_off = asked(f"{url}/mcp/team", token, "hello")
        assert cut_off["outcome"] == "cancelled"
