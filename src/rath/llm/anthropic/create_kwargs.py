"""Requests as the arguments and the body of Anthropic's Messages API, and the turns it accepts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal, cast

from rath._core.dataclasses import dataclass
from rath.llm.body import BodyTail, to_json
from rath.llm.chat_request import RathLLMChatRequest, RathLLMFunctionTool, RathLLMMessage
from rath.llm.image import Image

__all__ = ["DEFAULT_MAX_TOKENS", "build_anthropic_kwargs", "build_anthropic_stream_kwargs"]


Role = Literal["user", "assistant"]

OPENING = "Begin."
"""Said by the user where a conversation would begin with the assistant, or say nothing at all."""

EMPTY = "(empty message)"
"""Said by the user where a turn would have no content."""

Thinking = Literal["manual", "adaptive", "off", "unsaid"]
"""Whether the model must think before it answers, may, must not, or does as it is used to."""

_KINDS: Mapping[object, Thinking] = {"enabled": "manual", "disabled": "off"}

THOUGHTS = frozenset({"thinking", "redacted_thinking"})
"""Types of the blocks that hold thoughts."""

_SILENT = re.compile(r"claude-(?:2|3|instant|(?:opus|sonnet|haiku)-4(?!\d))")
"""Models that think only when a request says so; all that came after them think by themselves:
https://platform.claude.com/docs/en/models/opus-5/whats-new-opus-5"""

_UNFORCED = re.compile(r"claude-(?:(?:opus|sonnet)-5[-.]5|(?:fable|mythos)-5[-.][12])(?!\d)")
"""Models that always think, so that no choice may force them to call a tool:
https://platform.claude.com/docs/en/models/opus-5-5/whats-new-opus-5-5. That 5.2 is like 5.1 is a
guess."""

_SYSTEM_ROLES = frozenset({"system", "developer"})
_CALL_ID = re.compile(r"[A-Za-z0-9_-]+")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class TurnPart:
    """Blocks that go on with the open turn, or begin one if that is not of their role."""

    role: Role
    blocks: list[Json]


