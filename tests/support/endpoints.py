"""Endpoints that answer the calls of a probe, and gateways that support less."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tests.support import anthropic_replies, chat_replies
from tests.support.chat_replies import Reply
from tests.support.chat_server import CapturedRequest, ChatServer, Models

Answer = Callable[[CapturedRequest], Reply]


class Serve(Protocol):
    """Starts a server."""

    def __call__(self, answer: Answer | None = None, *, models: Models = None) -> ChatServer: ...


class Servers(ExitStack):
    """Servers that are closed with the block that they were started in."""

    def start(self, answer: Answer | None = None, *, models: Models = None) -> ChatServer:
        return self.enter_context(ChatServer(answer, models=models))


WORD = {"word": "OK"}
Manner = Literal["takes", "ignores", "refuses"]
"""What an endpoint does with a part of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIEndpoint:
    """Speaks chat completions; give it to `ChatServer`."""

    model: str = chat_replies.MODEL
    """The one that says it answered."""

    tools: Manner = "takes"
    required: Literal["takes", "refuses"] = "takes"
    schema: Manner = "takes"
    streams: Manner = "takes"
    stream_options: Literal["takes", "refuses"] = "takes"
    counts: bool = True
    least_tokens: int = 0
    """Refuses a lower `max_tokens`."""

    def __call__(self, request: CapturedRequest) -> Reply:
        body = request.json()
        refusal = self._refusal(body)
        if refusal is not None:
            return chat_replies.status_error(400, refusal)
        if "tools" in body and self.tools == "takes":
            call = chat_replies.tool_call(body["tools"][0]["function"]["name"], WORD)
            return self._whole(None, tool_calls=(call,))
        is_object = "response_format" in body and self.schema == "takes"
        text = json.dumps(WORD) if is_object else "OK"
        if body.get("stream") and self.streams == "takes":
            is_counted = self.counts and body.get("stream_options") is not None
            return chat_replies.text_stream(text, counts=(9, 1) if is_counted else None)
        return self._whole(text)

    def _whole(self, content: str | None, **more: Any) -> Reply:
        usage = chat_replies.usage(9, 1) if self.counts else None
        return chat_replies.completion(content, usage=usage, model=self.model, **more)

    def _refusal(self, body: dict[str, Any]) -> str | None:
        if "tools" in body and self.tools == "refuses":
            return "tools are not supported"
        if body.get("tool_choice") == "required" and self.required == "refuses":
            return "tool_choice must be auto or none"
        if body.get("stream") and self.streams == "refuses":
            return "streaming is not supported"
        if body.get("stream_options") is not None and self.stream_options == "refuses":
            return "unknown field stream_options"
        if "response_format" in body and self.schema == "refuses":
            return "response_format json_schema is not supported"
        if body.get("max_tokens", self.least_tokens) < self.least_tokens:
            return "max_tokens is too low for this model"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicEndpoint:
    """Speaks the Messages API; give it to `ChatServer`."""

    model: str = anthropic_replies.MODEL
    tools: Literal["takes", "refuses"] = "takes"

    def __call__(self, request: CapturedRequest) -> Reply:
        body = request.json()
        if "tools" in body:
            if self.tools == "refuses":
                return anthropic_replies.error(400, message="tools are not supported")
            name = body["tools"][0]["name"]
            return anthropic_replies.message(
                anthropic_replies.tool_use(name, WORD), model=self.model
            )
        is_object = "output_config" in body
        said = anthropic_replies.text(json.dumps(WORD) if is_object else "OK")
        make = anthropic_replies.streamed if body.get("stream") else anthropic_replies.message
        return make(said, model=self.model)
