"""Row payloads to typed content; forgiving, since payloads come from files and from users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rath.session.content import (
    AssistantTurn,
    Content,
    Opaque,
    SystemText,
    ToolCall,
    ToolFeedback,
    UserText,
)


def decode_content(kind: str, payload: Mapping[str, Any]) -> Content:
    """Return what a row says; an unknown kind becomes `Opaque`."""
    match kind:
        case "system":
            return SystemText(_text(payload.get("content")) or "")
        case "user":
            return UserText(_text(payload.get("content")) or "")
        case "assistant":
            calls = payload.get("tool_calls") or ()
            return AssistantTurn(
                _text(payload.get("content")), tuple(decode_call(call) for call in calls)
            )
        case "tool_result":
            return ToolFeedback(
                call_id=_text(payload.get("tool_call_id")) or "",
                name=_text(payload.get("name")) or "",
                body=_text(payload.get("content")) or "",
            )
        case _:
            return Opaque(payload)


def decode_call(call: Mapping[str, Any]) -> ToolCall:
    """Return the tool call that a payload holds; missing parts become empty text."""
    function: Mapping[str, Any] = call.get("function") or {}
    return ToolCall(
        id=_text(call.get("id")) or "",
        name=_text(function.get("name")) or "",
        arguments=_text(function.get("arguments")) or "",
        type=_text(call.get("type")) or "function",
    )


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)
