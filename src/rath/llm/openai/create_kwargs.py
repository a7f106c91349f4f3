"""Requests as the arguments and the body of a chat completion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rath.llm import body
from rath.llm.chat_request import RathLLMChatRequest

__all__ = ["to_create_kwargs", "to_create_kwargs_stream"]


def to_create_kwargs(req: RathLLMChatRequest, *, default_model: str | None) -> dict[str, Any]:
    """Return the keyword arguments for `chat.completions.create` of the SDK.

    Only what is set stands in them; `extra_create_args` wins over the fields. The images of
    results of tools stand in a message of the user.

    Raises:
        ValueError: No model is named, or `extra_create_args` asks for a stream.
    """
    model = req.model or default_model
    if not model:
        raise ValueError("model is required: name one in the request or in Provider(model=...)")
    tools = {"tools": [body.encode_tool(tool) for tool in req.tools]} if req.tools else {}
    messages = [body.encode_message(message) for message in body.images_apart(req.messages)]
    return {"messages": messages, **tools, **_parameters(req, model), "stream": False}


def to_create_kwargs_stream(
    req: RathLLMChatRequest, *, default_model: str | None
) -> dict[str, Any]:
    """Return the keyword arguments for a streamed call, which ends with the token counts.

    Raises:
        ValueError: No model is named, or `extra_create_args` asks for a stream.
    """
    arguments = to_create_kwargs(req, default_model=default_model)
    return {**arguments, **_for_stream(arguments)}


def body_writer(
    request: RathLLMChatRequest, *, model: str, encode: body.MessageEncoder = body.encode_message
) -> body.ListWriter:
    """Return a writer for bodies that say the same as the keyword arguments.

    One thing differs: a choice between no tools is left out, since servers refuse it.

    Args:
        request: What is asked.
        model: Who is asked.
        encode: Writes each message.

    Raises:
        ValueError: `extra_create_args` asks for a stream, or sets messages.
    """
    extra = request.extra_create_args
    if "messages" in extra:
        raise ValueError("extra_create_args cannot set 'messages'; they come from the session")
    parameters = _parameters(request, model)
    # Tools given as an extra argument are parameters like any other.
    tools = request.tools if request.tools and "tools" not in extra else None
    if tools is None and "tools" not in extra:
        for name in {"tool_choice", "parallel_tool_calls"} - set(extra):
            parameters.pop(name, None)
    return body.ListWriter(
        parameters,
        None if tools is None else [body.encode_tool(tool) for tool in tools],
        streaming=_for_stream(parameters),
        encode=encode,
    )


def _parameters(request: RathLLMChatRequest, model: str) -> dict[str, Any]:
    extra = dict(request.extra_create_args)
    if extra.pop("stream", False):
        raise ValueError(
            "extra_create_args cannot set stream=True; a run streams when it is given on_event"
        )
    return {**body.encode_sampling(request, model=model), **extra}


def _for_stream(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    return _STREAMING if "stream_options" in arguments else _STREAMING_WITH_USAGE


_STREAMING: Mapping[str, Any] = {"stream": True}
_STREAMING_WITH_USAGE: Mapping[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
}