class Turns:
    """Gives what each message adds to a conversation that the API accepts.

    The turns alternate and the first one is the user's; no text is blank; ids and names have the
    characters that are allowed. What was given is never taken back.

    Calls of tools, their results and what follows are one answer, until the user says something.
    With a budget for thinking it must begin with a thought, and without thinking hold none: see
    `may_think`.

    Args:
        thinking: How the calls think.
    """

    def __init__(self, thinking: Thinking = "unsaid") -> None:
        self.system: list[str] = []
        """Texts of the system and the developer so far."""

        self.called: dict[str, None] = {}
        """Names of the tools that the assistant called so far, in order."""

        self.role: Role | None = None
        """Whose turn is open."""

        self._thinking: Thinking = thinking
        self._answer_thinks: bool | None = None
        """Whether the answer that is not finished began with a thought; None before it begins."""

        self._turn_thinks = False
        """Whether the last turn of the assistant began with one."""

        self._paused: list[RathLLMMessage] = []
        """Messages of a turn that waits for the vendor's own tools."""

        self._ids: dict[str, str] = {}
        self._used_ids: set[str] = set()

    def add(self, message: RathLLMMessage) -> list[TurnPart]:
        """Return what one more message adds.

        Raises:
            PersistenceError: The bytes of an image are not there.
        """
        if message.role in _SYSTEM_ROLES:
            if not _is_blank(message.content):
                self.system.append(cast("str", message.content))
            return []
        goes_on = message.role == "assistant" and _waiting(self._paused) <= _answered(message)
        if goes_on and _is_paused(message):
            self._paused.append(message)
            return []
        parts = self._settle(goes_on=goes_on)
        if message.role != "assistant":
            return [*parts, *self._part("user", self._user_blocks(message))]
        if _is_paused(message):
            self._paused.append(message)
            return parts
        return [*parts, *self._part("assistant", self._assistant_blocks(message))]

    def ending(self) -> list[TurnPart]:
        """Return what the conversation needs behind its messages, which stays out of the turns."""
        parts = [] if self.role else [TurnPart("user", [_text(OPENING)])]
        blocks = [block for one in self._paused for block in self._assistant_blocks(one)]
        allowed = self._with_thoughts(blocks, self._thoughts_before(blocks))
        return [*parts, TurnPart("assistant", allowed)] if allowed else parts

    @property
    def ends_open(self) -> bool:
        """Whether `ending` gives anything."""
        return self.role is None or bool(self._paused)

    @property
    def may_think(self) -> bool:
        """Whether the model may be asked to think when it goes on.

        Where the answer came from another model, or from a call without thinking, a budget for
        thinking is refused until the user speaks again.
        """
        if self._thinking != "manual":
            return True
        thinks = self._answer_thinks
        if thinks is None and self._paused:
            thinks = _begins_with_thought(self.ending()[-1].blocks)
        return thinks is not False

    def _settle(self, *, goes_on: bool) -> list[TurnPart]:
        """Return a paused turn: whole when the assistant goes on with it, else only its text.

        A call of the vendor's own tools that has no result yet may stand in the last turn only.
        """
        paused, self._paused = self._paused, []
        return [
            part
            for one in paused
            for part in self._part(
                "assistant", self._assistant_blocks(one) if goes_on else _texts(one.content)
            )
        ]

    def _part(self, role: Role, blocks: list[Json]) -> list[TurnPart]:
        if role == "user" and any(block["type"] != "tool_result" for block in blocks):
            self._answer_thinks = None
        if role == "assistant" and blocks:
            thoughts = self._thoughts_before(blocks)
            self._answer_thinks, self._turn_thinks = thoughts
            blocks = self._with_thoughts(blocks, thoughts)
        if not blocks:
            return []
        opening = self.role is None and role == "assistant"
        self.role = role
        part = TurnPart(role, blocks)
        return [TurnPart("user", [_text(OPENING)]), part] if opening else [part]

    def _thoughts_before(self, blocks: Sequence[Json]) -> tuple[bool, bool]:
        """Tell whether the answer, and the turn, that `blocks` belong to began with a thought."""
        first = _begins_with_thought(blocks)
        answer = first if self._answer_thinks is None else self._answer_thinks
        return answer, self._turn_thinks if self.role == "assistant" else first

    def _with_thoughts(self, blocks: list[Json], thoughts: tuple[bool, bool]) -> list[Json]:
        """Return `blocks` with those of their thoughts that the API takes from here.

        They stay as they came wherever the model thinks as it likes.
        """
        valid = all(thoughts) if self._thinking == "manual" else self._thinking != "off"
        return blocks if valid else [block for block in blocks if block.get("type") not in THOUGHTS]

    def _user_blocks(self, message: RathLLMMessage) -> list[Json]:
        if message.role == "tool":
            return [self._result(message)]
        blocks = [_image(image) for image in message.images or ()]
        if not _is_blank(message.content):
            blocks.append(_text(cast("str", message.content)))
        if not blocks and self.role != "user":
            blocks.append(_text(EMPTY))
        return blocks

    def _assistant_blocks(self, message: RathLLMMessage) -> list[Json]:
        calls = message.tool_calls or ()
        ids = [self._name_call(str(call.get("id") or "")) for call in calls]
        if message.blocks is not None:
            own = _with_ids(message.blocks, ids)
            if own:
                used = (block for block in own if block.get("type") == "tool_use")
                self.called |= {str(block.get("name")): None for block in used}
                return own
        blocks = _texts(message.content)
        for call, call_id in zip(calls, ids, strict=True):
            block = _tool_use(call, call_id)
            self.called[block["name"]] = None
            blocks.append(block)
        return blocks

    def _result(self, message: RathLLMMessage) -> Json:
        call_id = message.tool_call_id or ""
        block = {"type": "tool_result", "tool_use_id": self._ids.get(call_id) or _allowed(call_id)}
        # A result may be without content, while blank content may be refused.
        is_blank = _is_blank(message.content)
        if not message.images:
            return block if is_blank else {**block, "content": message.content}
        blocks = [] if is_blank else [_text(cast("str", message.content))]
        for image in message.images:
            blocks += [_text(image.label), _image(image)]
        return {**block, "content": blocks}

    def _name_call(self, call_id: str) -> str:
        """Return an id with the characters that are allowed, another one for each call id."""
        known = self._ids.get(call_id)
        if known is None:
            known = base = _allowed(call_id)
            count = 1
            while known in self._used_ids:
                count += 1
                known = f"{base}-{count}"
            self._ids[call_id] = known
            self._used_ids.add(known)
        return known


def _is_blank(text: str | None) -> bool:
    return not text or text.isspace()


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _texts(content: str | None) -> list[Json]:
    """Return the text of an assistant; white space at the end of the last turn is refused."""
    return [] if _is_blank(content) else [_text(cast("str", content).rstrip())]


def _image(image: Image) -> Json:
    source = {"type": "base64", "media_type": image.mime, "data": image.to_base64()}
    return {"type": "image", "source": source}


