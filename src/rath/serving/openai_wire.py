"""Requests and answers of the OpenAI API, decoded and encoded: pure functions over JSON.

Chat Completions and Responses; what each member means: https://platform.openai.com/docs/api-reference.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Any, Literal, TypeVar, cast
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct, UnsetType

from rath._core.dataclasses import dataclass
from rath.llm.chat_response import (
    RathLLMTokenUsage,
    RathLLMToolCallFunction,
    RathLLMToolCallPart,
)
from rath.serving.runs import ClientTool
from rath.session.chunk import (
    ChunkRow,
    assistant_turn_chunk,
    tool_feedback_chunk,
    user_text_chunk,
)
from rath.session.open_calls import OpenCall

S = TypeVar("S", bound=Struct)

MAX_MESSAGES = 10_000
MAX_SCHEMA_DEPTH = 100
"""How deep the schema of a client's tool may be nested; a guess far above those in use."""

TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CALL_ID = re.compile(r"call_([0-9a-f]{32})_(\d{1,9})_(\d{1,6})")
_RESPONSE_ID = re.compile(r"(?:resp_bg_|resp_)?([0-9a-f]{32})(?:_(\d{1,9}))?")


class WireError(Exception):
    """A request that cannot be answered, in the form that clients of OpenAI expect.

    Args:
        message: What is wrong, and what to do.
        status: Of HTTP.
        kind: `type` of the error.
        code: `code` of the error.
        param: Which member of the request it is about.
        headers: To be sent with it.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.param = param
        self.headers: dict[str, str] = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the JSON of the error."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


# What a client may send. Members that are not named here change nothing of a run and are ignored,
# as sampling is: the workflow decides on that.
class _Function(Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _ChatTool(Struct, frozen=True):
    type: str = "function"
    function: _Function | None = None


class _CalledFunction(Struct, frozen=True):
    name: str
    arguments: str = ""


class _CalledTool(Struct, frozen=True):
    id: str
    function: _CalledFunction


class _StreamOptions(Struct, frozen=True):
    include_usage: bool = False


class _Part(Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: dict[str, Any] | str | None = None


class _Message(Struct, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[_Part] | None = None
    tool_calls: list[_CalledTool] | None = None
    tool_call_id: str | None = None


class ChatRequest(Struct, frozen=True):
    """A request of Chat Completions."""

    model: str
    messages: list[_Message]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    tools: list[_ChatTool] | None = None
    tool_choice: Any = None
    n: int | None = None
    stop: Any = None
    logprobs: bool | None = None
    response_format: dict[str, Any] | None = None
    audio: Any = None
    functions: Any = None


class _ResponseTool(Struct, frozen=True):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Item(Struct, frozen=True):
    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[_Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[_Part] | None = None


class ResponseRequest(Struct, frozen=True):
    """A request of Responses."""

    model: str
    input: str | list[_Item] = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    background: bool | None = None
    tools: list[_ResponseTool] | None = None
    tool_choice: Any = None
    text: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None


class EmbeddingRequest(Struct, frozen=True):
    """A request of Embeddings."""

    model: str
    input: str | list[str]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | UnsetType = UNSET


@cache
def _decoder(kind: type[S]) -> msgspec.json.Decoder[S]:
    return msgspec.json.Decoder(kind)


def decode_request(kind: type[S], data: bytes) -> S:
    """Return a request.

    Raises:
        WireError: It is no JSON, or not such a request; the text names the member.
    """
    try:
        request: S = _decoder(kind).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        found = re.search(r"`\$\.?([^`]*)`", str(exc))
        raise WireError(
            f"the request cannot be read: {exc}", param=found.group(1) if found else None
        ) from exc
    return request


def check_chat(request: ChatRequest) -> None:
    """Refuse what cannot be done as it is asked for, rather than ignore it.

    Raises:
        WireError: See above.
    """
    refused = {
        "n": request.n not in (None, 1),
        "stop": bool(request.stop),
        "logprobs": bool(request.logprobs),
        "response_format": _is_format(request.response_format),
        "audio": request.audio is not None,
        "functions": bool(request.functions),
        "tool_choice": _is_forced(request.tool_choice),
    }
    _refuse(refused)


def check_response(request: ResponseRequest) -> None:
    """Refuse what cannot be done as it is asked for, rather than ignore it.

    Raises:
        WireError: See above.
    """
    form = request.text.get("format") if request.text is not None else None
    refused = {
        "text.format": _is_format(form),
        "tool_choice": _is_forced(request.tool_choice),
        "store": request.store is False,
    }
    _refuse(refused)
    if request.background and (request.stream or request.tools):
        raise WireError(
            "a run in the background can neither stream nor use tools of the client; leave out "
            "`background`, or `stream` and `tools`",
            code="unsupported_parameter",
            param="background",
        )


def _is_format(form: dict[str, Any] | None) -> bool:
    return form is not None and form.get("type", "text") != "text"


def _is_forced(choice: Any) -> bool:
    return choice not in (None, "auto", "none")


def _refuse(refused: Mapping[str, bool]) -> None:
    for name, is_refused in refused.items():
        if is_refused:
            raise WireError(
                f"`{name}` has a value that a workflow cannot be given from outside; leave it out",
                code="unsupported_parameter",
                param=name,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a client says with a request."""

    rows: tuple[ChunkRow, ...] = ()
    session_id: UUID | None = None
    """The session whose calls the results are of."""

    results: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    """Results of calls of that session, by row and place."""


