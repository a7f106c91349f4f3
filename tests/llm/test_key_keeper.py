"""Keys in streams: whatever the pieces are, the key is not in what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.llm.chat_response import RathLLMStreamDelta
from rath.llm.stream import StreamRedactor
from tests.support.canaries import long_keys

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


def test_the_end_of_a_word_is_not_kept_back() -> None:
    assert content(StreamRedactor(KEY), "words", " are", " ask", " sk-", "x") == [
        "words", " are", " ask", " sk-", "x",
    ]  # fmt: skip


def test_a_beginning_is_kept_back_until_it_is_clear() -> None:
    assert content(StreamRedactor(KEY), "so sk-c", "aught") == ["so ", "sk-caught"]


def test_the_better_part_of_a_key_at_the_end_stays_hidden() -> None:
    assert content(StreamRedactor(KEY), "so ", KEY[:-1]) == ["so ", "***"]
    assert content(StreamRedactor(KEY), "so ", KEY[:6]) == ["so ", KEY[:6]]


@pytest.mark.parametrize("field", FIELDS)
def test_every_text_of_a_delta_is_read(field: str) -> None:
    keeper = StreamRedactor(KEY)
    deltas = [RathLLMStreamDelta(**{field: part}) for part in (KEY[:9], KEY[9:], " end")]  # type: ignore[arg-type]  # names are not literals
    out = "".join(getattr(delta, field) or "" for delta in keeper.hide(deltas))
    assert out == "*** end"


def test_what_was_kept_back_comes_before_what_follows_elsewhere() -> None:
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


def test_a_short_word_is_no_key() -> None:
    assert content(StreamRedactor("ollama"), "ask ollama", " now") == ["ask ollama", " now"]


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
