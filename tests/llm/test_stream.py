"""Streamed answers: events, half characters, repeated keys, and the fold of deltas."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._core.text import valid_unicode
from rath.llm import RathLLMChatChoice, RathLLMChatResponse, RathLLMTokenUsage
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMStreamDelta,
    RathLLMToolCallPart,
    tool_call_part,
)
from rath.llm.stream import EventParser, StreamRedactor, SurrogateJoiner, fold, split
from tests.support.canaries import long_keys

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


BOTH = [("a", "f", "{}"), ("b", "g", "[]")]


@pytest.mark.parametrize(
    ("deltas", "calls"),
    [
        (
            [call("", index=1, id="b", name="g"), call("{", index=0, id="a", name="f"),
             call("[]", index=1), call("}", index=0)],
            BOTH,
        ),
        ([call("{", id="a", name="f"), call("}"), call("[", id="b", name="g"), call("]")], BOTH),
        ([call("{", id="a", name="f"), call("[]", id="b", name="g"), call("}", id="a")], BOTH),
        ([call("{}", index=0, id="a", name="f"), call("[]", index=0, id="b", name="g")], BOTH),
        (
            [call("{", index=0, id="a", name="f"), call("}", index=0, id="a", name="f")],
            [("a", "f", "{}")],
        ),
        (
            [call(index=0, id="a", name="get_"), call(index=0, name="it")],
            [("a", "get_it", "")],
        ),
        (
            [call(index=0, name="f"), call(index=1, id="call_0", name="g"),
             call(index=2, name="h")],
            [("call_1", "f", ""), ("call_0", "g", ""), ("call_2", "h", "")],
        ),
    ],
    ids=["by index", "new id or none", "known id", "one index for all", "name again",
         "name in pieces", "no id"],
)  # fmt: skip
def test_deltas_of_calls_are_reported_apart(
    deltas: list[RathLLMStreamDelta], calls: list[tuple[str, str, str]]
) -> None:
    assert calls_of(*deltas) == calls


def test_a_missing_finish_reason_is_reported_by_the_calls() -> None:
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


LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)
EVENTS = st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=5)


def parse(stream: bytes, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    parser = EventParser()
    found: list[str] = []
    for start, end in itertools.pairwise(edges):
        found += parser.feed(stream[start:end])
    return found


@given(EVENTS, st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 200)))
def test_pieces_and_line_ends_make_no_difference(
    events: list[list[str]], end: str, cuts: list[int]
) -> None:
    text = "".join("".join(f"data: {line}{end}" for line in lines) + end for lines in events)
    assert parse(text.encode(), cuts) == ["\n".join(lines) for lines in events]


@given(EVENTS, st.lists(st.integers(0, 200)))
def test_comments_and_other_fields_are_left_out(events: list[list[str]], cuts: list[int]) -> None:
    text = "".join(
        ": keep-alive\n\nevent: message\nid: 7\nretry: 10\n"
        + "".join(
            f"data:{line}\n" if not line.startswith(" ") else f"data: {line}\n" for line in lines
        )
        + "\n"
        for lines in events
    )
    assert parse(text.encode(), cuts) == ["\n".join(lines) for lines in events]


@pytest.mark.parametrize(
    ("line", "data"), [("data:x", "x"), ("data: x", "x"), ("data:  x", " x"), ("data", "")]
)
def test_one_space_after_the_colon_is_no_data(line: str, data: str) -> None:
    assert parse(f"{line}\n\n".encode(), []) == [data]


def test_an_event_without_its_empty_line_comes_at_the_end() -> None:
    parser = EventParser()
    assert parser.feed(b"data: [DONE]") == []
    assert parser.close() == ["[DONE]"]
    assert parser.close() == []


UNITS = st.text(st.sampled_from(["a", "\ud83d", "\ude00", "é"]), max_size=6)


@given(st.lists(UNITS, max_size=6))
def test_all_deltas_are_valid_and_nothing_is_lost(texts: list[str]) -> None:
    keeper = SurrogateJoiner()
    deltas = list(keeper.mend(RathLLMStreamDelta(content_delta=text) for text in texts))
    deltas += keeper.flush()
    given_out = [delta.content_delta or "" for delta in deltas]
    assert all(text == valid_unicode(text) for text in given_out)
    assert "".join(given_out) == valid_unicode("".join(texts))


def test_a_half_is_given_up_when_something_else_comes() -> None:
    keeper = SurrogateJoiner()
    deltas = [RathLLMStreamDelta(content_delta="\ud83d"), RathLLMStreamDelta(finish_reason="stop")]
    assert list(keeper.mend(deltas)) == [
        RathLLMStreamDelta(content_delta="\ufffd"),
        RathLLMStreamDelta(finish_reason="stop"),
    ]


def test_reasoning_and_refusal_are_made_valid() -> None:
    delta = RathLLMStreamDelta(reasoning_delta="a\ud83d", refusal_delta="\ude00")
    assert list(SurrogateJoiner().mend([delta])) == [
        RathLLMStreamDelta(reasoning_delta="a\ufffd", refusal_delta="\ufffd")
    ]


KEY = "sk-cNry-0123456789abcdef"
FIELDS = ("content_delta", "reasoning_delta", "refusal_delta", "tool_call_args_delta")
cuts = st.lists(st.integers(0, 200), max_size=12)


def pieces(text: str, at: Sequence[int]) -> list[str]:
    """Cut a text at these places."""
    places = sorted({0, len(text), *(place for place in at if place < len(text))})
    return [text[a:b] for a, b in pairwise(places)]


def content(keeper: StreamRedactor, *parts: str) -> list[str]:
    """What comes out of a stream of these parts."""
    deltas = [RathLLMStreamDelta(content_delta=part) for part in parts]
    out = [*keeper.hide(deltas), *keeper.flush()]
    return [delta.content_delta or "" for delta in out]


@st.composite
def repeating(draw: st.DrawFn) -> tuple[str, str]:
    """A key, and a text of it, of beginnings of it and of others."""
    key = draw(long_keys)
    beginnings = st.integers(1, len(key)).map(lambda length: key[:length])
    words = st.sampled_from([key, "s", "sk-", " so ", "x"]) | beginnings
    return key, "".join(draw(st.lists(words, min_size=1, max_size=6)))


@given(repeating(), cuts)
def test_a_key_never_comes_out(given_: tuple[str, str], at: list[int]) -> None:
    key, text = given_
    keeper = StreamRedactor(key)
    out = "".join(content(keeper, *pieces(text, at)))
    assert key not in out
    assert keeper.has_hidden or out == text
    assert keeper.has_hidden or key not in text


@given(st.text(max_size=60), cuts)
def test_a_text_without_the_key_comes_out_as_it_is(text: str, at: list[int]) -> None:
    assert "".join(content(StreamRedactor(KEY), *pieces(text, at))) == text


@given(st.text(max_size=20), st.text(max_size=20), cuts)
def test_what_stands_around_a_key_stays(before: str, after: str, at: list[int]) -> None:
    out = "".join(content(StreamRedactor(KEY), *pieces(f"{before} {KEY} {after}", at)))
    assert out.startswith(f"{before} ")
    assert out.endswith(f"*** {after}")
    # The first three characters may have been given out before it was clear what they are.
    assert len(out) <= len(f"{before} sk-*** {after}")


def test_a_delta_without_a_beginning_of_the_key_is_not_touched() -> None:
    delta = RathLLMStreamDelta(content_delta="a word")
    assert next(StreamRedactor(KEY).hide([delta])) is delta


@pytest.mark.parametrize(
    ("key", "parts", "out"),
    [
        (KEY, ["words", " are", " sk-", "x"], ["words", " are", " sk-", "x"]),
        (KEY, ["so sk-c", "aught"], ["so ", "sk-caught"]),
        (KEY, ["so ", KEY[:-1]], ["so ", "***"]),
        (KEY, ["so ", KEY[:6]], ["so ", KEY[:6]]),
        ("ollama", ["ask ollama", " now"], ["ask ollama", " now"]),
    ],
    ids=["word ends", "not clear yet", "better part", "small part", "short word"],
)
def test_what_may_begin_a_key_is_preserved_back(key: str, parts: list[str], out: list[str]) -> None:
    assert content(StreamRedactor(key), *parts) == out


@pytest.mark.parametrize("field", FIELDS)
def test_every_text_of_a_delta_is_read(field: str) -> None:
    keeper = StreamRedactor(KEY)
    deltas = [RathLLMStreamDelta(**{field: part}) for part in (KEY[:9], KEY[9:], " end")]  # type: ignore[arg-type]  # names are not literals
    out = "".join(getattr(delta, field) or "" for delta in keeper.hide(deltas))
    assert out == "*** end"


def test_what_was_preserved_back_comes_before_what_follows_elsewhere() -> None:
    deltas = [
        RathLLMStreamDelta(content_delta="so sk-cN"),
        RathLLMStreamDelta(tool_call_index=0, tool_call_id="a", tool_call_args_delta='{"x":"sk-c'),
        RathLLMStreamDelta(tool_call_index=1, tool_call_id="b", tool_call_name_delta="f"),
        RathLLMStreamDelta(finish_reason="stop"),
    ]
    keeper = StreamRedactor(KEY)
    assert [*keeper.hide(deltas), *keeper.flush()] == [
        RathLLMStreamDelta(content_delta="so "),
        RathLLMStreamDelta(content_delta="sk-cN"),
        RathLLMStreamDelta(tool_call_index=0, tool_call_id="a", tool_call_args_delta='{"x":"'),
        RathLLMStreamDelta(tool_call_index=0, tool_call_args_delta="sk-c"),
        *deltas[2:],
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (({"text": f"so {KEY}"},), True),
        ([{"a": [{"b": KEY}]}], True),
        (({"text": "so", "n": 1, "none": None},), False),
    ],
)
def test_a_value_is_searched_at_every_depth(value: object, expected: bool) -> None:
    assert StreamRedactor(KEY).is_in(value) is expected
    assert not StreamRedactor("x").is_in(value)
