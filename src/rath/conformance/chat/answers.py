"""What a chat client makes of an answer: text, deltas, tool calls, limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from rath.conformance.chat.subject import Call, How, Subject
from rath.conformance.report import Skipped, expect
from rath.errors import InvalidRequestError
from rath.llm.chat_request import RathLLMFunctionTool, RathLLMMessage
from rath.llm.chat_response import RathLLMChatChoice, RathLLMFinishReason, RathLLMToolCallPart
from rath.llm.stream import fold
from rath.llm.tool_args import parse_tool_arguments
from rath.session.calls.requests import Renderer
from rath.session.chunk import assistant_turn_chunk, tool_feedback_chunk, user_text_chunk

__all__ = ["ANSWERS"]

_REASONS = frozenset(get_args(RathLLMFinishReason))
_FEW_TOKENS = 3
_TOOL_TOKENS = 4
"""A tool call takes about this many times the tokens of a short answer; a guess."""

_ADD = RathLLMFunctionTool(
    "add",
    {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "First number."},
            "b": {"type": "integer", "description": "Second number."},
        },
        "required": ["a", "b"],
    },
    "Add two whole numbers.",
)
_SUM = "What is 17 plus 25? Use the function `add`."
_STOP = "4"


def _a_question_is_answered(subject: Subject) -> None:
    call = subject.ask(subject.request(RathLLMMessage("user", "Say hello.")))
    _expect_answer(call)


def _deltas_fold_to_the_answer(subject: Subject) -> None:
    call = subject.ask(subject.request(RathLLMMessage("user", "Say hello.")), how="streamed")
    _expect_answer(call)
    deltas = call.deltas or ()
    reasons = {delta.finish_reason for delta in deltas} - {None}
    expect(bool(reasons), f"a finish reason among the deltas, got {deltas!r}")
    folded, answer = fold(deltas).primary_choice, call.response.primary_choice
    expect(_said(folded) == _said(answer), f"the deltas to make {answer!r}, got {folded!r}")
    counted = [delta.usage for delta in deltas if delta.usage is not None]
    if counted:
        usage = call.response.usage
        expect(counted[-1] == usage, f"the usage of the deltas, {counted[-1]!r}, got {usage!r}")


def _tokens_of_a_stream_are_counted(subject: Subject) -> None:
    streamed = [call for call in subject.calls if call.deltas is not None]
    if not streamed:
        raise Skipped("no streamed call was answered")
    if any(call.response.usage is None for call in streamed):
        raise Skipped("its streams end without token counts: cost and budgets will not know them")


def _a_required_tool_is_called(subject: Subject) -> None:
    _go_through_a_tool_round(subject, "whole")


def _a_required_tool_is_called_in_a_stream(subject: Subject) -> None:
    _go_through_a_tool_round(subject, "streamed")


def _a_limit_of_tokens_ends_an_answer(subject: Subject) -> None:
    question = RathLLMMessage("user", "Count from 1 to 50, with digits and commas.")
    call = subject.ask(subject.request(question, max_tokens=_FEW_TOKENS))
    choice = call.response.primary_choice
    if choice.finish_reason == "stop" and len(call.text.split()) <= _FEW_TOKENS:
        raise Skipped(f"the model had said it all before the limit: {call.text!r}")
    expect(
        choice.finish_reason == "length",
        f"'length' for an answer of {_FEW_TOKENS} tokens, got {choice.finish_reason!r} and "
        f"{call.text!r}",
    )


def _a_stop_sequence_ends_an_answer(subject: Subject) -> None:
    question = RathLLMMessage("user", "Repeat this: 1, 2, 3, 4, 5, 6")
    try:
        call = subject.ask(subject.request(question, stop=[_STOP]))
    except InvalidRequestError as exc:
        raise Skipped(f"the endpoint takes no stop sequences: {exc}") from exc
    expect(_STOP not in call.text, f"an answer that ends before {_STOP!r}, got {call.text!r}")
    reason = call.response.primary_choice.finish_reason
    if reason == "length":
        raise Skipped(f"the model did not come to {_STOP!r}: {call.text!r}")
    expect(reason == "stop", f"'stop' for an answer that was stopped, got {reason!r}")


def _go_through_a_tool_round(subject: Subject, how: How) -> None:
    """Have the model call a tool, tell it the result, and let it go on."""
    question = RathLLMMessage("user", _SUM)
    room = _TOOL_TOKENS * subject.max_tokens
    must = subject.request(question, tools=[_ADD], max_tokens=room, tool_choice="required")
    call = subject.ask(must, how=how)
    if not call.message.tool_calls:
        raise Skipped(f"the model answered in words: {call.text!r}")
    _expect_answer(call)
    _expect_calls(call, call.message.tool_calls)
    rest = _turn_and_results(call)
    may = subject.request(question, *rest, tools=[_ADD], max_tokens=_FEW_TOKENS)
    _expect_answer(subject.ask(may, how=how))


def _expect_answer(call: Call) -> None:
    choices = call.response.choices
    expect(len(choices) == 1, f"one choice, got {choices!r}")
    choice = choices[0]
    message, reason = choice.message, choice.finish_reason
    expect(reason in _REASONS, f"one of {sorted(_REASONS)} as finish reason, got {reason!r}")
    said = (message.content, message.tool_calls, message.refusal, message.reasoning_content)
    # A model may think until its tokens are used up.
    expect(any(said) or reason == "length", f"text or tool calls, got {message!r}")
    expect(isinstance(message.content, str | None), f"text, got {message.content!r}")
    usage = call.response.usage
    if usage is not None:
        counts = (usage.prompt_tokens, usage.completion_tokens)
        expect(
            min(counts) >= 0 and usage.total_tokens >= max(counts),
            f"token counts that add up, got {usage!r}",
        )


def _expect_calls(call: Call, calls: tuple[RathLLMToolCallPart, ...]) -> None:
    ids = [each.id for each in calls]
    expect(all(ids) and len(set(ids)) == len(ids), f"an id of its own for each call, got {ids!r}")
    is_cut = call.response.primary_choice.finish_reason == "length"
    for function in (each.function for each in calls):
        expect(bool(function.name), f"a call that names its tool, got {function!r}")
        parsed, failed = parse_tool_arguments(function.arguments)
        expect(
            (function.arguments_parsed, function.arguments_parse_error) == (parsed, failed),
            f"the arguments {function.arguments!r} parsed, got {function!r}",
        )
        expect(not failed or is_cut, f"an object as arguments, got {function.arguments!r}")


def _turn_and_results(call: Call) -> Iterator[RathLLMMessage]:
    """Give what was said, in the form in which it goes back, and a result for each call."""
    calls = call.message.tool_calls or ()
    turn = assistant_turn_chunk(tool_calls=calls, content=call.message.content)
    rows = [user_text_chunk(_SUM), turn]
    rows += [tool_feedback_chunk(each.id, each.function.name, "42") for each in calls]
    _, said, *results = Renderer().render(rows)
    evidence = call.evidence
    yield replace(
        said, reasoning=evidence.reasoning or None, blocks=evidence.reasoning_blocks or None
    )
    yield from results


def _said(choice: RathLLMChatChoice) -> tuple[object, ...]:
    message = choice.message
    return (
        choice.finish_reason,
        message.content,
        message.tool_calls,
        message.refusal,
        message.reasoning_content,
    )


ANSWERS = (
    _a_question_is_answered,
    _deltas_fold_to_the_answer,
    _tokens_of_a_stream_are_counted,
    _a_required_tool_is_called,
    _a_required_tool_is_called_in_a_stream,
    _a_limit_of_tokens_ends_an_answer,
    _a_stop_sequence_ends_an_answer,
)
