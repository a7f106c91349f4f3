"""Characters that were cut in two."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rath._core.text import valid_unicode
from rath.llm.chat_response import RathLLMStreamDelta
from rath.llm.stream import SurrogateJoiner

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
