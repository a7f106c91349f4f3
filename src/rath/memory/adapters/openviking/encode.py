"""What requests to a server hold, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rath._core.text import valid_unicode
from rath.memory.adapters.openviking.addresses import Addresses, is_of_memories
from rath.memory.adapters.openviking.wire import Answer
from rath.memory.op_types import MemoryOpCommit, MemoryOpResource

__all__ = ["encode_messages", "resource_options", "write_options"]


def write_options(tag: str | None) -> Answer | None:
    """Return what is said of a note besides its text."""
    return None if tag is None else {"tags": [tag], "tag_mode": "append"}


def resource_options(op: MemoryOpResource) -> Answer | None:
    """Return what the server is told to make of a source; an empty text says nothing."""
    options = {"reason": op.reason, "instruction": op.instruction}
    return {key: text for key, text in options.items() if text} or None


def encode_messages(op: MemoryOpCommit, addresses: Addresses) -> list[dict[str, Any]]:
    """Return the messages of a transcript, the last of the user with the notes that were used.

    Raises:
        BadUri: A used note has no address.
    """
    messages = [_message(message) for message in op.messages]
    used = [_context(addresses, uri) for uri in op.used_uris]
    if used and messages:
        # What was recalled stood before the last thing that the user said.
        users = [each for each in messages if each["role"] == "user"]
        carrier = (users or messages)[-1]
        carrier["parts"] = [*_parts(carrier), *used]
        carrier.pop("content", None)
    return messages


def _message(message: object) -> dict[str, Any]:
    role, content, parts = (_get(message, name) for name in ("role", "content", "parts"))
    given: dict[str, Any] = {"role": str(role or "user")}
    if isinstance(parts, Sequence) and parts and not isinstance(parts, str):
        items = cast("Sequence[object]", parts)
        given["parts"] = [each if isinstance(each, Mapping) else _text(each) for each in items]
    else:
        given["content"] = _as_text(content)
    return given


def _get(message: object, name: str) -> object:
    if isinstance(message, Mapping):
        return cast("Mapping[str, object]", message).get(name)
    return getattr(message, name, None)


def _as_text(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return valid_unicode(content)
    return json.dumps(content, ensure_ascii=False, default=str)


def _text(content: object) -> dict[str, str]:
    return {"type": "text", "text": _as_text(content)}


def _parts(message: Mapping[str, Any]) -> list[Any]:
    return list(message.get("parts") or [_text(message.get("content"))])


def _context(addresses: Addresses, uri: str) -> dict[str, str]:
    address = addresses.note(uri)
    kind = "memory" if is_of_memories(address) else "resource"
    return {"type": "context", "uri": address, "context_type": kind, "abstract": ""}
