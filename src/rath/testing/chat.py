"""A model that follows a script."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMFinishReason,
    RathLLMStreamDelta,
    RathLLMTokenUsage,
    tool_call_part,
)
from rath.llm.provider import Provider
from rath.llm.registry import register_chat_client
from rath.llm.stream import fold, split

__all__ = ["Answer", "ScriptedClient", "Turn", "tool_call"]

Answer: TypeAlias = (
    str
    | RathLLMAssistantMessage
    | RathLLMChatResponse
    | BaseException
    | Sequence[RathLLMStreamDelta]
)
"""A text, a message, a whole response, an error to raise, or the deltas of a stream."""

Turn: TypeAlias = Answer | Callable[[RathLLMChatRequest], Answer]
"""One answer of a script, or a function of the request that gives one."""

_kinds = itertools.count(1)
_call_ids = itertools.count(1)


class ScriptedClient:
    """A chat client that answers with the turns of a script, in order; needs no network.

    Args:
        turns: The answers, see `Turn`.
        provider: Sampling, budget and model to use; "scripted" is the model by default.

    Example:
        >>> client = ScriptedClient([tool_call("add", {"a": 1, "b": 2}), "The sum is 3."])
        >>> client.provider.model
        'scripted'
    """

    answers_offline: ClassVar[bool] = True
    """Asks nobody, so that `rath.offline` lets it answer."""

    def __init__(self, turns: Iterable[Turn], *, provider: Provider | None = None) -> None:
        self._turns = list(turns)
        self._next = 0
        self._lock = threading.Lock()
        self._base = provider or Provider()
        self._provider: Provider | None = None
        self.requests: list[RathLLMChatRequest] = []
        """Every request so far, in order."""

    @property
    def provider(self) -> Provider:
        """A provider that leads to this client, for sessions and agents."""
        with self._lock:
            if self._provider is None:
                kind = f"scripted-{next(_kinds)}"
                register_chat_client(kind, lambda _: self)
                model = self._base.model or "scripted"
                self._provider = replace(self._base, model=model, provider_kind=kind)
            return self._provider

    @property
    def n_left(self) -> int:
        """Turns that no request has taken yet."""
        return len(self._turns) - self._next

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        """Answer with the next turn.

        Raises:
            RuntimeError: The script has no turn left.
        """
        turn = self._take(req)
        if isinstance(turn, RathLLMChatResponse):
            return turn
        return fold(turn, model=req.model or "scripted")

    def complete_stream(self, req: RathLLMChatRequest) -> Iterator[RathLLMStreamDelta]:
        """Answer with the next turn, word by word unless it is a sequence of deltas.

        Raises:
            RuntimeError: The script has no turn left.
        """
        turn = self._take(req)
        yield from split(turn) if isinstance(turn, RathLLMChatResponse) else turn

    def _take(
        self, request: RathLLMChatRequest
    ) -> RathLLMChatResponse | Sequence[RathLLMStreamDelta]:
        with self._lock:
            self.requests.append(request)
            if self._next == len(self._turns):
                raise RuntimeError(
                    f"the script has {len(self._turns)} turns and this is request "
                    f"{len(self.requests)}; add a turn, or end the loop with a turn of text"
                )
            turn = self._turns[self._next]
            self._next += 1
        if callable(turn):
            turn = turn(request)
        if isinstance(turn, BaseException):
            raise turn
        if isinstance(turn, str):
            turn = RathLLMAssistantMessage(content=turn)
        if isinstance(turn, RathLLMAssistantMessage):
            return _response(turn, request)
        return turn


def tool_call(
    name: str, arguments: Mapping[str, Any] | str = "", *more: RathLLMAssistantMessage,
    id: str | None = None, content: str | None = None,
) -> RathLLMAssistantMessage:  # fmt: skip
    """Return a turn that calls a tool.

    Args:
        name: Name of the tool.
        arguments: An object, or the very text that the model writes.
        more: Further tool calls of the same turn, made by this function too.
        id: Id of the call; a new one by default.
        content: Text of the turn beside its calls.
    """
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    call_id = id if id is not None else f"call_{next(_call_ids)}"
    calls = [tool_call_part(call_id, name, text)]
    for other in more:
        calls.extend(other.tool_calls or ())
    return RathLLMAssistantMessage(content=content, tool_calls=tuple(calls))


def _response(message: RathLLMAssistantMessage, request: RathLLMChatRequest) -> RathLLMChatResponse:
    """Return a response whose usage counts words, so that it is the same every time."""
    calls = message.tool_calls or ()
    texts = (message.content, *(call.function.arguments for call in calls))
    prompt = sum(_n_words(item.content) for item in request.messages)
    completion = len(calls) + sum(map(_n_words, texts))
    reason: RathLLMFinishReason = "tool_calls" if calls else "stop"
    return RathLLMChatResponse(
        id="",
        choices=(RathLLMChatChoice(index=0, finish_reason=reason, message=message),),
        created=0,
        model=request.model or "scripted",
        usage=RathLLMTokenUsage(prompt, completion, prompt + completion),
    )


def _n_words(text: str | None) -> int:
    return len(text.split()) if text else 0
