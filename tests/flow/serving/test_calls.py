"""Calls of a served workflow, by a client in the same process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from rath._async.runtime import runtime
from rath.flow import Agent, Workflow
from rath.flow.serving import ServeOptions, serve_mcp
from rath.flow.serving.calls import Calls
from rath.flow.serving.http import address_of, serve_http
from rath.flow.serving.server import (
    MAX_LINE_BYTES,
    StdioWire,
    claim_stdio,
    make_server,
    serve_stdio,
)
from rath.session import Session
from rath.session.graph.recording import session_graph_mode_override
from rath.session.outcome import Cancelled
from rath.session.persistence.store import FileStore
from rath.testing import ScriptedClient, tool_call
from rath.testing.chat import Turn
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import PATIENCE, wait_until


class Served(Workflow):
    """Answers with a script."""

    def __init__(self, *turns: Turn, forward: Callable[[Session], Session] | None = None) -> None:
        tools = [FunctionTool("look", lambda *_: "seen")]
        self.agent = Agent("x", ScriptedClient(turns).provider, tools, system_tools=False)
        self.step = forward or self.agent

    def forward(self, session: Session) -> Session:
        return self.step(session)


def calls_of(workflow: Workflow, store: Path, **options: Any) -> Calls:
    return Calls(workflow, "served", ServeOptions(store=FileStore(store), **options))


def used(calls: Calls, use: Callable[[Client], Awaitable[Any]]) -> Any:
    """Connect a client to a server of these calls, on the loop on which servers run."""

    async def connect() -> Any:
        async with Client(make_server(calls, name="served", description="Serves.")) as client:
            return await use(client)

    return runtime().run(connect, label="a client")


def told(calls: Calls, message: str, **more: object) -> dict[str, Any]:
    async def call(client: Client) -> dict[str, Any]:
        result = await client.call_tool("served", {"message": message, **more})
        answer: dict[str, Any] = result.structured_content
        return answer

    given: dict[str, Any] = used(calls, call)
    return given


def test_a_call_is_answered_and_stored(tmp_path: Path) -> None:
    calls = calls_of(Served("hello"), tmp_path)
    answer = told(calls, "hi")
    assert (answer["text"], answer["outcome"]) == ("hello", "completed")
    stored = Session.load(answer["session_id"], store=FileStore(tmp_path))
    first = stored.provenance.parents[0].provenance
    assert first is not None
    assert (first.operator, first.extras) == ("serve_mcp", (("served", "served"),))


def test_what_is_not_stored_cannot_be_named(tmp_path: Path) -> None:
    calls = calls_of(Served("hello", "again"), tmp_path, persist=False)
    session = told(calls, "hi")["session_id"]
    assert not FileStore(tmp_path).stamps()
    assert "has no session" in told(calls, "more", session_id=session)["text"]


def test_any_session_can_be_named_where_that_is_allowed(tmp_path: Path) -> None:
    other = run(["a secret"])
    other.save(store=FileStore(tmp_path))
    own = calls_of(Served("hello"), tmp_path)
    assert told(own, "more", session_id=str(other.id))["outcome"] == "refused"
    open_to_all = calls_of(Served("hello"), tmp_path, sessions="any")
    assert told(open_to_all, "more", session_id=str(other.id))["text"] == "hello"


def test_a_session_of_another_name_is_not_there(tmp_path: Path) -> None:
    session = told(calls_of(Served("hello"), tmp_path), "hi")["session_id"]
    others = Calls(Served("no"), "another", ServeOptions(store=FileStore(tmp_path)))
    answer = asyncio.run(others.call({"message": "more", "session_id": session}, lambda _: None))
    assert "has no session" in answer.text


def test_what_was_given_out_is_known_whatever_it_came_from(tmp_path: Path) -> None:
    agent = Agent("x", ScriptedClient(["hello", "again"]).provider, system_tools=False)
    calls = calls_of(Served(forward=lambda session: agent(session).detach()), tmp_path)
    session = told(calls, "hi")["session_id"]
    assert told(calls, "more", session_id=session)["text"] == "again"


def test_a_session_that_cannot_be_loaded_is_reported_to_the_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = calls_of(Served("hello"), tmp_path)
    session = told(calls, "hi")["session_id"]
    log = FileStore(tmp_path).path(Session.load(session, store=FileStore(tmp_path)).id)
    log.write_bytes(log.read_bytes().replace(b"hello", b"HELLO"))
    assert "has no session" in told(calls, "more", session_id=session)["text"]
    assert "cannot be loaded" in caplog.text


def test_where_lineage_is_off_nothing_can_be_named_later(tmp_path: Path) -> None:
    with session_graph_mode_override(False):
        session = told(calls_of(Served("hello"), tmp_path), "hi")["session_id"]
    again = calls_of(Served("hello"), tmp_path)
    assert told(again, "more", session_id=session)["outcome"] == "refused"


def test_what_a_forward_raises_is_an_error(tmp_path: Path) -> None:
    def fail(_: Session) -> Session:
        raise LookupError("no such thing")

    answer = told(calls_of(Served(forward=fail), tmp_path), "hi")
    assert (answer["outcome"], answer["session_id"]) == ("failed", None)
    assert answer["text"] == "the run failed: LookupError: no such thing"


class Gate:
    """Holds a forward back, before or after its agent has begun."""

    def __init__(self) -> None:
        self.begun, self.opened, self.left = (threading.Event() for _ in range(3))
        self.made: list[Session] = []
        self.under_way = threading.Semaphore(0)
        self.ended = threading.Event()
        wait = FunctionTool("wait", lambda *_: self.ended.wait(PATIENCE))
        script: list[Turn] = [tool_call("wait"), "never"]
        self.agent = Agent("x", ScriptedClient(script * 2).provider, [wait], system_tools=False)

    def forward(self, session: Session) -> Session:
        self.begun.set()
        self.opened.wait(PATIENCE)
        self.made.append(self.agent(session))
        self.left.set()
        self.under_way.release()
        return self.made[-1]


def test_a_call_that_is_given_up_before_it_began_is_ended(tmp_path: Path) -> None:
    gate = Gate()

    async def call(client: Client) -> None:
        waiting = asyncio.ensure_future(client.call_tool("served", {"message": "hi"}))
        await runtime().call_in_worker(partial(gate.begun.wait, PATIENCE))
        waiting.cancel()
        await asyncio.wait([waiting])
        gate.opened.set()
        await runtime().call_in_worker(partial(gate.left.wait, PATIENCE))

    used(calls_of(Served(forward=gate.forward), tmp_path), call)
    assert isinstance(gate.made[0].outcome, Cancelled)
    gate.ended.set()


def test_all_calls_can_be_ended_at_once(tmp_path: Path) -> None:
    gate = Gate()
    gate.opened.set()
    calls = calls_of(Served(forward=gate.forward), tmp_path)

    async def call(client: Client) -> list[Any]:
        both = [
            asyncio.ensure_future(client.call_tool("served", {"message": "hi"})) for _ in range(2)
        ]
        for _ in both:
            await runtime().call_in_worker(partial(gate.under_way.acquire, timeout=PATIENCE))
        calls.cancel_all()
        return [(await each).structured_content["outcome"] for each in both]

    assert used(calls, call) == ["cancelled", "cancelled"]
    gate.ended.set()


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "no message": ({}, "message must be a text, not NoneType"),
    "a number": ({"message": 3}, "message must be a text, not int"),
    "an object": ({"message": {"a": "b"}}, "message must be a text, not dict"),
    "nothing said": ({"message": ""}, "the message is empty"),
    "too long": ({"message": "x" * 1_000_001}, "at most 1000000 are read"),
    "more": ({"message": "x", "path": "/"}, r"unknown arguments \['path'\]"),
    "an id as number": ({"message": "x", "session_id": 7}, "is no id of a session"),
    "a path": ({"message": "x", "session_id": "../../etc/passwd"}, "is no id of a session"),
    "a file": ({"message": "x", "session_id": "/etc/passwd"}, "is no id of a session"),
    "an unknown id": ({"message": "x", "session_id": str(uuid4())}, "this server has no session"),
    "unknown, to go on": ({"message": "", "session_id": str(uuid4())}, "has no session"),
}


@pytest.mark.parametrize(("arguments", "problem"), HOSTILE.values(), ids=HOSTILE.keys())
def test_what_cannot_be_asked_is_refused(
    arguments: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    calls = calls_of(Served("never"), tmp_path)
    answer = asyncio.run(calls.call(arguments, lambda _: None))
    assert (answer.is_error, answer.structured["outcome"]) == (True, "refused")
    assert re.search(problem, answer.text)
    assert not FileStore(tmp_path).stamps()


def test_an_ended_session_needs_a_message(tmp_path: Path) -> None:
    calls = calls_of(Served("hello"), tmp_path)
    session = told(calls, "hi")["session_id"]
    assert "has ended; give a message" in told(calls, "", session_id=session)["text"]


def test_a_run_that_failed_goes_on_first_and_with_an_empty_message(tmp_path: Path) -> None:
    calls = calls_of(Served(RuntimeError("gone"), "hello", "more"), tmp_path)
    failure_answer = told(calls, "hi")
    session = failure_answer["session_id"]
    assert failure_answer["outcome"] == "failed"
    assert "go on with it first" in told(calls, "and?", session_id=session)["text"]
    done = told(calls, "", session_id=session)
    assert (done["session_id"], done["text"]) == (session, "hello")
    assert told(calls, "and?", session_id=session)["text"] == "more"


def test_another_tool_is_an_error_of_the_protocol(tmp_path: Path) -> None:
    async def call(client: Client) -> None:
        with pytest.raises(MCPError, match="unknown tool 'other'"):
            await client.session.call_tool("other", {"message": "x"})

    used(calls_of(Served(), tmp_path), call)


# ---- over HTTP and stdio, in this process


def test_it_is_served_until_it_is_cancelled(tmp_path: Path) -> None:
    calls = calls_of(Served("hello"), tmp_path)
    server = make_server(calls, name="served", description="Serves.")
    options = ServeOptions(token="t0ken")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = address_of(listening, "127.0.0.1", options.path)
        serve = partial(serve_http, server, listening, host="127.0.0.1", options=options)
        running = runtime().submit(serve, label="a server")

        async def call() -> Any:
            headers = {"authorization": "Bearer t0ken"}
            async with (
                httpx2.AsyncClient() as stranger,
                httpx2.AsyncClient(headers=headers) as http,
                Client(streamable_http_client(url, http_client=http)) as client,
            ):
                refusal_answer = (await stranger.post(url, content=b"{}")).status_code
                result = await client.call_tool("served", {"message": "hi"})
                return refusal_answer, result.structured_content["text"]

        assert runtime().run(call, label="a client") == (401, "hello")
        runtime().cancel(running)
        assert isinstance(running.future.exception(timeout=PATIENCE), asyncio.CancelledError)


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "http://127.0.0.1:{}/x"), ("::1", "http://[::1]:{}/x")],
)
def test_an_address_is_reported_as_clients_write_it(host: str, address: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listening:
        port = listening.getsockname()[1]
        assert address_of(listening, host, "/x") == address.format(port)


def test_over_pipes_it_is_served_until_they_end(tmp_path: Path) -> None:
    server = make_server(calls_of(Served("hello"), tmp_path), name="served", description="Serves.")
    source, theirs_out = os.pipe()
    theirs_in, sink = os.pipe()
    serve = partial(serve_stdio, server, StdioWire(source, sink))
    running = runtime().submit(serve, label="a server")
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": CLIENT}
    asked: list[dict[str, Any]] = [
        {"id": 0, "method": "initialize", "params": params},
        {"method": "notifications/initialized"},
        {
            "id": 1,
            "method": "tools/call",
            "params": {"name": "served", "arguments": {"message": "hi"}},
        },
    ]
    with open(theirs_out, "wb") as out, open(theirs_in, "rb") as answers:
        out.write(b"x" * (MAX_LINE_BYTES + 100_000) + b"\n")
        out.writelines(json.dumps({"jsonrpc": "2.0", **each}).encode() + b"\n" for each in asked)
        out.flush()
        heard = [json.loads(answers.readline()) for _ in range(2)]
        out.close()
        running.future.result(timeout=PATIENCE)
    os.close(source)
    os.close(sink)
    assert [each["id"] for each in heard] == [0, 1]
    assert heard[1]["result"]["structuredContent"]["text"] == "hello"


CLIENT = {"name": "test", "version": "1"}


def test_the_standard_streams_are_given_back(capfd: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with claim_stdio():
        print("to the errors")  # noqa: T201  # the point
        os.write(1, b"this too\n")
        assert os.read(0, 1) == b""
        sys.stderr.flush()
    assert sys.stdout is before
    print("to the output")  # noqa: T201  # the point
    said = capfd.readouterr()
    assert said.out == "to the output\n"
    assert said.err.splitlines() == ["to the errors", "this too"]


def test_a_signal_ends_what_a_program_serves(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    texts: list[str] = []
    said = ""

    def is_served() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "; Ctrl-C" in said

    async def call() -> None:
        async with Client(said.split(" at ")[1].split(";")[0]) as client:
            result = await client.call_tool("served", {"message": "hi"})
            texts.append(result.structured_content["text"])

    def use() -> None:
        wait_until(is_served, "it says where it serves")
        try:
            asyncio.run(call())
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    user = threading.Thread(target=use)
    user.start()
    before = signal.getsignal(signal.SIGTERM)
    options = ServeOptions(store=FileStore(tmp_path))
    serve_mcp(partial(Served, "hello"), transport="http", port=0, options=options)
    user.join(timeout=PATIENCE)
    assert texts == ["hello"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_over_stdio_it_ends_with_the_input(tmp_path: Path) -> None:
    # That of a test is empty.
    serve_mcp(Served("never"), options=ServeOptions(store=FileStore(tmp_path)))
