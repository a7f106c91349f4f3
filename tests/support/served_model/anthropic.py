"""Messages of a pretended model, with all that the types of Anthropic's SDK name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support import anthropic_replies
from tests.support.anthropic_replies import Json
from tests.support.chat_replies import Reply
from tests.support.served_model.model import Line, Prompt, Said, Tool, id_of

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}


def read(body: Mapping[str, Any]) -> Prompt:
    """Return what a request asks."""
    system = body.get("system") or ()
    turns: list[Json] = body["messages"]
    config: Json = body.get("output_config") or {}
    form: Json = config.get("format") or {}
    return Prompt(
        model=body["model"],
        system=(system,) if isinstance(system, str) else tuple(each["text"] for each in system),
        lines=tuple(line for turn in turns for line in _lines(turn)),
        tools=tuple(Tool(each["name"], each["input_schema"]) for each in body.get("tools") or ()),
        choice=_choice(body.get("tool_choice") or {"type": "auto"}),
        schema=form.get("schema"),
        max_tokens=body["max_tokens"],
        stop=tuple(body.get("stop_sequences") or ()),
        streaming=bool(body.get("stream")),
    )


def whole(prompt: Prompt, said: Said) -> Reply:
    """Answer at once."""
    return anthropic_replies.message(*_blocks(prompt, said), **_envelope(prompt, said))


def streamed(prompt: Prompt, said: Said) -> Reply:
    """Answer in events."""
    return anthropic_replies.streamed(*_blocks(prompt, said), **_envelope(prompt, said))


def refused(status: int, message: str, code: str | None = None) -> Reply:
    """Refuse."""
    return anthropic_replies.error(status, _ERRORS.get(status, "api_error"), message)


def _lines(turn: Json) -> Iterator[Line]:
    content: str | list[Json] = turn["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for block in blocks:
        match block["type"]:
            case "text":
                yield Line(turn["role"], block["text"])
            case "tool_use":
                yield Line("call", json.dumps(block["input"], sort_keys=True), block["name"])
            case "tool_result":
                yield Line("result", _result(block))
            case "image":
                yield Line("user", "[image]")
            case _:
                pass  # thoughts are not said


def _result(block: Json) -> str:
    content: str | list[Json] | None = block.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return content or ""


def _choice(given: Json) -> str:
    return str(given.get("name") or {"any": "required"}.get(given["type"], given["type"]))


def _blocks(prompt: Prompt, said: Said) -> list[Json]:
    blocks = [anthropic_replies.text(said.text, citations=None)] if said.text else []
    for index, (name, given) in enumerate(said.calls):
        call_id = f"toolu_01{id_of(prompt, index)}"
        blocks.append(
            {**anthropic_replies.tool_use(name, given, id=call_id), "caller": {"type": "direct"}}
        )
    if said.calls:
        # A vendor's model thinks before it calls, and wants to read that again.
        blocks.insert(0, anthropic_replies.thinking("I should call it.", f"Eq{id_of(prompt)}"))
    return blocks


def _envelope(prompt: Prompt, said: Said) -> Json:
    return {
        "id": f"msg_01{id_of(prompt)}",
        "model": prompt.model,
        "stop_reason": _STOP_REASONS.get(said.finish, said.finish),
        "stop_sequence": said.stopped_by,
        "stop_details": None,
        "container": None,
        "usage": anthropic_replies.usage(
            prompt.n_tokens,
            said.n_tokens,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=0,
            cache_creation={"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            service_tier="standard",
            inference_geo="global",
        ),
    }
