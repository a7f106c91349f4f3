"""Row payloads to typed content; forgiving, since payloads come from files and from users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rath._core.blobs import Blob, is_digest
from rath.llm.image import Image
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
            return UserText(_text(payload.get("content")) or "", _images(payload.get("images")))
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
                images=_images(payload.get("images")),
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


def _images(listed: object) -> tuple[Image, ...]:
    """Return the images of a payload, known by digest; what names none is some other data."""
    entries = cast("list[object]", listed) if isinstance(listed, list) else ()
    mappings = [cast("Mapping[str, Any]", e) for e in entries if isinstance(e, Mapping)]
    return tuple(_image(entry) for entry in mappings if "sha256" in entry)


def _image(entry: Mapping[str, Any]) -> Image:
    digest, size = str(entry["sha256"]), entry.get("size")
    blob = Blob(digest, size if isinstance(size, int) else 0)
    wrong = None if is_digest(digest) else "its row does not name it by a sha256"
    return Image(_text(entry.get("mime")) or "", blob, wrong)


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)
