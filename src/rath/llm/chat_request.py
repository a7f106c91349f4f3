"""The request to a chat client: messages, tools and sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any, Literal

from rath._core.dataclasses import dataclass
from rath.llm.image import Image

__all__ = ["RathLLMChatRequest", "RathLLMFunctionTool", "RathLLMMessage"]

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
    """The text before each of `images`; `content` then says the same in one piece, for those
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
class Sampling:
    """Parameters of a model call; None leaves a choice to the endpoint."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    """The older name of `max_completion_tokens`, which some servers still want."""

    stop: str | Sequence[str] | None = None
    n: int | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    """"auto", "none", "required", or the vendor's own form for one tool."""

    parallel_tool_calls: bool | None = None
    response_format: Mapping[str, Any] | None = None
    logit_bias: Mapping[str, int] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    metadata: Mapping[str, str] | None = None
    user: str | None = None
    store: bool | None = None
    service_tier: str | None = None
    extra_create_args: Mapping[str, Any] = field(
        default_factory=lambda: MappingProxyType({}), repr=False
    )
    """Further keys of the request body, as the vendor names them; they win over the fields. Left
    out of `repr`: a client of your own may read headers from it."""


SAMPLING_FIELDS: tuple[str, ...] = tuple(Sampling.__annotations__)
"""The names of the fields, in the order in which they are sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RathLLMChatRequest(Sampling):
    """One model call; a request is a value and holds no identity, retry or budget fields."""

    messages: tuple[RathLLMMessage, ...]
    tools: tuple[RathLLMFunctionTool, ...] | None = None
