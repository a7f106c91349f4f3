"""What OpenAI's chat endpoint accepts, as a checker that raises where a request breaks a rule.

Where servers that took the protocol over are stricter than OpenAI itself, their rule counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

_KEYS: Mapping[str, frozenset[str]] = {
    "system": frozenset({"role", "content"}),
    "user": frozenset({"role", "content"}),
    "assistant": frozenset({"role", "content", "tool_calls", "reasoning_content"}),
    "tool": frozenset({"role", "content", "tool_call_id"}),
}
_PARTS = frozenset({"text", "image_url"})


def check_body(content: bytes) -> Json:
    """Return the JSON of a request that breaks no rule.

    Raises:
        AssertionError: It breaks one; the text says which.
    """
    body: Json = json.loads(content.decode(), parse_constant=_no_constant)
    json.dumps(body, ensure_ascii=False).encode()  # fails at half a character
    assert body["model"]
    assert body["messages"], "no messages"
    _check_messages(body["messages"])
    tools = body.get("tools")
    assert tools is None or tools, "an empty list of tools"
    assert tools or "tool_choice" not in body, "a choice between no tools"
    names = [tool["function"]["name"] for tool in tools or ()]
    assert len(set(names)) == len(names), "two tools bear one name"
    return body


def _check_messages(messages: list[Json]) -> None:
    waiting: list[str] = []
    used: set[str] = set()
    spoke = ""
    for message in messages:
        role = message["role"]
        unknown = message.keys() - _KEYS[role]
        assert not unknown, f"a message of {role} has {sorted(unknown)}"
        if role == "tool":
            assert isinstance(message["content"], str)
            assert message["tool_call_id"] in waiting, "a result without its call"
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting, f"{waiting} have no results"
        if role == "assistant":
            assert spoke != "assistant", "two turns of the assistant in a row"
            waiting = _check_turn(message, used)
        elif role in {"system", "user"}:
            _check_said(message["content"])
        spoke = spoke if role == "system" else role
    assert not waiting, f"{waiting} have no results"
    assert spoke != "assistant", "the last word is the assistant's"


def _check_turn(message: Json, used: set[str]) -> list[str]:
    calls: list[Json] = message.get("tool_calls") or []
    assert calls or message.get("content"), "an empty turn"
    assert "tool_calls" not in message or calls, "an empty list of calls"
    assert isinstance(message.get("content"), str | None)
    ids = [call["id"] for call in calls]
    assert all(ids), "a call without an id"
    assert len(set(ids)) == len(ids), "an id is used twice"
    assert not used & set(ids), "an id is used twice"
    used |= set(ids)
    for call in calls:
        assert call["type"] == "function"
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
    return ids


def _check_said(content: str | list[Json]) -> None:
    if isinstance(content, str):
        return
    assert content, "no parts"
    assert {part["type"] for part in content} <= _PARTS


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")
