"""What the answers to a probe say about an endpoint; pure functions."""

from __future__ import annotations

import json
from typing import TypeAlias, cast

from rath.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    ProviderError,
    ProviderProtocolError,
)
from rath.llm.chat_response import RathLLMChatChoice
from rath.llm.endpoint import is_azure
from rath.llm.evidence import CallEvidence
from rath.llm.probe.findings import ProbeStep, ProbeVerdict
from rath.llm.probe.requests import SCHEMA, TOOL
from rath.llm.refusal import may_mean_the_same

__all__ = [
    "WITHOUT_COUNTS",
    "Judgement",
    "counted",
    "judge_answer",
    "judge_error",
    "judge_no_list",
    "judge_object",
    "judge_stream",
    "judge_tool_call",
]

Judgement: TypeAlias = tuple[ProbeVerdict, str]

WITHOUT_COUNTS: Judgement = (
    "lacking",
    'streams only with extra_create_args={"stream_options": None}, and so without token counts: '
    "a budget does not see such calls",
)

_TYPED = 'typed outputs need Provider(output_mode="tool")'
_REFUSES: dict[ProbeStep, str] = {
    "tool_call": "refuses tools: ",
    "stream": "refuses to stream: ",
    "schema": f"refuses a JSON Schema, so {_TYPED}: ",
}
_NOT_IMPLEMENTED = 501


def judge_answer(choice: RathLLMChatChoice, call: CallEvidence) -> Judgement:
    """Judge an answer of one word: who gave it, and whether its tokens are counted."""
    served, asked = call.served_model, call.requested_model
    if served and asked and not is_azure(call.endpoint) and not _is_same_model(served, asked):
        return "lacking", f"{served!r} answered, although {asked!r} was asked"
    who = repr(served) if served else "a model that does not say its name"
    if call.usage is None:
        return "lacking", f"{who} answered without token counts: a budget does not see such calls"
    cut = ", cut off as asked" if choice.finish_reason == "length" else ""
    return "works", f"{who} answered{cut}"


def judge_tool_call(choice: RathLLMChatChoice, *, is_required: bool) -> Judgement:
    """Judge an answer that should call `TOOL`; `is_required` where it had no other choice."""
    calls = choice.message.tool_calls
    if not calls and choice.finish_reason == "length":
        return "lacking", "was cut off before it called the tool"
    if not calls:
        return "lacking", "takes no notice of tools: it answered with text where a call was due"
    function = calls[0].function
    if function.name != TOOL.name:
        return "lacking", f"called {function.name!r}, a tool that was not offered"
    if function.arguments_parse_error:
        return "lacking", "calls tools with arguments that are no JSON object"
    if not is_required:
        return "lacking", 'calls tools, but refuses tool_choice="required"'
    return "works", "called the tool"


def judge_stream(call: CallEvidence) -> Judgement:
    """Judge a streamed answer of one word."""
    if call.first_token_ms is None:
        return "lacking", "answers whole where a stream was asked for"
    if call.usage is None:
        return "lacking", "streams without token counts: a budget does not see such calls"
    return "works", f"streamed, the first piece after {call.first_token_ms:.0f} ms"


def judge_object(choice: RathLLMChatChoice) -> Judgement:
    """Judge an answer that should follow `SCHEMA`."""
    if choice.finish_reason == "length":
        return "lacking", "was cut off before its JSON was complete"
    try:
        given: object = json.loads(choice.message.content or "")
    except ValueError:
        given = None
    wanted = set(SCHEMA["required"])
    if isinstance(given, dict) and set(cast("dict[str, object]", given)) == wanted:
        return "works", "kept to a JSON Schema"
    return "lacking", f"takes no notice of a JSON Schema, so {_TYPED}"


def judge_error(step: ProbeStep, error: Exception) -> Judgement:
    """Tell a refusal, which would come again, from a failure that says nothing of the step."""
    refused = isinstance(error, InvalidRequestError | ModelNotFoundError | ProviderProtocolError)
    refused = refused or getattr(error, "status", None) == _NOT_IMPLEMENTED
    if refused and step in _REFUSES:
        return "lacking", f"{_REFUSES[step]}{_told(error)}"
    return "failed", _told(error)


def judge_no_list(error: Exception, *, is_untold: bool) -> Judgement:
    """Judge that there is no list of models; `is_untold` where the endpoint works otherwise."""
    if not is_untold:
        return "failed", str(error)
    # An error without a status is the adapter's: there, names cannot be listed at all.
    is_by_design = isinstance(error, ProviderError) and error.status is None
    return ("skipped", str(error)) if is_by_design else ("lacking", f"lists no models: {error}")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, as in "1 model" and "2 models"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _is_same_model(served: str, asked: str) -> bool:
    """Tell whether a model that answered is the one that was asked, by another form of its name."""
    # A local model is asked by the path of its file, and answers by the name of that.
    return may_mean_the_same(asked.replace("\\", "/").removesuffix(".gguf"), served)


def _told(error: Exception) -> str:
    """Return what an error says, with the notes on it."""
    return ". ".join([str(error), *getattr(error, "__notes__", ())])
