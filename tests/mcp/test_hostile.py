"""What servers send that is meant to do harm, or that is only broken."""

from __future__ import annotations

import base64
import gzip
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rath.mcp.client
import rath.mcp.http
from rath.backend.results import ToolExecutionFailure
from rath.config.redaction import Redactor
from rath.errors import (
    ConfigError,
    MCPConnectionError,
    MCPProtocolError,
    MCPRequestError,
    MCPTimeout,
)
from rath.flow.tool.mcp_adapter import MCPToolCall, tools_of
from rath.mcp import HttpServer, MCPClient
from rath.mcp.http import HttpAccess
from rath.mcp.stdio import replace_lone_surrogates
from rath.session.tooling import BadArguments
from tests.support.mcp_own import scripted, texts, tool, tools
from tests.support.waiting import at_a_deadline
from tests.support.web_answers import answering

CANARY = "canary-0123456789"


def refusing(message: str) -> dict[str, Any]:
    return {
        "tools/list": tools(tool("echo")),
        "tools/call": {"error": {"code": -5, "message": message}},
    }


def of_schema(schema: dict[str, Any]) -> MCPToolCall:
    return MCPToolCall(
        client=MCPClient(scripted({})), name="echo", description=None, parameters=schema
    )


@pytest.fixture
def deadline() -> Iterator[None]:
    # A regular expression holds the interpreter; only a signal ends it.
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


# ---------------------------------------------------------------- secrets


def test_a_server_that_repeats_a_part_of_a_setting_is_not_quoted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("THE_TOKEN", CANARY)
    spec = scripted(refusing(f"wrong token {CANARY}"))
    spec.env["AUTHORIZATION"] = "Bearer ${THE_TOKEN}"  # type: ignore[index]  # ours alone
    with MCPClient(spec) as client, pytest.raises(MCPRequestError) as caught:
        client.call_tool("echo", {})
    assert "wrong token ***" in str(caught.value)


