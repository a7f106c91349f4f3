"""Tools of a server: which are offered, under which names, and what they answer."""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from rath._core.text import one_line_preview
from rath.config.redaction import printable
from rath.llm.image import Image

if TYPE_CHECKING:
    from mcp_types import Tool

__all__ = ["decode_result", "error_text", "input_schema", "provider_names", "usable_tools"]

NO_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}

MAX_PROVIDER_NAME = 64
"""Longest name of a tool that every provider takes."""

MAX_NAME_CHARS = 1000
"""Longest name of a tool; the protocol advises 128. A guess."""

MAX_SCHEMA_CHARS = 200_000
"""Longest schema of a tool, which goes to the model in each request. A guess."""

_MAX_NAMED = 5
_MAX_SHOWN_CHARS = 64

_log = logging.getLogger("rath.mcp")


_ACCEPTED = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_ACCEPTED = re.compile(r"[^A-Za-z0-9_-]+")


def usable_tools(listed: Sequence[Tool], server: str) -> list[Tool]:
    """Return the tools whose name and schema are not too long, and warn of the others.

    Args:
        listed: What a server lists.
        server: What it is called in the warning.
    """
    found: list[Tool] = []
    omitted: list[str] = []
    for tool in listed:
        n_chars = len(json.dumps(tool.input_schema, default=str))
        if len(tool.name) <= MAX_NAME_CHARS and n_chars <= MAX_SCHEMA_CHARS:
            found.append(tool)
        else:
            omitted.append(printable(one_line_preview(tool.name, _MAX_SHOWN_CHARS)))
    if omitted:
        _log.warning(
            "MCP server %s: %d of its tools are left out, since a name has more than %d "
            "characters or a schema more than %d: %s",
            server,
            len(omitted),
            MAX_NAME_CHARS,
            MAX_SCHEMA_CHARS,
            ", ".join(omitted[:_MAX_NAMED]),
        )
    return found


def provider_names(
    names: Iterable[str], *, prefix: str = "", reserved: Collection[str] = ()
) -> dict[str, str]:
    """Return for each name of a server the one under which a model calls it.

    A name that every provider takes stays as it is. In any other, what is not a letter, a digit,
    `_` or `-` becomes `_`, and a part of its digest follows, so that it is the same in every
    process and no two are equal.

    Args:
        names: What the server calls its tools.
        prefix: Goes before every name, to tell servers apart.
        reserved: Names that no server may take: with those it is as with ones not accepted.
    """
    wanted = {name: f"{prefix}{name}" for name in names}
    accepted = {name for name in wanted.values() if _ACCEPTED.fullmatch(name)}
    plain = accepted.difference(reserved)
    used = plain.union(reserved)
    found: dict[str, str] = {}
    for name, full in wanted.items():
        if full not in plain:
            digest = sha256(full.encode(errors="replace")).hexdigest()
            stem = _NOT_ACCEPTED.sub("_", full)
            sizes = range(8, 33)
            coded = (f"{stem[: MAX_PROVIDER_NAME - n - 1]}_{digest[:n]}" for n in sizes)
            full = next(candidate for candidate in coded if candidate not in used)
            used.add(full)
        found[name] = full
    return found


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
    if structured is not None and not _repeats(structured, texts):
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
    fields: dict[str, Any] = {"type": "resource", "uri": str(getattr(resource, "uri", ""))}
    if mime is not None:
        fields["mime_type"] = mime
    text = getattr(resource, "text", None)
    if isinstance(text, str):
        return fields | {"text": text}
    blob = getattr(resource, "blob", None)
    if isinstance(mime, str) and mime.startswith("image/"):
        return _image(blob, mime, fields)
    return _sized(fields, blob)


def _image(data: object, mime: object, fields: dict[str, Any]) -> object:
    try:
        return Image.from_bytes(base64.b64decode(str(data), validate=True))
    except (binascii.Error, ValueError):
        return _sized(fields | {"mime_type": mime, "note": "no picture that a model can see"}, data)


def _sized(fields: dict[str, Any], data: object) -> dict[str, Any]:
    """Say how large something is that a model cannot read, and which bytes it had."""
    try:
        content = base64.b64decode(str(data), validate=True)
    except (binascii.Error, ValueError):
        return fields | {"note": "not valid base64"}
    return fields | {"bytes": len(content), "sha256": sha256(content).hexdigest()}


def _repeats(structured: object, texts: list[str]) -> bool:
    """Tell whether texts hold structured content already, as the protocol asks of servers."""
    values = [structured]
    if isinstance(structured, Mapping):
        table = cast("Mapping[str, Any]", structured)
        if set(table) == {"result"}:
            values.append(table["result"])
    joined = "\n".join(texts)
    return any(
        value in (joined, texts, _parsed(joined), [_parsed(text) for text in texts])
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
