"""The small requests of a probe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from rath.llm.chat_request import (
    SAMPLING_FIELDS,
    RathLLMChatRequest,
    RathLLMFunctionTool,
    RathLLMMessage,
)
from rath.llm.endpoint import is_azure
from rath.llm.provider import Provider

__all__ = ["LONG", "SCHEMA", "SHORT", "TOOL", "ProbeRequests"]

SHORT = 16
"""Tokens of an answer of one word; models that count their thoughts among them get as many as a
run would give them, once they have refused so few."""

LONG = 128
"""Tokens of a tool call or a small JSON object, which takes about 30; a guess that leaves room for
models that talk before it."""

TOOL = RathLLMFunctionTool(
    "report_word",
    {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    "Report a word.",
)
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"word": {"type": "string"}},
    "required": ["word"],
    "additionalProperties": False,
}

_WORD = "Reply with one word: OK"
_OPENAI_HOST = "api.openai.com"
_UNSET = (
    "stop", "n", "tool_choice", "parallel_tool_calls", "response_format", "logprobs",
    "top_logprobs",
)  # fmt: skip
"""What a provider may say about its own conversations and would change these."""


class ProbeRequests:
    """Makes requests with the parameters of a provider, and with few tokens for the answer.

    Args:
        provider: What a run would be asked with.
        endpoint: Where the requests go, if that is known.
    """

    def __init__(self, provider: Provider, endpoint: str | None) -> None:
        self._provider = provider
        self._limit = _limit_name(provider, endpoint)
        self.is_limited = True
        """Whether answers are kept short; False leaves that to the provider, as in a run."""

    def word(self) -> RathLLMChatRequest:
        """Ask for one word."""
        return self._request(_WORD, SHORT)

    def tool_call(self, choice: str) -> RathLLMChatRequest:
        """Ask for a call of `TOOL`."""
        question = f"Call the tool {TOOL.name} with the word OK."
        return self._request(question, LONG, tools=(TOOL,), tool_choice=choice)

    def word_without_counts(self) -> RathLLMChatRequest:
        """Ask for one word, and in a stream not for the token counts at its end."""
        extra = {**self._provider.extra_create_args, "stream_options": None}
        return self._request(_WORD, SHORT, extra_create_args=extra)

    def schema(self) -> RathLLMChatRequest:
        """Ask for an object that follows `SCHEMA`."""
        described = {"name": "word", "schema": SCHEMA, "strict": True}
        return self._request(
            'Give the word OK as JSON: {"word": "OK"}',
            LONG,
            response_format={"type": "json_schema", "json_schema": described},
        )

    def _request(
        self,
        question: str,
        n_tokens: int,
        *,
        tools: tuple[RathLLMFunctionTool, ...] | None = None,
        **changes: Any,
    ) -> RathLLMChatRequest:
        fields = {name: getattr(self._provider, name) for name in SAMPLING_FIELDS}
        fields |= dict.fromkeys(_UNSET)
        if self.is_limited:
            fields |= {"max_tokens": None, "max_completion_tokens": None, self._limit: n_tokens}
        return RathLLMChatRequest(
            messages=(RathLLMMessage("user", question),), tools=tools, **{**fields, **changes}
        )


def _limit_name(provider: Provider, endpoint: str | None) -> str:
    """Return which of its two names the limit of an answer has there.

    OpenAI's newer models refuse the older name, and many other servers the newer one.
    """
    if provider.max_completion_tokens is not None:
        return "max_completion_tokens"
    is_openai = is_azure(endpoint) or urlsplit(endpoint or "").hostname == _OPENAI_HOST
    return "max_completion_tokens" if is_openai and provider.max_tokens is None else "max_tokens"
