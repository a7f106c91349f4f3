"""What a tool of a server answered, as what a tool of ours returns."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, cast

from rath.llm.image import Image

__all__ = ["decode_result", "error_text", "input_schema"]

NO_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}


def decode_result(result: object) -> Any:
    """Return an answer in the documented form.

    Texts are joined: `{"text": ...}`. Other parts stand under `content`: images as `Image`, the
    rest as JSON that says what it is. Structured content that the texts do not say already stands
    under `structured_content`; where there is nothing else, it is the whole. An answer without
    anything is `{"ok": True}`; what is no such answer comes back as it is.
    """
    parts: object = getattr(result, "content", None)
    if not isinstance(parts, list | tuple):
        return result
    structured = _either(result, "structured_content", "structuredContent")
    texts: list[str] = []
    others: list[object] = []
    for part in cast("list[object]", parts):
        text = getattr(part, "text", None)
        if isinstance(text, str):
            texts.append(text)
        else:
            others.append(_part(part))
    if not texts and not others:
        return {"ok": True} if structured is None else structured
    found: dict[str, Any] = {"text": "\n".join(texts)} if texts else {}
    if others:
        found["content"] = others
    if structured is not None and not _is_said(structured, texts):
        found["structured_content"] = structured
    return found


def error_text(result: object) -> str | None:
    """Return what an answer says that reports an error of the tool; None for any other."""
    if _either(result, "is_error", "isError") is not True:
        return None
    found = decode_result(result)
    if isinstance(found, dict):
        text = cast("dict[str, Any]", found).get("text")
        if isinstance(text, str) and text:
            return text
        return json.dumps(found, default=_label, ensure_ascii=False)
    return str(found)


def input_schema(tool: object) -> Mapping[str, Any]:
    """Return the JSON Schema of a tool's arguments, as a server gave it."""
    schema = _either(tool, "input_schema", "inputSchema")
    dump = getattr(schema, "model_dump", None)
    if callable(dump):
        schema = dump(mode="json")
    return dict(cast("Mapping[str, Any]", schema)) if isinstance(schema, Mapping) else NO_SCHEMA


def _part(part: object) -> object:
    kind = getattr(part, "type", None)
    mime = _either(part, "mime_type", "mimeType")
    if kind == "image":
        return _image(getattr(part, "data", None), mime, {"type": "image"})
    if kind == "audio":
        return _sized({"type": "audio", "mime_type": mime}, getattr(part, "data", None))
    if kind == "resource":
        return _resource(getattr(part, "resource", None))
    dump = getattr(part, "model_dump", None)
    if callable(dump):
        return dump(mode="json", by_alias=False, exclude_none=True)
    return str(part)


def _resource(resource: object) -> object:
    mime = _either(resource, "mime_type", "mimeType")
    said: dict[str, Any] = {"type": "resource", "uri": str(getattr(resource, "uri", ""))}
    if mime is not None:
        said["mime_type"] = mime
    text = getattr(resource, "text", None)
    if isinstance(text, str):
        return said | {"text": text}
    blob = getattr(resource, "blob", None)
    if isinstance(mime, str) and mime.startswith("image/"):
        return _image(blob, mime, said)
    return _sized(said, blob)


def _image(data: object, mime: object, said: dict[str, Any]) -> object:
    try:
        return Image.from_bytes(base64.b64decode(str(data), validate=True))
    except (binascii.Error, ValueError):
        return _sized(said | {"mime_type": mime, "note": "no picture that a model can see"}, data)


def _sized(said: dict[str, Any], data: object) -> dict[str, Any]:
    """Say how large something is that a model cannot read, and which bytes it had."""
    try:
        content = base64.b64decode(str(data), validate=True)
    except (binascii.Error, ValueError):
        return said | {"note": "not valid base64"}
    return said | {"bytes": len(content), "sha256": sha256(content).hexdigest()}


def _is_said(structured: object, texts: list[str]) -> bool:
    """Tell whether texts hold structured content already, as the protocol asks of servers."""
    values = [structured]
    if isinstance(structured, Mapping):
        table = cast("Mapping[str, Any]", structured)
        if set(table) == {"result"}:
            values.append(table["result"])
    whole = "\n".join(texts)
    return any(
        value in (whole, texts, _parsed(whole), [_parsed(text) for text in texts])
        for value in values
    )


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _label(value: object) -> str:
    return value.label if isinstance(value, Image) else str(value)


def _either(value: object, name: str, other: str) -> Any:
    found = getattr(value, name, None)
    return getattr(value, other, None) if found is None else found