@pytest.mark.parametrize(
    "server",
    [
        HttpServer("http://h/mcp", {"Authorization": f"Bearer {CANARY}"}),
        HttpServer("http://h/mcp", {"Authorization": "Bearer ${THE_TOKEN}"}),
        HttpServer(f"http://h/mcp?key={CANARY}&page=1"),
        HttpServer(f"http://user:{CANARY}@h/mcp"),
    ],
    ids=["word of a header", "variable of a header", "value of the query", "password"],
)
def test_parts_of_what_is_sent_to_an_address_are_secrets(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_TOKEN", CANARY)
    assert (
        Redactor(tuple(HttpAccess.of(server).secrets)).text(f"you sent {CANARY}!")
        == "you sent ***!"
    )


def test_user_and_password_of_an_address_are_sent() -> None:
    access = HttpAccess.of(HttpServer("http://us%40er:pass@h/mcp", {"X-Own": "1"}))
    basic = base64.b64encode(b"us@er:pass").decode()
    assert access.headers == {"Authorization": f"Basic {basic}", "X-Own": "1"}


def test_a_header_with_a_line_break_is_refused_without_being_displayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("THE_TOKEN", f"{CANARY}\n")
    with pytest.raises(ConfigError, match=r"the header 'X-Key' .* holds a line break") as caught:
        HttpAccess.of(HttpServer("http://h/mcp", {"X-Key": "${THE_TOKEN}"}))
    assert CANARY not in str(caught.value)


# ---------------------------------------------------------------- what it says


def test_an_endless_error_with_commands_to_a_terminal_is_reported_short_and_plain() -> None:
    with (
        MCPClient(scripted(refusing("\x1b[31m" + "Z" * 100_000))) as client,
        pytest.raises(MCPRequestError) as caught,
    ):
        client.call_tool("echo", {})
    assert len(str(caught.value)) < 4000
    assert "\x1b" not in str(caught.value)


def test_half_a_character_is_replaced() -> None:
    script = {"tools/list": tools(tool("echo")), "tools/call": texts("a\ud83d")}
    with MCPClient(scripted(script), timeout=5) as client:
        (part,) = client.call_tool("echo", {}).content
    assert getattr(part, "text", None) == "a\ufffd"


@given(st.text(st.one_of(st.characters(exclude_categories=[]), st.sampled_from("\\u\ud83d\ude00"))))
def test_only_half_characters_are_replaced(text: str) -> None:
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert json.loads(replace_lone_surrogates(json.dumps(text).encode())) == whole


def test_a_late_answer_tells_what_was_printed_next_to_the_messages() -> None:
    script = {"tools/list": tools(tool("echo")), "tools/call": "Traceback: boom"}

    def run_until(deadline: float) -> str:
        with (
            MCPClient(scripted(script), timeout=deadline) as client,
            pytest.raises(MCPTimeout) as caught,
        ):
            client.call_tool("echo", {})
        return str(caught.value)

    told = "where only messages belong: Traceback: boom"
    assert told in at_a_deadline(run_until, lambda said: told in said)


def test_one_answer_that_cannot_be_understood_leaves_the_connection_alone() -> None:
    script = {
        "tools/list": tools(tool("echo")),
        "tools/call": {"result": {"content": [{"type": "weird"}]}},
    }
    with MCPClient(scripted(script)) as client:
        (found,) = tools_of(client)
        pid = client.pid
        failure = found(None, {})  # type: ignore[arg-type]  # not sent
        assert isinstance(failure, ToolExecutionFailure)
        assert failure.kind == "mcp_error"
        assert client.pid == pid


# ---------------------------------------------------------------- lists without end


def test_a_list_that_never_ends_is_given_up_in_time() -> None:
    page = {"tools/list": tools(tool("a"), cursor="1"), "tools/list:1": tools(cursor="1")}
    with (
        MCPClient(scripted(page), timeout=0.5) as client,
        pytest.raises((MCPProtocolError, MCPTimeout)),
    ):
        client.list_tools()


def test_a_list_of_too_many_items_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rath.mcp.client, "MAX_ITEMS", 3)
    many = tools(*(tool(f"t{n}") for n in range(4)), cursor="1")
    with (
        MCPClient(scripted({"tools/list": many})) as client,
        pytest.raises(MCPProtocolError, match="has no end: 1 pages with 4 tools"),
    ):
        client.list_tools()


# ---------------------------------------------------------------- schemas


def test_a_pattern_that_is_never_done_does_not_stop_the_program(deadline: None) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    of_schema(schema).check_arguments({"a": "a" * 60 + "!"})


def test_the_rest_of_a_schema_is_checked() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    with pytest.raises(BadArguments, match="'a' is a required property"):
        of_schema(schema).check_arguments({})


@pytest.mark.parametrize(
    "broken",
    [
        {"properties": {"a": {"type": "nope"}}},
        {"properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}},
        {"allOf": [{"$ref": "#"}]},
        {"$schema": 5},
    ],
    ids=["unknown type", "reference elsewhere", "circle", "no schema"],
)
def test_a_schema_that_cannot_be_used_is_left_to_the_server(broken: dict[str, Any]) -> None:
    of_schema(broken).check_arguments({"a": "b"})


# ---------------------------------------------------------------- answers without end


def packed(n_bytes: int) -> bytes:
    return gzip.compress(b" " * n_bytes, mtime=0)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (packed(70_000_000), {"Content_Encoding": "gzip"}),
        (b" " * 3_000, {}),
    ],
    ids=["packed", "plain"],
)
def test_an_answer_without_end_does_not_fill_the_memory(
    body: bytes,
    headers: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rath.mcp.http, "MAX_ANSWER_BYTES", 2_000)
    with (
        answering(200, body, Content_Type="application/json", **headers) as server,
        MCPClient(server.url, transport="http", timeout=5) as client,
        pytest.raises(MCPConnectionError, match="its answer is above"),
    ):
        client.list_tools()
    assert server.seen[0]["accept-encoding"] == "identity"
