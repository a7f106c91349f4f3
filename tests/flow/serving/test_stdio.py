"""A workflow that is served over standard input and output."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client

from rath.session import Session
from rath.session.outcome import Cancelled
from rath.session.persistence.store import FileStore
from tests.support.serving import ask, over_stdio, stdio_process, told
from tests.support.waiting import PATIENCE


def test_what_a_program_prints_does_not_reach_the_client(tmp_path: Path) -> None:
    answer = told(over_stdio(tmp_path), "print")
    assert answer["text"] == "1: print"
    session = Session.load(answer["session_id"], store=FileStore(tmp_path / "sessions"))
    # Nor does a program read what the client sends.
    assert json.loads(session.chunk_table[2].payload["content"]) == "read ''"


def test_a_client_that_cancels_ends_the_run(tmp_path: Path) -> None:
    async def call(client: Client) -> str:
        begun = anyio.Event()

        async def note(progress: float, total: float | None, message: str | None) -> None:
            if progress == 2:
                begun.set()

        async def wait() -> None:
            await client.call_tool("team", {"message": "wait"}, progress_callback=note)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await begun.wait()
            group.cancel_scope.cancel()
        session = (tmp_path / "begun").read_text()
        result = await client.call_tool("team", {"message": "more", "session_id": session})
        return str(result.structured_content)

    assert "was cancelled; go on with it first" in ask(over_stdio(tmp_path), call)


def say(process: subprocess.Popen[bytes], **message: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def greet(process: subprocess.Popen[bytes]) -> None:
    params = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    say(process, id=0, method="initialize", params=params)
    while heard(process).get("id") != 0:
        pass
    say(process, method="notifications/initialized")


def begin_to_wait(process: subprocess.Popen[bytes]) -> None:
    params = {"name": "team", "arguments": {"message": "wait"}, "_meta": {"progressToken": 7}}
    say(process, id=1, method="tools/call", params=params)
    while heard(process)["params"]["progress"] < 2:
        pass


@pytest.mark.parametrize("how", ["end", "term", "int"])
def test_it_ends_under_a_call_that_goes_on_and_its_sessions_load(tmp_path: Path, how: str) -> None:
    with stdio_process(tmp_path) as process:
        greet(process)
        begin_to_wait(process)
        assert process.stdin is not None
        match how:
            case "term":
                process.send_signal(signal.SIGTERM)
            case "int":
                process.send_signal(signal.SIGINT)
            case _:
                process.stdin.close()
        assert process.wait(timeout=PATIENCE) == 0  # the call would wait ten times as long
        assert process.stdout is not None
        for line in process.stdout.read().splitlines():
            assert json.loads(line)["jsonrpc"] == "2.0"
    session = Session.load((tmp_path / "begun").read_text(), store=FileStore(tmp_path / "sessions"))
    assert isinstance(session.outcome, Cancelled)


def test_lines_that_are_no_messages_disturb_nobody(tmp_path: Path) -> None:
    with stdio_process(tmp_path) as process:
        assert process.stdin is not None
        for line in (b"", b"no json", b"\xff\xfe", b"[]", b"{}", b"x" * 17_000_000, b'{"a": 1}'):
            process.stdin.write(line + b"\n")
        greet(process)
        params = {"name": "team", "arguments": {"message": "hello"}}
        say(process, id=1, method="tools/call", params=params)
        while (answer := heard(process)).get("id") != 1:
            pass
        assert answer["result"]["structuredContent"]["text"] == "1: hello"


def test_a_message_with_half_a_character_is_answered(tmp_path: Path) -> None:
    with stdio_process(tmp_path) as process:
        greet(process)
        params = {"name": "team", "arguments": {"message": "hel\ud83d"}}
        say(process, id=1, method="tools/call", params=params)
        while (answer := heard(process)).get("id") != 1:
            pass
        assert answer["result"]["structuredContent"]["text"] == "1: hel\ufffd"
