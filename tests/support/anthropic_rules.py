"""What the Messages API accepts, as a checker that raises where a request breaks a rule.

The shapes follow the parameter types of the SDK; the rules between blocks follow the errors that
the API answers with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator

Json = dict[str, Any]

_ID = "^[a-zA-Z0-9_-]+$"
_NAME = "^[a-zA-Z0-9_-]{1,128}$"
_OPTIONAL = frozenset({"citations", "content", "caller", "toolset_name"})
_INK = {"type": "string", "pattern": r"\S"}
_MARK = {
    "type": "object",
    "properties": {"type": {"const": "ephemeral"}, "ttl": {"enum": ["5m", "1h"]}},
    "required": ["type"],
    "additionalProperties": False,
}


def _block(kind: str, **fields: Any) -> Json:
    required = [name for name in fields if name not in _OPTIONAL]
    return {
        "type": "object",
        "properties": {"type": {"const": kind}, "cache_control": _MARK, **fields},
        "required": ["type", *required],
        "additionalProperties": False,
    }


_IMAGE = {
    "type": "object",
    "properties": {
        "type": {"const": "base64"},
        "media_type": {"enum": ["image/jpeg", "image/png", "image/gif", "image/webp"]},
        "data": {"type": "string", "minLength": 1},
    },
    "required": ["type", "media_type", "data"],
    "additionalProperties": False,
}
_TEXT = _block("text", text=_INK, citations={"type": ["array", "null"]})
_PICTURE = _block("image", source=_IMAGE)
_RESULT = {
    "if": {"type": "array"},
    "then": {"minItems": 1, "items": {"oneOf": [_TEXT, _PICTURE]}},
    "else": _INK,
}
_BY_USER = {
    "text": _TEXT,
    "image": _PICTURE,
    "tool_result": _block("tool_result", tool_use_id={"pattern": _ID}, content=_RESULT),
}
_BY_ASSISTANT = {
    "text": _TEXT,
    "tool_use": _block(
        "tool_use",
        id={"pattern": _ID},
        name={"pattern": _NAME},
        input={"type": "object"},
        caller={},
        toolset_name={"type": ["string", "null"]},
    ),
    "thinking": _block("thinking", thinking={"type": "string"}, signature={"type": "string"}),
    "redacted_thinking": _block("redacted_thinking", data=_INK),
    "server_tool_use": _block(
        "server_tool_use",
        id={"pattern": "^srvtoolu_[a-zA-Z0-9_]+$"},
        name=_INK,
        input={"type": "object"},
        caller={},
    ),
    "web_search_tool_result": _block(
        "web_search_tool_result", tool_use_id=_INK, content={"type": ["array", "object"]}
    ),
}
_TOOL = {
    "type": "object",
    "properties": {
        "name": {"pattern": _NAME},
        "description": {"type": "string", "minLength": 1},
        "input_schema": {
            "type": "object",
            "properties": {"type": {"const": "object"}},
            "required": ["type"],
        },
        "cache_control": _MARK,
    },
    "required": ["name", "input_schema"],
    "additionalProperties": False,
}
_CHOICE = {
    "oneOf": [
        {"properties": {"type": {"enum": ["auto", "any"]},
                        "disable_parallel_tool_use": {"type": "boolean"}},
         "required": ["type"], "additionalProperties": False},
        {"properties": {"type": {"const": "tool"}, "name": {"pattern": _NAME},
                        "disable_parallel_tool_use": {"type": "boolean"}},
         "required": ["type", "name"], "additionalProperties": False},
        {"properties": {"type": {"const": "none"}}, "required": ["type"],
         "additionalProperties": False},
    ]
}  # fmt: skip
_OUTPUT = {
    "type": "object",
    "properties": {
        "effort": {"enum": ["low", "medium", "high", "xhigh", "max"]},
        "format": {
            "properties": {"type": {"const": "json_schema"}, "schema": {"type": "object"}},
            "required": ["type", "schema"],
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
_TURN = {
    "type": "object",
    "properties": {
        "role": {"enum": ["user", "assistant"]},
        "content": {"type": "array", "minItems": 1, "items": {"type": "object"}},
    },
    "required": ["role", "content"],
    "additionalProperties": False,
}
_BODY = Draft202012Validator(
    {
        "type": "object",
        "properties": {
            "model": {"type": "string", "minLength": 1},
            "max_tokens": {"type": "integer", "minimum": 1},
            "messages": {"type": "array", "minItems": 1, "items": _TURN},
            "system": {"type": "array", "minItems": 1, "items": _TEXT},
            "tools": {"type": "array", "minItems": 1, "items": _TOOL},
            "tool_choice": _CHOICE,
            "cache_control": _MARK,
            "metadata": {
                "type": "object",
                "properties": {"user_id": {"type": "string"}},
                "additionalProperties": False,
            },
            "output_config": _OUTPUT,
            "service_tier": {"enum": ["auto", "standard_only"]},
            "stop_sequences": {"type": "array", "items": {"type": "string"}},
            "stream": {"type": "boolean"},
            "temperature": {"type": "number", "minimum": 0, "maximum": 1},
            "thinking": {"type": "object"},
            "top_p": {"type": "number"},
        },
        "required": ["model", "max_tokens", "messages"],
        "additionalProperties": False,
    }
)
_BLOCKS = {
    (role, kind): Draft202012Validator(schema)
    for role, kinds in (("user", _BY_USER), ("assistant", _BY_ASSISTANT))
    for kind, schema in kinds.items()
}
_MAX_MARKS = 4
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})
_ASKS_TO_THINK = frozenset({"enabled", "adaptive", "between_tools"})

_SILENT = ("claude-3-", "claude-opus-4", "claude-sonnet-4", "claude-haiku-4")
"""How models are called that do not think unless a request says so."""

_UNFORCED = ("claude-opus-5-5", "claude-sonnet-5-5", "claude-fable-5-1", "claude-mythos-5-1")
"""How models are called that cannot be forced to call a tool."""


def check_body(content: bytes) -> Json:
    """Return the JSON of a request that breaks no rule.

    Raises:
        AssertionError: It breaks one; the text says which.
    """
    body: Json = json.loads(content, parse_constant=_no_constant)
    assert _problems(_BODY, body) == []
    for turn in body["messages"]:
        for block in turn["content"]:
            rules = _BLOCKS.get((turn["role"], block.get("type")))
            assert rules is not None, f"no {block.get('type')} block in a turn of {turn['role']}"
            assert _problems(rules, block) == []
    check_turns(body["messages"])
    _check_tools(body)
    check_thinking(body)
    assert _n_marks(body) <= _MAX_MARKS
    return body


def _n_marks(body: Json) -> int:
    """Count the cache marks where marks may stand; a text or an argument may bear that name too."""
    blocks = [block for turn in body["messages"] for block in turn["content"]]
    system = body.get("system")
    places = [body, *blocks, *(body.get("tools") or ())]
    places += system if isinstance(system, list) else []
    return sum("cache_control" in place for place in places)


def check_turns(turns: list[Json]) -> None:
    """Check what must hold between the turns of a conversation.

    Raises:
        AssertionError: It does not hold.
    """
    roles = [turn["role"] for turn in turns]
    wanted = ["user", "assistant"] * len(turns)
    assert roles == wanted[: len(turns)], f"the roles do not alternate: {roles}"
    used: set[str] = set()
    waiting: list[str] = []
    for position, turn in enumerate(turns):
        blocks: list[Mapping[str, Any]] = turn["content"]
        if turn["role"] == "user":
            _check_answers(blocks, waiting)
            continue
        waiting = [str(block["id"]) for block in blocks if block["type"] == "tool_use"]
        assert not used & set(waiting), "an id is used twice"
        assert len(set(waiting)) == len(waiting), "an id is used twice"
        used |= set(waiting)
        is_last = position == len(turns) - 1
        assert is_last or blocks[-1]["type"] not in {"thinking", "redacted_thinking"}
        _check_own_tools(blocks, may_wait=is_last or bool(waiting))
    assert not (roles[-1] == "assistant" and waiting), "a call has no result"
    last = turns[-1]["content"][-1]
    if roles[-1] == "assistant" and last["type"] == "text":
        assert last["text"] == last["text"].rstrip(), "the last turn ends with white space"


def check_thinking(body: Json) -> None:
    """Check what must hold between the thinking that is asked for, the turns and the tools.

    Raises:
        AssertionError: It does not hold.
    """
    thinking: Json = body.get("thinking") or {}
    kind = thinking.get("type")
    turns = [turn["content"] for turn in body["messages"] if turn["role"] == "assistant"]
    unfinished = _unfinished(body["messages"])
    if kind == "enabled":
        assert 1024 <= thinking["budget_tokens"] < body["max_tokens"], "no tokens for the answer"
        # What follows the first calls may be without: not every model thinks between its tools.
        assert not unfinished or _thoughts_in(unfinished[0][:1]), "expected `thinking` first"
        leading = (_thoughts_in(turn[:1]) for turn in turns if _thoughts_in(turn))
        assert all(leading), "the first block must be `thinking`"
    if kind == "disabled" or (kind is None and body["model"].startswith(_SILENT)):
        assert not any(map(_thoughts_in, unfinished)), "thinking is disabled, but there is some"
    if kind in _ASKS_TO_THINK or body["model"].startswith(_UNFORCED):
        choice = body.get("tool_choice", {}).get("type")
        assert choice not in {"any", "tool"}, "thinking, but tool_choice forces tool use"


def _unfinished(turns: list[Json]) -> list[list[Json]]:
    """Return what the assistant said since the user last said more than results of tools."""
    said: list[list[Json]] = []
    for turn in turns:
        if turn["role"] == "assistant":
            said.append(turn["content"])
        elif any(block["type"] != "tool_result" for block in turn["content"]):
            said.clear()
    return said


def _thoughts_in(blocks: list[Json]) -> bool:
    return any(block["type"] in _THOUGHTS for block in blocks)


def _problems(rules: Any, value: object) -> list[str]:
    return [error.message for error in rules.iter_errors(value)]


def _check_answers(blocks: list[Mapping[str, Any]], waiting: list[str]) -> None:
    """Results answer the turn before, each call once, and stand before all else."""
    kinds = [block["type"] for block in blocks]
    answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    assert sorted(answered) == sorted(waiting), f"{answered} do not answer {waiting}"
    assert kinds[: len(answered)] == ["tool_result"] * len(answered)


def _check_own_tools(blocks: list[Mapping[str, Any]], *, may_wait: bool) -> None:
    """What the vendor ran itself has its result in the same turn."""
    given = {block.get("tool_use_id") for block in blocks}
    open_ids = {block["id"] for block in blocks if block["type"] == "server_tool_use"} - given
    assert may_wait or not open_ids, f"{open_ids} have no result"


def _check_tools(body: Json) -> None:
    names = [tool["name"] for tool in body.get("tools", ())]
    assert len(set(names)) == len(names), "two tools bear one name"
    assert names or "tool_choice" not in body, "a choice between no tools"
    kinds = {block["type"] for turn in body["messages"] for block in turn["content"]}
    assert names or not kinds & {"tool_use", "tool_result"}, "calls, but no tools are defined"
    choice = body.get("tool_choice", {})
    assert choice.get("type") != "tool" or choice["name"] in names


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")
