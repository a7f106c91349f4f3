"""JSON of requests: a vendor's writer, and a body that grows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Protocol, cast

from msgspec import Struct

from rath.llm.chat_request import (
    SAMPLING_FIELDS,
    RathLLMChatRequest,
    RathLLMFunctionTool,
    RathLLMMessage,
)
from rath.llm.image import Image


def images_apart(messages: Iterable[RathLLMMessage]) -> list[RathLLMMessage]:
    """Return messages of which only those of the user have images.

    The images of a round of tool calls stand in one message of the user behind its last result.
    """
    result: list[RathLLMMessage] = []
    pending: list[RathLLMMessage] = []
    calls: Sequence[Mapping[str, Any]] = ()
    for message in messages:
        if message.role != "tool":
            result += _joined(pending)
            pending = []
            calls = message.tool_calls or ()
            result.append(message)
        elif message.images:
            pending.append(images_of_result(message, calls))
            result.append(replace(message, images=None))
        else:
            result.append(message)
    return result + _joined(pending)


def images_of_result(result: RathLLMMessage, calls: Sequence[Mapping[str, Any]]) -> RathLLMMessage:
    """Return a message of the user that shows the images of a result.

    Args:
        result: A "tool" message with images.
        calls: The calls of the turn that it answers, which name their tools.
    """
    images = result.images or ()
    tool = _tool_of(result.tool_call_id, calls)
    source = f"call {result.tool_call_id!r}" + (f" of tool {tool!r}" if tool else "")
    captions = tuple(
        f"Image {number} of {len(images)} in the result of {source}: {image.label}"
        for number, image in enumerate(images, start=1)
    )
    return RathLLMMessage("user", "\n".join(captions), images=images, captions=captions)


def _tool_of(call_id: str | None, calls: Sequence[Mapping[str, Any]]) -> str:
    for call in calls:
        if call.get("id") == call_id:
            function: Mapping[str, Any] = call.get("function") or {}
            return str(function.get("name") or "")
    return ""


def _joined(parts: Sequence[RathLLMMessage]) -> list[RathLLMMessage]:
    if not parts:
        return []
    return [
        RathLLMMessage(
            "user",
            "\n".join(each.content or "" for each in parts),
            images=tuple(image for each in parts for image in each.images or ()),
            captions=tuple(caption for each in parts for caption in each.captions or ()),
        )
    ]


MessageEncoder = Callable[[RathLLMMessage], Mapping[str, Any]]
"""Turns a message into a vendor's form."""

CALL_OPTIONS = frozenset({"api_key", "extra_headers", "extra_query", "headers"})
"""Arguments of the SDKs that are no keys of a body, and may hold a secret."""

_BY_NAME = frozenset(
    {"$defs", "definitions", "dependencies", "dependentRequired", "dependentSchemas",
     "patternProperties", "properties"}
)  # fmt: skip
"""Keywords of JSON Schema that hold schemas by names, any of which may be that of a keyword."""

_LITERALS = frozenset({"const", "default", "enum", "examples"})
"""Keywords that hold values, and no schemas."""

_SCALARS = frozenset({str, int, float, bool, type(None)})
"""Asked for before anything is asked of an abstract class: most values are of these types."""

ContentParts = Callable[[str | None, Sequence[Image]], list[dict[str, Any]]]
"""Writes a text and images as the list of content parts of a message."""


class BodyTail(Struct, frozen=True, gc=False):
    """The end of a body, which does not change while messages are added."""

    content: bytes
    parameters: Mapping[str, Any]
    """All that the body says beside messages and tools."""


class BodyWriter(Protocol):
    """How a vendor writes a body; `tools_digest` is None without tools."""

    @property
    def tools_digest(self) -> str | None: ...

    def add(self, message: RathLLMMessage) -> bytes:
        """Return what one more message adds behind all that was returned before."""
        ...

    def tail(self, *, streaming: bool) -> BodyTail:
        """Return what ends the body as it stands."""
        ...


def _plain(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    raise TypeError(f"JSON has no form for {type(value).__name__}")


_to_text = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain
).encode


def to_json(value: object) -> bytes:
    """Return compact JSON; a lone surrogate, which UTF-8 cannot hold, becomes a question mark.

    Raises:
        TypeError: `value` holds something that JSON has no form for.
        ValueError: It holds a number that is not finite.
    """
    return _to_text(value).encode(errors="replace")