def chat_content(request: ChatRequest) -> Said:
    """Return what a client says: rows of a new session, or results of calls of a stored one.

    Raises:
        WireError: There is nothing, or something that cannot be read.
    """
    messages = request.messages
    if not messages or len(messages) > MAX_MESSAGES:
        raise WireError(
            f"expected 1 to {MAX_MESSAGES} messages, got {len(messages)}", param="messages"
        )
    n_results = 0
    while n_results < len(messages) and messages[-1 - n_results].role == "tool":
        n_results += 1
    last = messages[len(messages) - n_results :]
    results = _own_results((each.tool_call_id or "", _text(each.content)) for each in last)
    if results is not None:
        return results
    names = {call.id: call.function.name for each in messages for call in each.tool_calls or ()}
    return Said(rows=tuple(_chat_row(each, names) for each in messages))


def response_content(request: ResponseRequest) -> Said:
    """Return what a client says with a request of Responses; see `chat_content`."""
    items = request.input
    if isinstance(items, str):
        text = (user_text_chunk(items),) if items else ()
        return Said(rows=(*_instructions(request), *text))
    outputs = [each for each in items if each.type == "function_call_output"]
    if outputs and len(outputs) == len(items):
        results = _own_results((each.call_id or "", _text(each.output)) for each in outputs)
        if results is not None:
            return results
    names = {each.call_id: each.name for each in items if each.type == "function_call"}
    rows = tuple(_item_row(each, names) for each in items)
    return Said(rows=(*_instructions(request), *rows))


def _instructions(request: ResponseRequest) -> tuple[ChunkRow, ...]:
    text = request.instructions
    return (_instruction_row(text),) if text else ()


def _instruction_row(text: str) -> ChunkRow:
    """Return instructions of a client, as what it says: those of the agent stand above them."""
    return user_text_chunk(f"Instructions of the client:\n{text}")


def _own_results(results: Iterable[tuple[str, str]]) -> Said | None:
    """Return results of calls that a session of this server asked for, None where some are not."""
    found: dict[tuple[int, int], str] = {}
    sessions: set[UUID] = set()
    for call_id, text in results:
        match = _CALL_ID.fullmatch(call_id)
        if match is None:
            return None
        sessions.add(UUID(match.group(1)))
        found[int(match.group(2)), int(match.group(3))] = text
    if not found:
        return None
    if len(sessions) > 1:
        raise WireError("the results are of calls of several responses; give those of one")
    return Said(session_id=sessions.pop(), results=found)


def session_of_calls(call_ids: Iterable[str]) -> UUID:
    """Return the session that asked for calls.

    Raises:
        WireError: An id is none of this server, or they are of several sessions.
    """
    found = _own_results((each, "") for each in call_ids)
    if found is None or found.session_id is None:
        raise WireError("an id is that of no call of this server; give those that it named")
    return found.session_id


