"""The traceback of a tool that raised: in the record, in the log, and for the model on demand."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import rath
from rath import flow
from rath.flow.tool import FlowToolCall
from rath.session import ChunkKind, Session
from rath.session.calls.results import MAX_FRAMES, MAX_TRACEBACK_CHARS
from rath.session.record import ToolRun
from rath.testing import ScriptedClient, tool_call
from tests.support.sessions import entries_of

CANARY = "rath-canary-0123456789abcdef"


def look_up(city: str) -> str:
    return {"Paris": "rain"}[city]


@rath.tool
def weather(city: str) -> str:
    """Weather of a city."""
    return look_up(city)


@rath.tool
async def weather_later(city: str) -> str:
    """Weather of a city."""
    return look_up(city)


@rath.tool(show_traceback=True)
def weather_shown(city: str) -> str:
    """Weather of a city."""
    return look_up(city)


@rath.tool
def countdown(n: int) -> int:
    """Count down."""
    return countdown.function(n - 1) if n else 1 // n


@rath.tool
def chatter() -> None:
    """Fail at length."""
    raise ValueError("x" * 100_000 + CANARY)


class Keyed(FlowToolCall):
    """A tool whose own key of lanes fails."""

    @property
    def name(self) -> str:
        return "keyed"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"type": "object"}

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return (arguments["key"],)

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        return None


def called(tool: FlowToolCall, arguments: dict[str, Any]) -> tuple[Session, ScriptedClient]:
    model = ScriptedClient([tool_call(tool.name, arguments), "Sorry."])
    agent = flow.Agent("Answer.", model.provider, [tool], system_tools=False)
    out = agent(Session.from_user_message("?"))
    out.synchronize()
    return out, model


def traceback_of(out: Session) -> Any:
    (entry,) = entries_of(out, ToolRun)
    assert entry.traceback is not None
    return entry.traceback


def shown(out: Session) -> str:
    (row,) = [row for row in out.chunk_table if row.kind is ChunkKind.TOOL_RESULT]
    return str(row.payload["content"])


@pytest.mark.parametrize("tool", [weather, weather_later], ids=["def", "async def"])
def test_the_record_says_where_a_tool_raised_and_the_model_is_not_told(tool: FlowToolCall) -> None:
    out, model = called(tool, {"city": "Oslo"})
    info = traceback_of(out)
    assert (info.file, info.function) == (__file__, "look_up")
    assert info.line == look_up.__code__.co_firstlineno + 1
    frames = info.text.splitlines()
    assert frames[0] == "Traceback (most recent call last):"
    assert frames[-1] == "KeyError: 'Oslo'"
    assert '{"Paris": "rain"}[city]' in info.text
    assert str(Path(rath.__file__).parent) not in info.text
    (_, second) = model.requests
    assert "Traceback" not in str(second.messages)
    assert __file__ not in str(second.messages)
    told = json.loads(shown(out))
    assert (told["error_kind"], told["message"]) == ("tool_execution_exception", "KeyError: 'Oslo'")


def test_a_tool_may_show_its_traceback_to_the_model() -> None:
    out, _ = called(weather_shown, {"city": "Oslo"})
    assert json.loads(shown(out))["detail"] == traceback_of(out).text
    assert "in look_up" in shown(out)


def test_a_tool_that_raises_before_it_is_called() -> None:
    out, _ = called(Keyed(), {})
    info = traceback_of(out)
    assert (info.function, info.text.splitlines()[-1]) == ("resource_key", "KeyError: 'key'")


def test_a_long_traceback_is_cut_to_its_last_frames() -> None:
    text = traceback_of(called(countdown, {"n": 100})[0]).text
    assert 1 <= text.count("  File ") <= MAX_FRAMES
    assert text.endswith("ZeroDivisionError: integer division or modulo by zero")


def test_secrets_of_the_environment_are_hidden_and_a_long_message_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CANARY_API_KEY", CANARY)
    out, _ = called(chatter, {})
    text = traceback_of(out).text
    assert CANARY not in shown(out)
    assert len(text) <= MAX_TRACEBACK_CHARS
    assert CANARY[:8] not in text
    assert text.endswith("***")


def test_the_working_directory_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWD", str(Path(__file__).parent))
    assert f'File "{__file__}"' in traceback_of(called(weather, {"city": "Oslo"})[0]).text


def test_it_is_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="rath.session"):
        called(weather, {"city": "Oslo"})
    (record,) = [each for each in caplog.records if "raised" in each.getMessage()]
    assert record.levelno == logging.DEBUG
    assert "tool 'weather' raised" in record.getMessage()
    assert "KeyError: 'Oslo'" in record.getMessage()


def test_it_is_stored_and_loads(tmp_path: Path) -> None:
    out, _ = called(weather, {"city": "Oslo"})
    loaded = Session.load(out.save(path=tmp_path / "s.jsonl"))
    assert traceback_of(loaded) == traceback_of(out)


def test_a_tool_that_ends_well_has_none(tmp_path: Path) -> None:
    out, _ = called(weather, {"city": "Paris"})
    (entry,) = entries_of(out, ToolRun)
    assert entry.traceback is None
    path = out.save(path=tmp_path / "s.jsonl")
    assert "traceback" not in Path(path).read_text(encoding="utf-8")
