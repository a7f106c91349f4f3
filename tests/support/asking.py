"""How tests of chat clients ask: requests, drafts and waits that take no time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rath._async.runtime import runtime
from rath.llm import ChatClient, ChatDraft, Exchange, Provider, open_draft
from rath.llm.chat_request import RathLLMChatRequest, RathLLMFunctionTool, RathLLMMessage
from rath.llm.chat_response import RathLLMStreamDelta
from rath.llm.openai import RathOpenAIChatClient
from tests.support.chat_server import ChatServer

KEY = "sk-canary-0123456789"
HELLO = (RathLLMMessage("user", "hello"),)
WEATHER = RathLLMFunctionTool(
    "weather", {"type": "object", "properties": {"city": {"type": "string"}}}, "Tell the weather."
)


class NoSleep:
    """A sleep that only remembers how long it was asked to last."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waits.append(seconds)


def ask(*messages: RathLLMMessage, model: str | None = "m") -> RathLLMChatRequest:
    """A request for one answer; a greeting unless there are messages."""
    return RathLLMChatRequest(messages=messages or HELLO, model=model)


def openai_client(
    server: ChatServer, *, sleep: NoSleep | None = None, provider: Provider | None = None
) -> RathOpenAIChatClient:
    """A client for the test server that never really waits between tries."""
    given = replace(provider or Provider(), base_url=server.base_url, api_key=KEY, model="m")
    return RathOpenAIChatClient(given, sleep=sleep or NoSleep())


def send(
    draft: ChatDraft, on_delta: Callable[[RathLLMStreamDelta], None] | None = None
) -> Exchange:
    """Send a draft and wait."""
    return runtime().run(lambda: draft.asend(on_delta=on_delta), label="a test call")


def exchange(
    client: ChatClient,
    request: RathLLMChatRequest | None = None,
    on_delta: Callable[[RathLLMStreamDelta], None] | None = None,
) -> Exchange:
    """Ask once and wait."""
    return send(open_draft(client, request or ask()), on_delta)
