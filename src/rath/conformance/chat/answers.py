"""Clauses on answers: text, deltas, tool calls, limits, and the histories that lead to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import get_args

from rath.conformance.chat.subject import ChatSubject, ContractCall, How
from rath.conformance.contract import Clauses, Skipped, Unlike, expect
from rath.errors import InvalidRequestError, ProviderError
from rath.llm.chat_request import RathLLMFunctionTool, RathLLMMessage
from rath.llm.chat_response import RathLLMFinishReason, RathLLMToolCallPart, tool_call_part
from rath.llm.stream import fold
from rath.llm.tool_args import parse_tool_arguments
from rath.session.calls.requests import Renderer
from rath.session.chunk import (
    ChunkRow,
    assistant_turn_chunk,
    system_text_chunk,
    tool_feedback_chunk,
    user_text_chunk,
)

__all__ = ["ANSWERS", "HISTORIES"]

ANSWERS = Clauses[ChatSubject]()
HISTORIES = Clauses[ChatSubject]()

_clause = ANSWERS.add("")
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


@_clause
def a_question_is_answered(subject: ChatSubject) -> None:
    _expect_answer(subject.ask(subject.question("Say hello.")))


@_clause
def deltas_fold_to_the_answer(subject: ChatSubject) -> None:
    call = subject.ask(subject.question("Say hello."), how="streamed")
    _expect_answer(call)
    deltas = call.deltas or ()
    reasons = {delta.finish_reason for delta in deltas} - {None}
    expect(bool(reasons), f"a finish reason among the deltas, got {deltas!r}")
    folded, answer = fold(deltas).primary_choice, call.response.primary_choice
    parts = attrgetter("content", "tool_calls", "refusal", "reasoning_content")
    is_same = parts(folded.message) == parts(answer.message)
    is_same = is_same and folded.finish_reason == answer.finish_reason
    expect(is_same, f"the deltas to make {answer!r}, got {folded!r}")
    counted = [delta.usage for delta in deltas if delta.usage is not None]
    if counted:
        usage = call.response.usage
        expect(counted[-1] == usage, f"the usage of the deltas, {counted[-1]!r}, got {usage!r}")


@_clause
def tokens_of_a_stream_are_counted(subject: ChatSubject) -> None:
    streamed = [call for call in subject.calls if call.deltas is not None]
    if not streamed:
        raise Skipped("no streamed call was answered")
    if any(call.response.usage is None for call in streamed):
        raise Skipped("its streams end without token counts: cost and budgets will not know them")


@_clause
def a_required_tool_is_called(subject: ChatSubject) -> None:
    _make_tool_round(subject, "whole")


@_clause
def a_required_tool_is_called_in_a_stream(subject: ChatSubject) -> None:
    _make_tool_round(subject, "streamed")


@_clause
def a_limit_of_tokens_ends_an_answer(subject: ChatSubject) -> None:
    question = "Count from 1 to 50, with digits and commas."
    call = subject.ask(subject.question(question, max_tokens=_FEW_TOKENS))
    reason = call.response.primary_choice.finish_reason
    if reason == "stop" and len(call.text.split()) <= _FEW_TOKENS:
        raise Skipped(f"the model had said it all before the limit: {call.text!r}")
    expectation = f"'length' for an answer of {_FEW_TOKENS} tokens"
    expect(reason == "length", f"{expectation}, got {reason!r} and {call.text!r}")


@_clause
def a_stop_sequence_ends_an_answer(subject: ChatSubject) -> None:
    try:
        call = subject.ask(subject.question("Repeat this: 1, 2, 3, 4, 5, 6", stop=[_STOP]))
    except InvalidRequestError as exc:
        raise Skipped(f"the endpoint takes no stop sequences: {exc}") from exc
    expect(_STOP not in call.text, f"an answer that ends before {_STOP!r}, got {call.text!r}")
    reason = call.response.primary_choice.finish_reason
    if reason == "length":
        raise Skipped(f"the model did not come to {_STOP!r}: {call.text!r}")
    expect(reason == "stop", f"'stop' for an answer that was stopped, got {reason!r}")


def _make_tool_round(subject: ChatSubject, how: How) -> None:
    """Have the model call a tool, give it the result, and let it go on."""
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


def _expect_answer(call: ContractCall) -> None:
    choices = call.response.choices
    expect(len(choices) == 1, f"one choice, got {choices!r}")
    message, reason = choices[0].message, choices[0].finish_reason
    expect(reason in _REASONS, f"one of {sorted(_REASONS)} as finish reason, got {reason!r}")
    parts = (message.content, message.tool_calls, message.refusal, message.reasoning_content)
    # A model may think until its tokens are used up.
    expect(any(parts) or reason == "length", f"text or tool calls, got {message!r}")
    expect(isinstance(message.content, str | None), f"text, got {message.content!r}")
    usage = call.response.usage
    if usage is not None:
        counts = (usage.prompt_tokens, usage.completion_tokens)
        adds_up = min(counts) >= 0 and usage.total_tokens >= max(counts)
        expect(adds_up, f"token counts that add up, got {usage!r}")


def _expect_calls(call: ContractCall, calls: tuple[RathLLMToolCallPart, ...]) -> None:
    ids = [each.id for each in calls]
    expect(all(ids) and len(set(ids)) == len(ids), f"an id of its own for each call, got {ids!r}")
    is_cut = call.response.primary_choice.finish_reason == "length"
    for function in (each.function for each in calls):
        expect(bool(function.name), f"a call that names its tool, got {function!r}")
        parsed, failed = parse_tool_arguments(function.arguments)
        is_parsed = (function.arguments_parsed, function.arguments_parse_error) == (parsed, failed)
        expect(is_parsed, f"the arguments {function.arguments!r} parsed, got {function!r}")
        expect(not failed or is_cut, f"an object as arguments, got {function.arguments!r}")


def _turn_and_results(call: ContractCall) -> Iterator[RathLLMMessage]:
    """Give the model's turn, in the form in which it goes back, and a result for each call."""
    calls = call.message.tool_calls or ()
    turn = assistant_turn_chunk(tool_calls=calls, content=call.message.content)
    rows = [user_text_chunk(_SUM), turn]
    rows += [tool_feedback_chunk(each.id, each.function.name, "42") for each in calls]
    _, answer, *results = Renderer().render(rows)
    thoughts, blocks = call.evidence.reasoning, call.evidence.reasoning_blocks
    yield replace(answer, reasoning=thoughts or None, blocks=blocks or None)
    yield from results


