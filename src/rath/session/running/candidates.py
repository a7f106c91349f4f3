"""A model that a run may ask, and the requests that it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rath.llm.base import ChatClient
from rath.llm.chat_request import RathLLMChatRequest, RathLLMFunctionTool
from rath.llm.draft import ProviderOrigin, output_mode
from rath.llm.provider import Provider
from rath.session.chat_request_build import provider_into_chat_request
from rath.session.output.schema import OutputSpec


@dataclass(frozen=True, slots=True)
class Candidate:
    """The provider of a run, or one of its fallbacks."""

    client: ChatClient
    provider: Provider
    origin: ProviderOrigin = "call"
    """Who gave the provider."""


def turn_request(
    tools: Sequence[RathLLMFunctionTool], output: OutputSpec | None, candidate: Candidate
) -> RathLLMChatRequest:
    """Return the request of a turn: the tools are offered, and used as the model likes.

    With a typed `output` the candidate is asked for its schema, or must call tools until it calls
    the one that takes the answer: whichever it knows.
    """
    client, provider = candidate.client, candidate.provider
    mode = output and output_mode(client, provider, with_tools=bool(tools), strict=output.strict)
    if output is not None and mode == "tool":
        offered = (*tools, output.tool)
        return provider_into_chat_request((), offered, provider, default_tool_choice="required")
    request = provider_into_chat_request(
        (), tuple(tools), provider, default_tool_choice="auto" if tools else None
    )
    return request if output is None else replace(request, response_format=output.response_format)


def side_request(candidate: Candidate) -> RathLLMChatRequest:
    """Return the request of a side call: no tools, and none wanted whatever the provider says."""
    bare = replace(candidate.provider, tool_choice=None)
    return provider_into_chat_request((), None, bare, default_tool_choice="none")