def plain_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return `value` as JSON holds it; what JSON has no form for becomes its text."""
    plain: dict[str, Any] = json.loads(json.dumps(value, default=_plain_or_text))
    return plain


def refuse_call_options(extra: Mapping[str, Any]) -> None:
    """Refuse extra arguments that would be sent, and recorded, as a part of the body.

    Raises:
        ValueError: There is one that is no key of a body.
    """
    for name in sorted(CALL_OPTIONS & set(extra)):
        raise ValueError(
            f"extra_create_args cannot set {name!r}: its keys are those of the request body, which "
            "is recorded. A key belongs into Provider(api_key=...), headers for all calls into the "
            "variable OPENAI_CUSTOM_HEADERS or ANTHROPIC_CUSTOM_HEADERS"
        )


def _plain_or_text(value: object) -> Any:
    return _plain(cast("object", value)) if isinstance(value, Mapping) else str(value)


def images_then_text(text: str | None, images: Sequence[Image]) -> list[dict[str, Any]]:
    """Return the images and then the text, the order in which models read them best.

    Raises:
        PersistenceError: The bytes of an image are not there.
    """
    return [*(_image_part(image) for image in images), *text_part(text)]


def text_then_images(text: str | None, images: Sequence[Image]) -> list[dict[str, Any]]:
    """Return the text and then the images.

    Raises:
        PersistenceError: The bytes of an image are not there.
    """
    return [*text_part(text), *(_image_part(image) for image in images)]


def text_part(text: str | None) -> list[dict[str, Any]]:
    """Return the part that says `text`; none for a blank text, which several vendors refuse."""
    return [{"type": "text", "text": text}] if text and not text.isspace() else []


def _image_part(image: Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image.to_data_url()}}


def encode_message(
    message: RathLLMMessage, *, parts: ContentParts = images_then_text
) -> dict[str, Any]:
    """Return a message without the fields that it does not use.

    Args:
        message: What is encoded.
        parts: Writes the content of a message that has images.

    Raises:
        PersistenceError: The bytes of an image are not there.
    """
    encoded: dict[str, Any] = {"role": message.role}
    if message.images and message.captions:
        encoded["content"] = [
            part
            for caption, image in zip(message.captions, message.images, strict=True)
            for part in (*text_part(caption), *parts(None, (image,)))
        ]
    elif message.images:
        encoded["content"] = parts(message.content, message.images)
    elif message.content is not None:
        encoded["content"] = message.content
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            encoded[name] = value
    if message.tool_calls is not None:
        encoded["tool_calls"] = [dict(call) for call in message.tool_calls]
    if message.reasoning is not None:
        encoded["reasoning_content"] = message.reasoning
    return encoded


def encode_tool(tool: RathLLMFunctionTool) -> dict[str, Any]:
    """Return a function tool; unless it is strict, without `additionalProperties` at any depth.

    Many servers refuse the keyword, and arguments are validated on our side anyway. Those that
    know strict tools demand it.
    """
    schema = tool.parameters
    function: dict[str, Any] = {
        "name": tool.name,
        "parameters": schema if tool.strict else _without_additional_properties(schema),
    }
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def encode_sampling(request: RathLLMChatRequest, *, model: str | None) -> dict[str, Any]:
    """Return the parameters that are set, without messages, tools and extra arguments."""
    encoded: dict[str, Any] = {}
    for name in SAMPLING_FIELDS:
        value = getattr(request, name)
        if value is not None and name != "extra_create_args":
            encoded[name] = value
    if model is not None:
        encoded["model"] = model
    return encoded


def _without_additional_properties(schema: Any) -> Any:
    if type(schema) in _SCALARS:
        return schema
    if isinstance(schema, Mapping):
        return {
            key: _open_keyword(key, value)
            for key, value in cast("Mapping[str, Any]", schema).items()
            if key != "additionalProperties"
        }
    if isinstance(schema, list | tuple):
        return [_without_additional_properties(item) for item in cast("list[Any]", schema)]
    return schema


def _open_keyword(key: str, value: Any) -> Any:
    if key in _LITERALS:
        return value
    if key in _BY_NAME and isinstance(value, Mapping):
        schemas = cast("Mapping[str, Any]", value)
        return {name: _without_additional_properties(part) for name, part in schemas.items()}
    return _without_additional_properties(value)


_STREAMING: Mapping[str, Any] = MappingProxyType({"stream": True})


class ListWriter:
    """Writes `{"messages":[...],` and then the parameters.

    The images of a round of tool calls stand in one message of the user behind its last result.

    Args:
        parameters: Those of a plain call, tools left out.
        tools: The tool schemas in the vendor's form, if any.
        streaming: Parameters that a streamed call has beside them.
        encode: Turns a message into the vendor's form; where it has captions, its content is a
            list.
    """

    def __init__(
        self,
        parameters: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        streaming: Mapping[str, Any] = _STREAMING,
        encode: MessageEncoder = encode_message,
    ) -> None:
        self._parameters = parameters
        self._streaming = streaming
        self._tools = None if tools is None else to_json(tools)
        self._encode = encode
        self._separator = b'{"messages":['
        self._tails: dict[bool, BodyTail] = {}
        self._calls: Sequence[Mapping[str, Any]] = ()
        """Those of the turn whose results come."""

        self._held: dict[str, Any] | None = None
        """The message with the images of these results, which has to wait for the last one."""

        self._ending: bytes | None = b""
        """That message as it is written, None while it is not."""

        self.tools_digest: str | None = (
            None if self._tools is None else sha256(self._tools).hexdigest()
        )

    def add(self, message: RathLLMMessage) -> bytes:
        if message.role == "tool":
            if message.images:
                self._hold(images_of_result(message, self._calls))
                message = replace(message, images=None)
            return self._write(message)
        released = self._written_images()
        self._held, self._ending = None, b""
        self._calls = message.tool_calls or ()
        return released + self._write(message)

    def tail(self, *, streaming: bool) -> BodyTail:
        if streaming not in self._tails:
            self._tails[streaming] = self._write_tail(streaming)
        tail = self._tails[streaming]
        # Without a message the list was not opened yet.
        prefix = self._written_images() if self._separator == b"," else self._separator
        return BodyTail(prefix + tail.content, tail.parameters) if prefix else tail

    def _write(self, message: RathLLMMessage) -> bytes:
        separator, self._separator = self._separator, b","
        return separator + to_json(self._encode(message))

    def _hold(self, images: RathLLMMessage) -> None:
        # Encoded now: it takes long, and who adds messages knows where to do what takes long.
        encoded = dict(self._encode(images))
        if self._held is not None:
            encoded["content"] = [*self._held["content"], *encoded["content"]]
        self._held, self._ending = encoded, None

    def _written_images(self) -> bytes:
        if self._ending is None:
            self._ending = b"," + to_json(self._held)
        return self._ending

    def _write_tail(self, streaming: bool) -> BodyTail:
        parameters = self._parameters
        if streaming:
            parameters = {**parameters, **self._streaming}
        content = b"]"
        if self._tools is not None:
            content += b',"tools":' + self._tools
        if parameters:
            content += b"," + to_json(parameters)[1:-1]
        return BodyTail(content + b"}", parameters)


class RequestBody:
    """A growing body; O(new messages) to extend, O(bytes) to give out."""

    __slots__ = ("_hash", "_head", "_writer", "n_images")

    def __init__(self, writer: BodyWriter) -> None:
        self._writer = writer
        self._head = bytearray()
        self._hash = sha256()
        self.n_images: int = 0
        """How many images its messages show."""

    @property
    def tools_digest(self) -> str | None:
        """sha256 of the tool schemas as sent, None without tools."""
        return self._writer.tools_digest

    def append(self, messages: Sequence[RathLLMMessage]) -> None:
        """Encode further messages."""
        for message in messages:
            added = self._writer.add(message)
            self._head += added
            self._hash.update(added)
            self.n_images += len(message.images or ())

    def content(self, *, streaming: bool) -> bytes:
        """Return the whole body as it would be sent now."""
        return b"".join((self._head, self._writer.tail(streaming=streaming).content))

    def digest(self, *, streaming: bool) -> str:
        """Return the sha256 of `content`, without looking at the messages again."""
        running = self._hash.copy()
        running.update(self._writer.tail(streaming=streaming).content)
        return running.hexdigest()

    def parameters(self, *, streaming: bool) -> Mapping[str, Any]:
        """Return what the body says beside messages and tools."""
        return self._writer.tail(streaming=streaming).parameters
