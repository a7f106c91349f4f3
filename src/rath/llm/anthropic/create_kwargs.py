"""Requests as the arguments and the body of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, cast

from rath.llm.anthropic.turns import (
    TurnPart,
    Turns,
    joined,
    thinking_budget,
    thinking_of,
    unforced,
)
from rath.llm.body import BodyTail, to_json
from rath.llm.chat_request import RathLLMChatRequest, RathLLMFunctionTool, RathLLMMessage

__all__ = [
    "DEFAULT_MAX_TOKENS",
    "MessagesWriter",
    "build_anthropic_kwargs",
    "build_anthropic_stream_kwargs",
]

Json = dict[str, Any]

DEFAULT_MAX_TOKENS = 4096
"""Tokens of an answer where the request names no limit; the API demands one. Those that are set
aside for thinking come on top."""

_CACHE_MARK = {"type": "ephemeral"}
_FROM_SESSION = frozenset({"messages", "system"})
_SERVICE_TIERS = frozenset({"auto", "standard_only"})


def build_anthropic_kwargs(req: RathLLMChatRequest, *, default_model: str | None) -> dict[str, Any]:
    """Return the keyword arguments for `messages.create` of the SDK.

    Texts of the system are joined into one, the results of one round stand in one turn, and turns
    of one role are joined; `extra_create_args` wins over the fields. Prompts are not marked for
    the cache here.

    Raises:
        ValueError: No model is named.
    """
    model = req.model or default_model
    if not model:
        raise ValueError("model is required: name one in the request or in Provider(model=...)")
    parameters = _parameters(req, model)
    turns = Turns(thinking_of(parameters))
    parts = [part for message in req.messages for part in turns.add(message)]
    messages = joined([*parts, *turns.ending()])
    system = {"system": "\n\n".join(turns.system)} if turns.system else {}
    tools = {"tools": [_tool(tool) for tool in req.tools]} if req.tools else {}
    allowed = unforced(parameters if turns.may_think else _without_thinking(parameters))
    return {"messages": messages, **system, **tools, **allowed}


def build_anthropic_stream_kwargs(
    req: RathLLMChatRequest, *, default_model: str | None
) -> dict[str, Any]:
    """Return the keyword arguments for `messages.stream`, which are those of a plain call.

    Raises:
        ValueError: No model is named.
    """
    return build_anthropic_kwargs(req, default_model=default_model)


class MessagesWriter:
    """Writes bodies that say the same as the keyword arguments; see `BodyWriter`.

        {"messages":[{"role":"user","content":[ b1 , b2    grows; the last turn stays open
        ]}],"system":[...],"tools":[...],"model":"..."}    tail

    Where an answer goes on that began without a thought, thinking is left out of the call.

    Three things differ: the stable part of the prompt is marked for the cache, a choice between
    no tools is left out, and where earlier calls stand in a conversation without tools, their
    tools are named, since the API demands it, and forbidden.

    Raises:
        ValueError: `extra_create_args` sets what comes from the session.
    """

    def __init__(self, request: RathLLMChatRequest, *, model: str) -> None:
        extra = request.extra_create_args
        for name in sorted(_FROM_SESSION & set(extra)):
            raise ValueError(f"extra_create_args cannot set {name!r}; it comes from the session")
        self._mark: Mapping[str, Any] | None = extra.get("cache_control", _CACHE_MARK)
        parameters = {"cache_control": self._mark, **_parameters(request, model)}
        if self._mark is None:
            del parameters["cache_control"]
        # Tools given as an extra argument are parameters like any other.
        self._has_extra_tools = "tools" in extra
        tools = None if self._has_extra_tools else request.tools
        if not tools and not self._has_extra_tools and "tool_choice" not in extra:
            parameters.pop("tool_choice", None)
        self._parameters = unforced(parameters)
        self._unthinking = unforced(_without_thinking(parameters))
        self._turns = Turns(thinking_of(parameters))
        self._tools = [_tool(tool) for tool in tools] if tools else None
        schemas = None if self._tools is None else to_json(self._tools)
        self.tools_digest = None if schemas is None else sha256(schemas).hexdigest()
        self._tails: dict[bool, tuple[tuple[int, int, bool], BodyTail]] = {}

    @classmethod
    def recorded(
        cls, tools: Sequence[RathLLMFunctionTool], parameters: Mapping[str, Any]
    ) -> MessagesWriter:
        """Return a writer for plain bodies whose parameters are those of a call that was made."""
        request = RathLLMChatRequest(messages=(), tools=tuple(tools) or None)
        writer = MessagesWriter(request, model=str(parameters.get("model")))
        writer._mark = parameters.get("cache_control")  # a constructor of the same class
        writer._parameters = writer._unthinking = dict(parameters)
        writer._has_extra_tools = "tools" in parameters
        writer._turns = Turns(thinking_of(parameters))
        return writer

    def add(self, message: RathLLMMessage) -> bytes:
        before = self._turns.role
        return _encode(self._turns.add(message), before)

    def tail(self, *, streaming: bool) -> BodyTail:
        turns = self._turns
        ending = _encode(turns.ending(), turns.role) if turns.ends_open else b""
        # A tail stays as it is until another text of the system or another tool comes, or the
        # model may no longer think, or again.
        state = (len(turns.system), len(turns.called), turns.may_think)
        known = self._tails.get(streaming)
        if known is None or known[0] != state:
            known = self._tails[streaming] = (state, self._write_tail(streaming))
        tail = known[1]
        return BodyTail(ending + tail.content, tail.parameters) if ending else tail

    def _write_tail(self, streaming: bool) -> BodyTail:
        parameters = self._parameters if self._turns.may_think else self._unthinking
        if streaming:
            parameters = {**parameters, "stream": True}
        content = b"]}]"
        system = [{"type": "text", "text": text} for text in self._turns.system]
        if system:
            content += b',"system":' + to_json(self._marked(system))
        if self._tools is not None:
            tools = self._tools if system else self._marked(self._tools)
            content += b',"tools":' + to_json(tools)
        elif self._turns.called and not self._has_extra_tools:
            content += b',"tools":' + to_json([_placeholder(name) for name in self._turns.called])
            parameters = {**parameters, "tool_choice": {"type": "none"}}
        return BodyTail(content + b"," + to_json(parameters)[1:-1] + b"}", parameters)

    def _marked(self, blocks: Sequence[Json]) -> list[Json]:
        """Return `blocks` with the last one marked, so that all before it is cached too."""
        *first, last = blocks
        return [*first, last if self._mark is None else {**last, "cache_control": self._mark}]


def _encode(parts: Sequence[TurnPart], open_role: str | None) -> bytes:
    """Return what `parts` add behind a turn of `open_role`."""
    pieces: list[bytes] = []
    for part in parts:
        if part.role == open_role:
            pieces.append(b",")
        else:
            pieces.append(b'{"messages":[' if open_role is None else b"]},")
            pieces.append(b'{"role":"%s","content":[' % part.role.encode())
        pieces.append(to_json(part.blocks)[1:-1])
        open_role = part.role
    return b"".join(pieces)


def _parameters(request: RathLLMChatRequest, model: str) -> Json:
    """Return all that a request says beside messages, system and tools."""
    extra = {name: value for name, value in request.extra_create_args.items() if name != "stream"}
    if "cache_control" in extra and extra["cache_control"] is None:
        del extra["cache_control"]
    encoded: Json = {
        "model": model,
        "max_tokens": request.max_tokens
        or request.max_completion_tokens
        or DEFAULT_MAX_TOKENS + thinking_budget(extra),
    }
    if request.temperature is not None:
        encoded["temperature"] = request.temperature
    if request.top_p is not None:
        encoded["top_p"] = request.top_p
    if request.stop:
        stop = request.stop
        encoded["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
    user = (request.metadata or {}).get("user_id") or request.user
    if user:
        encoded["metadata"] = {"user_id": user}
    if request.service_tier in _SERVICE_TIERS:
        encoded["service_tier"] = request.service_tier
    choice = _tool_choice(request)
    if choice is not None:
        encoded["tool_choice"] = choice
    output = _output_config(request)
    output |= extra.pop("output_config", None) or {}
    if output:
        encoded["output_config"] = output
    return {**encoded, **extra}


def _without_thinking(parameters: Json) -> Json:
    return {name: value for name, value in parameters.items() if name != "thinking"}


def _tool_choice(request: RathLLMChatRequest) -> Json | None:
    choice = _choice_of(request.tool_choice)
    if request.parallel_tool_calls is False and request.tools:
        choice = choice or {"type": "auto"}
        if choice.get("type") != "none":
            return {**choice, "disable_parallel_tool_use": True}
    return choice


def _choice_of(choice: str | Mapping[str, Any] | None) -> Json | None:
    """Return a tool choice in the API's form; None for the default and for what it has not."""
    if isinstance(choice, Mapping):
        if choice.get("type") != "function":
            return dict(choice)
        function: Mapping[str, Any] = choice.get("function") or {}
        return {"type": "tool", "name": function.get("name", "")}
    return {"none": {"type": "none"}, "required": {"type": "any"}}.get(choice or "")


def _output_config(request: RathLLMChatRequest) -> Json:
    config: Json = {}
    if request.reasoning_effort:
        config["effort"] = request.reasoning_effort
    wanted = request.response_format or {}
    if wanted.get("type") == "json_schema":
        described = cast("Mapping[str, Any]", wanted.get("json_schema") or {})
        config["format"] = {"type": "json_schema", "schema": described.get("schema") or {}}
    return config


def _tool(tool: RathLLMFunctionTool) -> Json:
    # The API refuses a schema that does not say so.
    schema = tool.parameters if "type" in tool.parameters else {"type": "object", **tool.parameters}
    encoded: Json = {"name": tool.name, "input_schema": schema}
    if tool.description:
        encoded["description"] = tool.description
    return encoded


def _placeholder(name: str) -> Json:
    return {"name": name, "input_schema": {"type": "object"}}
