"""Deltas to responses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rath.llm import RathLLMChatChoice, RathLLMChatResponse, RathLLMTokenUsage
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMStreamDelta,
    RathLLMToolCallPart,
    tool_call_part,
)
from rath.llm.stream import fold, split

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NAME = st.text("abc_", min_size=1, max_size=8)
USAGE = st.builds(RathLLMTokenUsage, st.integers(0), st.integers(0), st.integers(0))


@st.composite
def responses(draw: st.DrawFn) -> RathLLMChatResponse:
    ids = draw(st.lists(NAME, unique=True, max_size=4))
    calls = tuple(tool_call_part(name, draw(NAME), draw(TEXT)) for name in ids)
    message = RathLLMAssistantMessage(
        content=draw(st.none() | TEXT),
        refusal=draw(st.none() | TEXT),
        reasoning_content=draw(st.none() | TEXT),
        tool_calls=calls or None,
    )
    choice = RathLLMChatChoice(
        index=0,
        finish_reason=draw(st.sampled_from(["stop", "length", "tool_calls"])),
        message=message,
    )
    return RathLLMChatResponse(
        id=draw(TEXT), choices=(choice,), created=draw(st.integers(0)), model=draw(TEXT),
        usage=draw(st.none() | USAGE),
    )  # fmt: skip


@given(responses())
def test_fold_undoes_split(response: RathLLMChatResponse) -> None:
    assert (
        fold(split(response), id=response.id, created=response.created, model=response.model)
        == response
    )


def call(
    arguments: str | None = None,
    *,
    index: int | None = None,
    id: str | None = None,
    name: str | None = None,
) -> RathLLMStreamDelta:
    return RathLLMStreamDelta(
        tool_call_index=index,
        tool_call_id=id,
        tool_call_name_delta=name,
        tool_call_args_delta=arguments,
    )


def calls_of(*deltas: RathLLMStreamDelta) -> list[tuple[str, str, str]]:
    parts: tuple[RathLLMToolCallPart, ...] = fold(deltas).primary_choice.message.tool_calls or ()
    return [(part.id, part.function.name, part.function.arguments) for part in parts]


def test_deltas_are_told_apart_by_their_index() -> None:
    deltas = [
        call("", index=1, id="b", name="g"),
        call("{", index=0, id="a", name="f"),
        call("[", index=1),
        call("}", index=0),
    ]
    assert calls_of(*deltas) == [("a", "f", "{}"), ("b", "g", "[")]


def test_without_an_index_a_new_id_starts_a_call_and_no_id_goes_on() -> None:
    deltas = [call("{", id="a", name="f"), call("}"), call("[", id="b", name="g"), call("]")]
    assert calls_of(*deltas) == [("a", "f", "{}"), ("b", "g", "[]")]


def test_without_an_index_a_known_id_goes_on_with_its_call() -> None:
    deltas = [call("{", id="a", name="f"), call("[", id="b", name="g"), call("}", id="a")]
    assert calls_of(*deltas) == [("a", "f", "{}"), ("b", "g", "[")]


def test_one_index_for_all_calls_is_no_index() -> None:
    deltas = [call("{}", index=0, id="a", name="f"), call("[]", index=0, id="b", name="g")]
    assert calls_of(*deltas) == [("a", "f", "{}"), ("b", "g", "[]")]


def test_a_name_that_is_sent_again_is_taken_once() -> None:
    deltas = [call("{", index=0, id="a", name="f"), call("}", index=0, id="a", name="f")]
    assert calls_of(*deltas) == [("a", "f", "{}")]


def test_a_name_may_come_in_pieces() -> None:
    assert calls_of(call(index=0, id="a", name="get_"), call(index=0, name="it")) == [
        ("a", "get_it", "")
    ]


def test_calls_without_an_id_get_one_each() -> None:
    deltas = [
        call(index=0, name="f"),
        call(index=1, id="call_0", name="g"),
        call(index=2, name="h"),
    ]
    assert [part[0] for part in calls_of(*deltas)] == ["call_1", "call_0", "call_2"]


def test_a_missing_finish_reason_is_told_by_the_calls() -> None:
    assert fold([call(index=0, name="f")]).primary_choice.finish_reason == "tool_calls"
    assert fold([RathLLMStreamDelta(content_delta="x")]).primary_choice.finish_reason == "stop"


def test_the_last_finish_reason_and_usage_win() -> None:
    first, last = RathLLMTokenUsage(1, 1, 2), RathLLMTokenUsage(1, 5, 6)
    folded = fold(
        [
            RathLLMStreamDelta(finish_reason="stop", usage=first),
            RathLLMStreamDelta(finish_reason="length", usage=last),
        ]
    )
    assert folded.usage is last
    assert folded.primary_choice.finish_reason == "length"


def test_half_characters_are_joined_and_lone_ones_replaced() -> None:
    halves = [RathLLMStreamDelta(content_delta=half) for half in ("\ud83d", "\ude00", "\ud83d")]
    assert fold(halves).primary_choice.message.content == "\U0001f600\ufffd"
