"""A model of plain rules: it repeats, counts, calls tools, fills in schemas, and stops in time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any, Literal

MODEL = "scripted-1"

Kind = Literal["user", "assistant", "call", "result"]


@dataclass(frozen=True, slots=True)
class Line:
    """Something that was said in a conversation."""

    kind: Kind
    text: str
    """What was said, the arguments of a call, or its result."""

    tool: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called."""

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a model is asked, in whatever protocol."""

    model: str
    system: tuple[str, ...]
    lines: tuple[Line, ...]
    tools: tuple[Tool, ...] = ()
    choice: str = "auto"
    """"auto", "none", "required" or the name of a tool."""

    schema: Mapping[str, Any] | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    streaming: bool = False

    @property
    def key(self) -> str:
        """The same text for the same prompt, whichever client wrote it in whatever protocol.

        Tools that need not be called stay out: some clients name those of a history.
        """
        told = asdict(self)
        if self.choice in {"auto", "none"}:
            del told["tools"], told["choice"]
        return json.dumps(told, sort_keys=True, ensure_ascii=False)

    @property
    def n_tokens(self) -> int:
        """Words stand in for tokens."""
        return sum(len(text.split()) for text in self.system) + sum(
            1 + len(line.text.split()) for line in self.lines
        )


@dataclass(frozen=True, slots=True)
class Said:
    """What the model answers."""

    text: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    finish: Literal["stop", "stop_sequence", "length", "tool_calls"] = "stop"
    stopped_by: str | None = None

    @property
    def n_tokens(self) -> int:
        return len(self.text.split()) + sum(
            1 + len(json.dumps(given).split()) for _, given in self.calls
        )


def answer(prompt: Prompt) -> Said:
    """Return what the model says; the same to the same prompt."""
    tool = _tool_to_call(prompt)
    if tool is not None:
        return Said(calls=((tool.name, _fill_in(tool.schema, _question(prompt))),),
                    finish="tool_calls")  # fmt: skip
    return _cut_to_size(_stopped(Said(_words(prompt)), prompt.stop), prompt.max_tokens)


def id_of(prompt: Prompt, index: int = 0) -> str:
    """Return 24 characters for an id: others for each prompt, the same for the same one."""
    return sha256(f"{index} {prompt.key}".encode(errors="replace")).hexdigest()[:24]


def _tool_to_call(prompt: Prompt) -> Tool | None:
    """Tools are called where that is asked for, and once for each question."""
    if not prompt.tools or prompt.choice == "none" or not prompt.lines:
        return None
    by_name = {tool.name: tool for tool in prompt.tools}
    is_asked = prompt.lines[-1].kind == "user"
    if prompt.choice in by_name:
        return by_name[prompt.choice]
    if prompt.choice == "required":
        return prompt.tools[0 if is_asked else -1]
    words = " ".join([*prompt.system, _question(prompt)])
    if not is_asked or "tool" not in words:
        return None
    return next((tool for tool in prompt.tools if tool.name in words), prompt.tools[0])


def _words(prompt: Prompt) -> str:
    last = prompt.lines[-1] if prompt.lines else Line("user", "")
    if prompt.schema is not None:
        return json.dumps(_fill_in(prompt.schema, last.text))
    if last.kind == "result":
        return f"The result is {last.text}."
    if found := re.search(r"^Repeat [^:]*: (.*)", last.text, re.DOTALL):
        return found[1]
    if found := re.search(r"^Count from (\d+) to (\d+)", last.text):
        return ", ".join(str(number) for number in range(int(found[1]), int(found[2]) + 1))
    if re.search(r"^0: ", last.text, re.MULTILINE):
        return "0"  # the first line of a menu
    return f"You said: {last.text}"


def _question(prompt: Prompt) -> str:
    return next((line.text for line in reversed(prompt.lines) if line.kind == "user"), "")


def _stopped(said: Said, stop: Sequence[str]) -> Said:
    found = [(said.text.index(each), each) for each in stop if each in said.text]
    if not found:
        return said
    place, by = min(found)
    return replace(said, text=said.text[:place], finish="stop_sequence", stopped_by=by)


def _cut_to_size(said: Said, max_tokens: int | None) -> Said:
    words = re.findall(r"\s*\S+", said.text)
    if max_tokens is None or len(words) <= max_tokens:
        return said
    return Said("".join(words[:max_tokens]), finish="length")


def _fill_in(schema: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return an object that fits, made of the numbers and words of a text."""
    numbers = [int(each) for each in re.findall(r"\d+", text)]
    words = re.findall(r"'([^']+)'", text) or text.split(": ")[-1:]
    given: dict[str, Any] = {}
    for name, member in schema.get("properties", {}).items():
        if name in schema.get("required", ()):
            given[name] = _value(member, numbers, words)
    return given


def _value(schema: Mapping[str, Any], numbers: list[int], words: list[str]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "integer" | "number":
            return numbers.pop(0) if numbers else 1
        case "boolean":
            return True
        case "array":
            return [_value(schema.get("items", {}), numbers, words)]
        case "object":
            return _fill_in(schema, " ".join(words))
        case _:
            return words.pop(0) if len(words) > 1 else words[0]
