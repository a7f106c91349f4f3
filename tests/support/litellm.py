"""What tests of the LiteLLM adapter share: two of its routes, on the test server."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest

from rath.llm import Provider
from rath.llm.litellm import RathLiteLLMChatClient
from tests.support.asking import KEY, NoSleep
from tests.support.chat_server import ChatServer

OPENAI_MODEL = "openai/m"
ANTHROPIC_MODEL = "anthropic/claude-sonnet-4-20250514"

needs_litellm = pytest.mark.skipif(
    find_spec("litellm") is None,
    reason="litellm is not installed; it is the extra 'litellm'",
)


def litellm_client(
    server: ChatServer,
    model: str = OPENAI_MODEL,
    *,
    sleep: NoSleep | None = None,
    provider: Provider | None = None,
) -> RathLiteLLMChatClient:
    """A client for the test server that never really waits between tries."""
    # LiteLLM adds the version to the address of Anthropic, and not to that of OpenAI.
    address = server.base_url if model == OPENAI_MODEL else server.base_url.removesuffix("/v1")
    given = replace(provider or Provider(), base_url=address, api_key=KEY, model=model)
    return RathLiteLLMChatClient(given, sleep=sleep or NoSleep())