def _text(content: str | Sequence[_Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text or part.refusal or "" for part in content)


def _chat_row(message: _Message, names: Mapping[str, str]) -> ChunkRow:
    if message.role == "user":
        return _user_row(message.content)
    if message.role in ("system", "developer"):
        return _instruction_row(_text(message.content))
    if message.role == "assistant":
        calls = tuple(
            _call_part(call.id, call.function.name, call.function.arguments)
            for call in message.tool_calls or ()
        )
        return assistant_turn_chunk(tool_calls=calls or None, content=_text(message.content))
    name = names.get(message.tool_call_id or "")
    if message.tool_call_id is None or name is None:
        raise WireError(
            f"a message of role {message.role!r} answers no call before it; give the `tool_call_id`"
            " of one",
            param="messages",
        )
    return tool_feedback_chunk(message.tool_call_id, name, _text(message.content))


def _item_row(item: _Item, names: Mapping[str | None, str | None]) -> ChunkRow:
    if item.type == "message" and item.role is not None:
        if item.role == "user":
            return _user_row(item.content)
        if item.role == "assistant":
            return assistant_turn_chunk(tool_calls=None, content=_text(item.content))
        return _instruction_row(_text(item.content))
    if item.type == "function_call" and item.call_id and item.name:
        part = _call_part(item.call_id, item.name, item.arguments or "")
        return assistant_turn_chunk(tool_calls=(part,))
    name = names.get(item.call_id)
    if item.type == "function_call_output" and item.call_id and name:
        return tool_feedback_chunk(item.call_id, name, _text(item.output))
    raise WireError(
        f"an item of type {item.type!r} cannot be read here; expected message, function_call, or "
        "function_call_output of a call before it",
        param="input",
    )


def _call_part(call_id: str, name: str, arguments: str) -> RathLLMToolCallPart:
    function = RathLLMToolCallFunction(name, arguments, None, arguments_parse_error=False)
    return RathLLMToolCallPart(id=call_id, type="function", function=function)


def _user_row(content: str | Sequence[_Part] | None) -> ChunkRow:
    if content is None or isinstance(content, str):
        return user_text_chunk(content or "")
    texts: list[str] = []
    images: list[bytes] = []
    for part in content:
        if part.type in ("text", "input_text", "output_text"):
            texts.append(part.text or "")
        elif part.type in ("image_url", "input_image"):
            images.append(_image(part.image_url))
        else:
            raise WireError(
                f"a part of type {part.type!r} cannot be read here; expected text or an image",
                param="messages",
            )
    try:
        return user_text_chunk("\n".join(texts), images=images)
    except ValueError as exc:
        raise WireError(str(exc), param="messages") from exc


def _image(address: dict[str, Any] | str | None) -> bytes:
    """Return the bytes of an image; an address is not fetched: it may be of this network."""
    url: object = address.get("url") if isinstance(address, dict) else address
    head, _, data = str(url).partition(",")
    if not (head.startswith("data:image/") and head.endswith(";base64")):
        raise WireError("an image must be a data: URL in base64; addresses are not fetched")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as exc:
        raise WireError(f"an image is no base64: {exc}") from exc


def chat_tools(request: ChatRequest) -> tuple[ClientTool, ...]:
    """Return the tools that a client offers.

    Raises:
        WireError: One cannot be offered.
    """
    if request.tool_choice == "none":
        return ()
    return _tools((each.type, each.function or _Function("")) for each in request.tools or ())


def response_tools(request: ResponseRequest) -> tuple[ClientTool, ...]:
    """Return the tools that a client offers; see `chat_tools`."""
    if request.tool_choice == "none":
        return ()
    return _tools(
        (each.type, _Function(each.name or "", each.description, each.parameters))
        for each in request.tools or ()
    )


def _tools(functions: Iterable[tuple[str, _Function]]) -> tuple[ClientTool, ...]:
    tools: dict[str, ClientTool] = {}
    for kind, function in functions:
        name = function.name
        if kind != "function" or TOOL_NAME.fullmatch(name) is None or name in tools:
            raise WireError(
                f"a tool of type {kind!r} and name {name!r:.80} cannot be offered; expected type "
                "'function' and a name of its own of 1 to 64 letters, digits, '_' or '-'",
                param="tools",
            )
        if _is_deeper(function.parameters, MAX_SCHEMA_DEPTH):
            raise WireError(
                f"the parameters of tool {name!r} are nested deeper than {MAX_SCHEMA_DEPTH}; give "
                "a flatter schema",
                param="tools",
            )
        tools[name] = ClientTool(name, function.description, function.parameters or {})
    return tuple(tools.values())


def _is_deeper(value: object, depth: int) -> bool:
    """Tell whether a JSON value is nested deeper than this; looks no deeper itself."""
    if not isinstance(value, dict | list):
        return False
    found = cast("dict[str, object] | list[object]", value)
    inner = found.values() if isinstance(found, dict) else found
    return depth == 0 or any(_is_deeper(each, depth - 1) for each in inner)


def call_id(session: UUID, call: OpenCall) -> str:
    """Return the id by which a client names a call of a session."""
    return f"call_{session.hex}_{call.row}_{call.index}"


def call_arguments(call: OpenCall) -> str:
    """Return the arguments of a call as JSON: a model may give none as an empty text."""
    return call.call.arguments or "{}"


def response_id(session: UUID, first_row: int) -> str:
    """Return the id of a response: that of its session, and where in it its answer begins."""
    return f"resp_{session.hex}_{first_row}"


def background_id(number: UUID) -> str:
    """Return the id of a response that is made in the background."""
    return f"resp_bg_{number.hex}"


def is_background(text: str) -> bool:
    """Tell whether an id is that of a response in the background."""
    return text.startswith("resp_bg_")


def read_response_id(text: str) -> tuple[UUID, int]:
    """Return the session that an id names and where in it the answer begins; any form of a UUID.

    Raises:
        WireError: It is no such id.
    """
    match = _RESPONSE_ID.fullmatch(text.replace("-", "") if len(text) == 36 else text)
    if match is None:
        raise not_found(text)
    return UUID(match.group(1)), int(match.group(2) or 0)


def not_found(name: str) -> WireError:
    """Return the error of a response that a principal does not have."""
    return WireError(
        f"there is no response {name!r:.80}; give the id of an earlier one of yours",
        status=404,
        code="response_not_found",
    )


def usage_of_chat(usage: RathLLMTokenUsage) -> dict[str, Any]:
    """Return usage as Chat Completions has it."""
    cached, reasoning = _details(usage)
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def usage_of_response(usage: RathLLMTokenUsage) -> dict[str, Any]:
    """Return usage as Responses has it."""
    cached, reasoning = _details(usage)
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": usage.total_tokens,
    }


