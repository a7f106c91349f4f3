"""The plain executor: a chat client completes, tools are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rath.llm.base import ChatClient
from rath.llm.chat_request import RathLLMChatRequest, RathLLMFunctionTool
from rath.llm.chat_response import RathLLMChatResponse
from rath.session.session import Session
from rath.session.tooling import Tool


class DefaultSessionLoopExecutor:
    """Completes with `client` and calls tools as they are; a base for executors of your own."""

    def __init__(self, client: ChatClient) -> None:
        self._client = client

    @property
    def answers_offline(self) -> bool:
        """Whether the client says that it asks nobody."""
        return bool(getattr(self._client, "answers_offline", False))

    def tool_schemas(self) -> tuple[RathLLMFunctionTool, ...]:
        """Return (): the loop offers its own table."""
        return ()

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        """Ask the client."""
        return self._client.complete(req)

    def dispatch_tool(self, session: Session, tool: Tool, arguments: Mapping[str, Any]) -> Any:
        """Call the tool."""
        return tool(session, dict(arguments or {}))
