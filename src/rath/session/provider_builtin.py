"""The plain executor: a chat client completes, tools are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from rath._core.dataclasses import dataclass
from rath.errors import RathError
from rath.llm.base import ChatClient, StreamingChatClient, require_streaming
from rath.llm.chat_request import RathLLMChatRequest, RathLLMFunctionTool
from rath.llm.chat_response import RathLLMChatResponse, RathLLMStreamDelta
from rath.llm.client import require_model
from rath.llm.provider import Provider, ProviderOrigin
from rath.llm.registry import chat_client_for
from rath.llm.stream import StreamFold
from rath.session.calls.oneshot import OnEventCb
from rath.session.calls.requests import ProviderCandidate
from rath.session.scope import current_replay
from rath.session.session import Session
from rath.session.tooling import Tool


@runtime_checkable
class SessionLoopExecutor(Protocol):
    """Stands between the loop and the world.

    `complete` and `dispatch_tool` may be `def` or `async def`; `tool_schemas` is a `def`, since the
    caller's thread asks it before the run is submitted.
    """

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        """Answer a request."""
        ...

    def dispatch_tool(self, session: Session, tool: Tool, arguments: Mapping[str, Any]) -> Any:
        """Run a tool call and return what it came to."""
        ...

    def tool_schemas(self) -> tuple[RathLLMFunctionTool, ...]:
        """Return the tools to offer; () leaves that to the loop."""
        ...


class StreamingExecutor:
    """Completes by streaming and tells every delta.

    Args:
        client: Must have `complete_stream`.
        on_event: Gets each delta, before it is folded into the answer.
        inner: Dispatches the tools; by default they are simply called.
    """

    def __init__(
        self,
        client: StreamingChatClient,
        on_event: Callable[[RathLLMStreamDelta], None],
        inner: SessionLoopExecutor | None = None,
    ) -> None:
        require_streaming(client)
        self._client = client
        self._on_event = on_event
        self._inner = inner or DefaultSessionLoopExecutor(client)

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        """Stream the answer, tell each delta, and return the whole."""
        fold = StreamFold()
        for delta in self._client.complete_stream(req):
            self._on_event(delta)
            fold.add(delta)
        return fold.response(model=req.model or self._client.provider.model or "")

    def dispatch_tool(self, session: Session, tool: Tool, arguments: Mapping[str, Any]) -> Any:
        """Run a tool call through the inner executor."""
        return self._inner.dispatch_tool(session, tool, arguments)

    def tool_schemas(self) -> tuple[RathLLMFunctionTool, ...]:
        """Return the tools of the inner executor."""
        return self._inner.tool_schemas()


@dataclass(frozen=True, slots=True)
class ExecutorClient:
    """A caller's executor in the place of a chat client."""

    provider: Provider
    executor: SessionLoopExecutor

    @property
    def answers_offline(self) -> bool:
        """Whether the executor says that `rath.offline` is nothing to it."""
        return bool(getattr(self.executor, "answers_offline", False))

    def complete(self, req: RathLLMChatRequest) -> Any:
        """Ask the executor; an awaitable is awaited by the loop."""
        return self.executor.complete(req)


def resolve_executor(
    *, agent_provider: Provider, executor: SessionLoopExecutor | None, on_event: OnEventCb | None
) -> SessionLoopExecutor:
    """Return the caller's executor, or one on the provider's own client, without its fallbacks.

    Raises:
        ValueError: Both an executor and `on_event` were given.
        TypeError: `on_event` was given and the client cannot stream.
    """
    if executor is not None:
        refuse_both(executor, on_event)
        return executor
    client = chat_client_for(agent_provider)
    if on_event is None:
        return DefaultSessionLoopExecutor(client)
    require_streaming(client)
    return StreamingExecutor(client, on_event)  # type: ignore[arg-type]  # checked the line before


def refuse_both(executor: object, on_event: object) -> None:
    """Refuse a custom executor together with `on_event`: only one can own the stream."""
    if executor is not None and on_event is not None:
        raise ValueError(
            "on_event cannot be used with a custom executor: the executor owns the stream. "
            "Leave one out, or call on_event inside the executor"
        )


def candidates_for(
    provider: Provider,
    executor: SessionLoopExecutor | None,
    on_event: object,
    *,
    origin: ProviderOrigin = "call",
) -> tuple[ProviderCandidate, ...]:
    """Return the models that a run may ask, in order; everything the caller got wrong raises here.

    Raises:
        ValueError: Unknown provider kind, no key, no model, or an executor together with
            `on_event` or with fallbacks. For a fallback the text says which one it is.
        TypeError: `on_event` was given and a client cannot stream.
    """
    if executor is not None:
        refuse_both(executor, on_event)
        if provider.fallbacks:
            raise ValueError(
                "fallbacks cannot be used with a custom executor: the executor makes the calls. "
                "Give it dataclasses.replace(provider, fallbacks=()), and let it fall back itself"
            )
        candidates = [ProviderCandidate(ExecutorClient(provider, executor), provider, origin)]
    else:
        candidates = [ProviderCandidate(_client(provider, on_event), provider, origin)]
    for number, other in enumerate(provider.fallbacks, start=1):
        problem = f"fallback {number} of the provider cannot be used"
        try:
            candidates.append(ProviderCandidate(_client(other, on_event), other, origin))
        except (TypeError, ValueError) as exc:
            kind = TypeError if isinstance(exc, TypeError) else ValueError
            raise kind(f"{problem}: {exc}") from exc
        except RathError as exc:
            exc.add_note(problem)
            raise
    context = current_replay()
    return tuple(candidates) if context is None else context.candidates(tuple(candidates))


def _client(provider: Provider, on_event: object) -> ChatClient:
    context = current_replay()
    client = chat_client_for(provider) if context is None else context.client(provider)
    if on_event is not None:
        require_streaming(client)
    require_model(client, provider.model)
    return client


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
