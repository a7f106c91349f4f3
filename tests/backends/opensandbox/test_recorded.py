"""Event streams that the real server sent, through the SDK's own decoder, as answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opensandbox", reason="needs the SDK: uv sync --extra opensandbox")

from opensandbox.adapters.converter.command_execution import decode_sse_event_data
from opensandbox.adapters.converter.execution_event_dispatcher import ExecutionEventDispatcher
from opensandbox.models.execd import Execution

from rath.backend.opensandbox.client import run_end
from rath.backend.opensandbox.processes import RunEnd, TruncatedText

_WIRE = Path(__file__).parents[2] / "data" / "opensandbox" / "wire.jsonl"


def _recorded(command: str) -> Execution:
    lines = (json.loads(line) for line in _WIRE.read_text(encoding="utf-8").splitlines())
    frames = next(each["rbody"] for each in lines if _command_of(each) == command)
    return asyncio.run(_dispatched(frames))


def _command_of(line: dict[str, Any]) -> str | None:
    if line["m"] != "POST" or not line["url"].endswith("/command"):
        return None
    body: dict[str, Any] = json.loads(line["body"])
    command: str | None = body.get("command")
    return command


async def _dispatched(frames: str) -> Execution:
    execution = Execution()
    dispatcher = ExecutionEventDispatcher(execution)
    for frame in frames.split("\n\n"):
        event = decode_sse_event_data(frame)
        if event is not None:
            await dispatcher.dispatch(event)
    return execution


def _text(messages: list[Any]) -> bytes:
    lines = TruncatedText("lines")
    for message in messages:
        lines.add(message.text)
    return lines.data()


def test_a_recorded_command_tells_its_output_and_that_it_ended() -> None:
    execution = _recorded("echo hello; echo err >&2; echo $FOO")
    assert run_end(execution) == RunEnd(True, None)
    assert _text(execution.logs.stdout) == b"hello\nbar\n"
    assert _text(execution.logs.stderr) == b"err\n"


def test_a_recorded_empty_line_is_preserved() -> None:
    execution = _recorded("printf 'a\\nb\\n\\nc'")
    assert _text(execution.logs.stdout) == b"a\nb\n\nc\n"


@pytest.mark.parametrize(
    ("command", "expected"), [("echo a; exit 3", 3), ("sleep 5", -9), ("pwd; echo $A", 0)]
)
def test_a_recorded_end_is_an_exit_code(command: str, expected: int) -> None:
    assert run_end(_recorded(command)).exit_code == expected