def _tool_use(call: Mapping[str, Any], call_id: str) -> Json:
    function: Mapping[str, Any] = call.get("function") or {}
    name = str(function.get("name") or "")
    if not _TOOL_NAME.fullmatch(name):
        # A model may have called a tool that cannot exist; the history says so nevertheless.
        name = _FORBIDDEN.sub("_", name)[:128] or "unnamed"
    arguments = _arguments(function.get("arguments"))
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _arguments(arguments: object) -> Json:
    """Return the arguments of a call as an object, and an empty one where they are none.

    Numbers that JSON has no form for become their names.
    """
    if isinstance(arguments, Mapping):
        return dict(cast("Mapping[str, Any]", arguments))
    if not isinstance(arguments, str):
        return {}
    try:
        parsed: object = _parse(arguments)
    except (ValueError, RecursionError):
        return {}
    return cast("Json", parsed) if isinstance(parsed, dict) else {}


def _finite(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


_parse = json.JSONDecoder(parse_constant=str, parse_float=_finite).decode


def _allowed(call_id: str) -> str:
    if _CALL_ID.fullmatch(call_id):
        return call_id
    return _FORBIDDEN.sub("_", call_id) or "call"


def _with_ids(blocks: Sequence[Mapping[str, Any]], ids: Sequence[str]) -> list[Json] | None:
    """Return the vendor's own blocks with the ids of the calls, or None where they do not fit.

    What the API gives but does not take is left out: blank texts, white space at the end, and a
    thought that was cut off before anything followed it.
    """
    if sum(block.get("type") == "tool_use" for block in blocks) != len(ids):
        return None
    waiting = iter(ids)
    fitting: list[Json] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_use":
            fitting.append({**block, "id": next(waiting)})
        elif kind != "text" or not _is_blank(block.get("text")):
            fitting.append(dict(block))
    while fitting and fitting[-1].get("type") in THOUGHTS:
        fitting.pop()
    if fitting and fitting[-1].get("type") == "text":
        fitting[-1]["text"] = fitting[-1]["text"].rstrip()
    return fitting


def _begins_with_thought(blocks: Sequence[Json]) -> bool:
    return bool(blocks) and blocks[0].get("type") in THOUGHTS


def _is_paused(message: RathLLMMessage) -> bool:
    """Tell whether a turn waits for a tool that the vendor runs itself.

    Where it calls a tool of ours as well, it goes on with our result.
    """
    kinds = {block.get("type") for block in message.blocks or ()}
    return not message.tool_calls and "tool_use" not in kinds and bool(_waiting([message]))


def _waiting(messages: Sequence[RathLLMMessage]) -> set[object]:
    """Return the ids of the vendor's own calls that have no result yet."""
    blocks = [block for message in messages for block in message.blocks or ()]
    answered = {block.get("tool_use_id") for block in blocks}
    own = (block for block in blocks if str(block.get("type")).endswith("_tool_use"))
    return {block.get("id") for block in own if block.get("id") not in answered}


def _answered(message: RathLLMMessage) -> set[object]:
    return {block.get("tool_use_id") for block in message.blocks or ()}


def joined(parts: Iterable[TurnPart]) -> list[Json]:
    """Return whole turns; one of a single text holds just that text."""
    turns: list[Json] = []
    for part in parts:
        if turns and turns[-1]["role"] == part.role:
            turns[-1]["content"].extend(part.blocks)
        else:
            turns.append({"role": part.role, "content": list(part.blocks)})
    for turn in turns:
        blocks = turn["content"]
        if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
            turn["content"] = blocks[0]["text"]
    return turns


def thinking_of(parameters: Mapping[str, Any]) -> Thinking:
    """Return how a call with these parameters thinks."""
    kind = _config(parameters).get("type")
    if kind is None:
        return "off" if _SILENT.search(str(parameters.get("model"))) else "unsaid"
    # Kinds that are not known yet are free ones too: only the oldest has a fixed budget.
    return _KINDS.get(kind, "adaptive")


def thinking_budget(parameters: Mapping[str, Any]) -> int:
    """Return how many tokens are set aside for thoughts, which count as tokens of the answer."""
    budget = _config(parameters).get("budget_tokens")
    return budget if isinstance(budget, int) else 0


def unforced(parameters: Json) -> Json:
    """Return parameters whose tool choice is one that thinking allows.

    It must not force a call: with a budget the API refuses that, and where the model thinks as it
    likes, some models do and the others skip thinking.
    """
    choice = parameters.get("tool_choice")
    if not isinstance(choice, Mapping):
        return parameters
    wanted = cast("Mapping[str, Any]", choice)
    is_free = thinking_of(parameters) in {"off", "unsaid"}
    if wanted.get("type") not in {"any", "tool"} or (
        is_free and not _UNFORCED.search(str(parameters.get("model")))
    ):
        return parameters
    flags = {name: value for name, value in wanted.items() if name == "disable_parallel_tool_use"}
    return {**parameters, "tool_choice": {"type": "auto", **flags}}


def _config(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    found = parameters.get("thinking")
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


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
        self.tools_digest: str | None = None if schemas is None else sha256(schemas).hexdigest()
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