def _details(usage: RathLLMTokenUsage) -> tuple[int, int]:
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    cached = (prompt or {}).get("cached_tokens") or 0
    return cached, (completion or {}).get("reasoning_tokens") or 0


def chat_completion(head: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a whole answer of Chat Completions.

    Args:
        head: `id`, `created` and `model`.
        answer: `content`, `tool_calls`, `finish_reason` and `usage`.
    """
    message: dict[str, Any] = {"role": "assistant", "content": answer["content"], "refusal": None}
    if answer["tool_calls"]:
        message["tool_calls"] = answer["tool_calls"]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": answer["finish_reason"],
    }
    return {
        **head,
        "object": "chat.completion",
        "choices": [choice],
        "usage": answer["usage"],
    }


def chat_chunk(
    head: Mapping[str, Any], delta: Mapping[str, Any], finish_reason: str | None = None
) -> dict[str, Any]:
    """Return a part of a streamed answer of Chat Completions."""
    choice = {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": finish_reason}
    return {**head, "object": "chat.completion.chunk", "choices": [choice]}


def chat_calls(session: UUID, calls: Sequence[OpenCall]) -> list[dict[str, Any]]:
    """Return calls of tools of the client as Chat Completions has them."""
    return [
        {
            "id": call_id(session, call),
            "type": "function",
            "function": {"name": call.call.name, "arguments": call_arguments(call)},
        }
        for call in calls
    ]


def response_calls(session: UUID, calls: Sequence[OpenCall]) -> list[dict[str, Any]]:
    """Return calls of tools of the client as Responses has them."""
    return [
        {
            "type": "function_call",
            "id": f"fc_{session.hex}_{call.row}_{call.index}",
            "call_id": call_id(session, call),
            "name": call.call.name,
            "arguments": call_arguments(call),
            "status": "completed",
        }
        for call in calls
    ]


def text_item(name: str, text: str, status: str = "completed") -> dict[str, Any]:
    """Return a message of a response."""
    content: list[dict[str, Any]] = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "type": "message",
        "id": name,
        "role": "assistant",
        "status": status,
        "content": content if status == "completed" else [],
    }


def embedding_vector(vector: Sequence[float], form: str) -> list[float] | str:
    """Return a vector as a client asked for it: numbers, or base64 of little-endian float32."""
    if form == "float":
        return list(vector)
    import array  # noqa: PLC0415  # few clients ask for it
    import sys  # noqa: PLC0415

    numbers = array.array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