# ---------------------------------------------------------------- histories

_HEAD = (system_text_chunk("You are brief."),)
_END = (user_text_chunk("Say hello."),)


def _calls(*calls: tuple[str, str], text: str | None = None) -> ChunkRow:
    """Return a turn that calls `add`, each call with an id and the text of its arguments."""
    parts = tuple(tool_call_part(call_id, "add", arguments) for call_id, arguments in calls)
    return assistant_turn_chunk(tool_calls=parts, content=text)


def _result(call_id: str, body: str) -> ChunkRow:
    return tool_feedback_chunk(call_id, "add", body)


def _answer(text: str) -> ChunkRow:
    return assistant_turn_chunk(tool_calls=None, content=text)


_PARTS: Mapping[str, Sequence[ChunkRow]] = {
    "a call with its result, and text beyond ASCII": (
        user_text_chunk("Straße 🦩 二\u2028"),
        _calls(("call_1", '{"a": "鷺"}')),
        _result("call_1", "e\u0301 \u202b€"),
        _answer("🦩"),
    ),
    "a call that was interrupted": (
        user_text_chunk("Add 3."),
        _calls(("call_2", '{"a": 3}')),
        user_text_chunk("Never mind."),
        _answer("Fine."),
    ),
    "several calls in one turn, with ids of other vendors and beside a text": (
        user_text_chunk("Add twice."),
        _calls(("functions.add:0", '{"a": 1}'), ("toolu_01Abc/é", '{"a": 2}'), text="I add."),
        _result("functions.add:0", "1"),
        _result("toolu_01Abc/é", "2"),
    ),
    "calls without arguments, and with some that are no JSON": (
        user_text_chunk("Add."),
        _calls(("call_1", ""), ("call_1", '{"a": 5')),
        _result("call_1", ""),
        _result("call_1", "bad arguments"),
    ),
}
_ALL_PARTS = [row for rows in _PARTS.values() for row in rows]


@HISTORIES.add("")
def histories_with_tool_calls_are_accepted(subject: ChatSubject) -> None:
    def problem(rows: Sequence[ChunkRow]) -> tuple[str, Exception] | None:
        try:
            subject.ask(subject.request(*_rendered(rows), max_tokens=1))
        except Exception as exc:  # noqa: BLE001  # whatever the subject raises
            return str(exc) if isinstance(exc, ProviderError | Unlike) else repr(exc), exc
        return None

    found = problem(_ALL_PARTS)
    if found is not None:
        text, error = found
        problems = {name: problem(rows) for name, rows in _PARTS.items()}
        refused = ", ".join(f"{name} ({each[0]})" for name, each in problems.items() if each)
        together = f"all of it together ({text}), as after each part alone"
        raise Unlike(f"expected an answer after {refused or together}") from error


@HISTORIES.add("")
def a_draft_that_grows_equals_one_with_all_messages(subject: ChatSubject) -> None:
    messages = _rendered(_ALL_PARTS)
    for how in subject.hows:
        complete = subject.open(subject.request(*messages), how=how)
        grown = subject.open(subject.request(*messages[:1]), how=how)
        for message in messages[1:]:
            _ = grown.body(), grown.digest  # as each round of a run has it written
            grown.append([message])
        expect(grown.body() == complete.body(), "the same body, message by message or at once")
        expect(grown.digest == complete.digest, "the same digest, message by message or at once")


def _rendered(rows: Sequence[ChunkRow]) -> list[RathLLMMessage]:
    renderer = Renderer()
    return [*renderer.render([*_HEAD, *rows, *_END]), *renderer.hand_over()]
