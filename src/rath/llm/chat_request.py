"""What a chat client is asked: messages, tools and sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rath.llm.image import Image
from rath.llm.sampling import Sampling

__all__ = ["RathLLMChatRequest", "RathLLMFunctionTool", "RathLLMMessage", "RathLLMRole"]

RathLLMRole = Literal["system", "user", "assistant", "tool", "developer"]


@dataclass(frozen=True, slots=True)
class RathLLMMessage:
    """One message of a request."""

    role: str
    """A `RathLLMRole`, or what else the endpoint understands."""

    content: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    """The call that a "tool" message answers."""

    tool_calls: tuple[Mapping[str, Any], ...] | None = None
    """Calls of an "assistant" message in the form of OpenAI's chat protocol."""

    reasoning: str | None = None
    """Reasoning text of an "assistant" message, for the vendors that want it back."""

    images: tuple[Image, ...] | None = None
    """Images of a "user" message, before its text, or of a "tool" message, behind its text. A
    client that others wrote gets them in messages of the user only."""

    blocks: tuple[Mapping[str, Any], ...] | None = None
    """The whole content of an "assistant" message in its vendor's own form, set only where that
    very vendor and model is asked again; it then stands in the place of `content`."""

    # Not in the repr, of which digests in stored sessions were taken before there was the field.
    captions: tuple[str, ...] | None = field(default=None, repr=False)
    """What is said before each of `images`; `content` then says the same in one piece, for those
    that write a text and images, and not a text before each image."""


@dataclass(frozen=True, slots=True)
class RathLLMFunctionTool:
    """A function that the model may call."""

    name: str
    parameters: dict[str, Any]
    """JSON Schema of the arguments, of type object."""

    description: str | None = None
    strict: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RathLLMChatRequest(Sampling):
    """One model call; a request is a value and holds no identity, retry or budget fields."""

    messages: tuple[RathLLMMessage, ...]
    tools: tuple[RathLLMFunctionTool, ...] | None = None
