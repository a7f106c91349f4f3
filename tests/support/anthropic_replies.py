"""Scripted replies in the form of Anthropic's Messages API, for the test chat server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support import chat_replies
from tests.support.chat_replies import Cut, Gate, Reply

MODEL = "claude-scripted-1"
MESSAGE_ID = "msg_01Xyz"

Json = dict[str, Any]


def text(content: str, **more: Any) -> Json:
    """A text block."""
    return {"type": "text", "text": content, **more}


def tool_use(name: str, given: Mapping[str, Any], *, id: str = "toolu_01A") -> Json:
    """A call of one of our tools."""
    return {"type": "tool_use", "id": id, "name": name, "input": dict(given)}


def thinking(thought: str, signature: str = "EqQBCkYIBxgC") -> Json:
    """A signed thought."""
    return {"type": "thinking", "thinking": thought, "signature": signature}


def redacted(data: str = "EmwKAhgBEgy3va3pzix") -> Json:
    """A thought that nobody may read."""
    return {"type": "redacted_thinking", "data": data}


def search(query: str, *, id: str = "srvtoolu_01B") -> Json:
    """A call of a tool that the vendor runs itself."""
    given = {"query": query}
    return {"type": "server_tool_use", "id": id, "name": "web_search", "input": given}


def found(*, id: str = "srvtoolu_01B") -> Json:
    """What the vendor's own tool gave."""
    page = {"type": "web_search_result", "title": "A page", "url": "https://example.org",
            "encrypted_content": "Eo8BCio", "page_age": None}  # fmt: skip
    return {"type": "web_search_tool_result", "tool_use_id": id, "content": [page]}


def usage(prompt: int = 10, completion: int = 5, **more: Any) -> Json:
    """Token counts, such as `cache_read_input_tokens`, in the vendor's form."""
    return {"input_tokens": prompt, "output_tokens": completion, **more}


def envelope(*blocks: Mapping[str, Any], **more: Any) -> Json:
    """The JSON of a whole answer; its stop reason follows from what it holds."""
    calls = any(block.get("type") == "tool_use" for block in blocks)
    said: Json = {
        "id": MESSAGE_ID,
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [dict(block) for block in blocks],
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": usage(service_tier="standard"),
    }
    return said | more


def message(
    *blocks: Mapping[str, Any], headers: Mapping[str, str] | None = None, **more: Any
) -> Reply:
    """A whole answer."""
    return chat_replies.json_body(envelope(*blocks, **more), headers=headers)


def events(answer: Mapping[str, Any]) -> list[Json]:
    """The events that stream a whole answer, as the vendor's server sends them."""
    ended = {"stop_reason", "stop_sequence", "stop_details"} & set(answer)
    counts: Json = dict(answer.get("usage") or {})
    begun = {**counts, "output_tokens": 1} if counts else {}
    start: Json = {**answer, "content": [], "stop_reason": None, "usage": begun}
    sent: list[Json] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(answer["content"]):
        sent += _block_events(index, block)
    last: Json = {"type": "message_delta", "delta": {name: answer[name] for name in sorted(ended)}}
    if counts:
        last["usage"] = {
            name: count for name, count in counts.items() if name.startswith("output_")
        }
    return [*sent, last, {"type": "message_stop"}]


def stream(*items: Mapping[str, Any] | str | Gate | Cut) -> Reply:
    """A streamed answer of these events, named as the vendor names them."""
    return chat_replies.event_stream(*(_named(item) for item in items), done=False)


def streamed(*blocks: Mapping[str, Any], **more: Any) -> Reply:
    """A whole answer, as a stream."""
    return stream(*events(envelope(*blocks, **more)))


def error(
    status: int,
    kind: str = "invalid_request_error",
    message: str = "scripted error",
    *,
    details: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """An error in the vendor's form."""
    return chat_replies.json_body(
        error_event(kind, message, details=details), status=status, headers=headers
    )


def error_event(
    kind: str = "overloaded_error",
    message: str = "Overloaded",
    *,
    details: Mapping[str, Any] | None = None,
) -> Json:
    """The same as an event, and as a body."""
    more = {} if details is None else {"details": dict(details)}
    error = {"type": kind, "message": message, **more}
    return {"type": "error", "error": error, "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy"}


def _block_events(index: int, block: Mapping[str, Any]) -> Iterator[Json]:
    start, deltas = _in_pieces(dict(block))
    yield {"type": "content_block_start", "index": index, "content_block": start}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _in_pieces(block: Json) -> tuple[Json, list[Json]]:
    """A block as it begins, and the deltas that complete it."""
    match block["type"]:
        case "text":
            cited: list[Json] = block.pop("citations", None) or []
            deltas: list[Json] = [
                {"type": "citations_delta", "citation": citation} for citation in cited
            ]
            deltas += [{"type": "text_delta", "text": piece} for piece in _halves(block["text"])]
            return {**block, "text": ""}, deltas
        case "thinking":
            pieces = _halves(block["thinking"])
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {**block, "thinking": "", "signature": ""}, deltas
        case "tool_use" | "server_tool_use":
            written = json.dumps(block["input"], ensure_ascii=False) if block["input"] else ""
            pieces = ["", *_halves(written)]
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
            return {**block, "input": {}}, deltas
        case _:
            return block, []


def _halves(written: str) -> list[str]:
    middle = len(written) // 2
    return [piece for piece in (written[:middle], written[middle:]) if piece]


def _named(item: Mapping[str, Any] | str | Gate | Cut) -> str | Gate | Cut:
    if not isinstance(item, Mapping):
        return item
    return f"{json.dumps(item)}\nevent: {item.get('type')}"
