"""Streams of the Messages API: the same answer as a whole one, whatever events come."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from anthropic.types import RawContentBlockDeltaEvent, RawMessageDeltaEvent
from hypothesis import given
from hypothesis import strategies as st

from rath.errors import ProviderError, ProviderServerError, ProviderStatusError
from rath.llm import RathLLMStreamDelta, RathLLMTokenUsage
from rath.llm.anthropic import anthropic_event_to_deltas
from rath.llm.anthropic.normalize import decode_message
from rath.llm.anthropic.stream_deltas import AnthropicChunkDecoder
from rath.llm.stream import StreamFold
from tests.support import anthropic_replies as replies
from tests.support.odd_json import anthropic_events, with_one_odd_value
from tests.support.targets import request_target

Json = dict[str, Any]
ASKED = request_target("the server", secret="sk-canary-0123456789")
STOP = {"type": "message_stop"}


def read(
    events: Iterable[Mapping[str, Any]],
) -> tuple[AnthropicChunkDecoder, StreamFold, list[RathLLMStreamDelta]]:
    """A decoder that has read the events, what they fold to, and their deltas."""
    decoder, folded = AnthropicChunkDecoder(ASKED), StreamFold()
    deltas = [delta for event in events for delta in decoder.decode_chunk(json.dumps(event))]
    for delta in deltas:
        folded.add(delta)
    return decoder, folded, deltas


def start(index: int, block: Json) -> Json:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **fields: Any) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def stop(index: int) -> Json:
    return {"type": "content_block_stop", "index": index}


# ---------------------------------------------------------------- the same answer


cited = {"type": "web_search_result_location", "url": "https://example.org", "cited_text": "so"}
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
inputs = st.dictionaries(st.text(max_size=3), values, max_size=2)
words = st.text(max_size=8)
blocks = st.one_of(
    st.builds(replies.text, words),
    st.builds(replies.text, words, citations=st.just([cited, cited])),
    st.builds(replies.thinking, words, words),
    st.builds(replies.redacted),
    st.builds(replies.tool_use, st.sampled_from("fg"), inputs, id=st.uuids().map(str)),
    st.builds(replies.search, words),
    st.builds(replies.found),
    st.just({"type": "from_the_future", "payload": [1, {"x": "y"}]}),
)
reasons = st.sampled_from(
    ["end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal", "unknown"]
)
counts = st.fixed_dictionaries(
    {"input_tokens": st.integers(0, 9), "output_tokens": st.integers(0, 9)},
    optional={
        "cache_read_input_tokens": st.integers(0, 9),
        "cache_creation_input_tokens": st.integers(0, 9),
        "output_tokens_details": st.just({"thinking_tokens": 2}),
        "service_tier": st.just("priority"),
    },
)


@given(content=st.lists(blocks, max_size=5), reason=reasons, usage=counts)
def test_a_stream_gives_the_answer_that_would_have_come_complete(
    content: list[Json], reason: str, usage: Json
) -> None:
    refused = {"type": "refusal", "category": None, "explanation": "no"}
    details = {"stop_details": refused} if reason == "refusal" else {}
    payload = replies.envelope(*content, stop_reason=reason, usage=usage, **details)
    whole, served = decode_message(payload, ASKED)
    decoder, folded, _ = read(replies.events(payload))
    streamed = folded.response(id=whole.id, model=whole.model, service_tier=whole.service_tier)
    assert streamed.choices == whole.choices
    assert streamed.usage == whole.usage
    assert decoder.served == served
    assert decoder.ended


def test_another_text_or_thought_begins_on_a_new_line() -> None:
    content = [replies.thinking("a"), replies.text("b"), replies.thinking("c"), replies.text("d")]
    _, folded, _ = read(replies.events(replies.envelope(*content, replies.text(""))))
    assert (folded.reasoning, folded.text) == ("a\nc", "b\nd")


def test_deltas_come_as_they_are_written() -> None:
    payload = replies.envelope(
        replies.thinking("hm, so"), replies.text("hello"), replies.tool_use("f", {"x": 1})
    )
    _, _, deltas = read(replies.events(payload))
    assert deltas == [
        RathLLMStreamDelta(reasoning_delta="hm,"),
        RathLLMStreamDelta(reasoning_delta=" so"),
        RathLLMStreamDelta(content_delta="he"),
        RathLLMStreamDelta(content_delta="llo"),
        RathLLMStreamDelta(tool_call_index=2, tool_call_id="toolu_01A", tool_call_name_delta="f"),
        RathLLMStreamDelta(tool_call_index=2, tool_call_args_delta='{"x"'),
        RathLLMStreamDelta(tool_call_index=2, tool_call_args_delta=": 1}"),
        RathLLMStreamDelta(finish_reason="tool_calls"),
        RathLLMStreamDelta(usage=RathLLMTokenUsage(10, 5, 15)),
    ]


def test_input_that_comes_with_the_start_is_taken() -> None:
    _, folded, _ = read([start(0, replies.tool_use("f", {"x": 1})), stop(0)])
    calls = folded.response().primary_choice.message.tool_calls
    assert calls is not None
    assert calls[0].function.arguments_parsed == {"x": 1}


def test_input_of_the_vendors_own_tools_is_no_call_of_ours() -> None:
    _, folded, deltas = read(replies.events(replies.envelope(replies.search("q"))))
    assert folded.response().primary_choice.message.tool_calls is None
    assert len(deltas) == 2


def test_input_that_was_cut_off_leaves_the_block_as_it_began() -> None:
    begun = start(1, replies.tool_use("f", {}))
    cut = delta(1, "input_json_delta", partial_json='{"x": "a')
    ended = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}
    decoder, folded, _ = read([start(0, replies.redacted()), begun, cut, ended, STOP])
    assert decoder.served.blocks[1]["input"] == {}
    calls = folded.response().primary_choice.message.tool_calls
    assert calls is not None
    assert calls[0].function.arguments_parse_error


# ---------------------------------------------------------------- counts and ends


def test_counts_are_totals_and_missing_ones_stay() -> None:
    message = replies.envelope(usage=replies.usage(10, 1, cache_read_input_tokens=90))
    more: Json = {"output_tokens": 7, "input_tokens": None}
    again: Json = {"output_tokens": 20, "cache_read_input_tokens": 95}
    _, folded, _ = read(
        [
            {"type": "message_start", "message": message},
            {"type": "message_delta", "delta": {}, "usage": more},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": again},
        ]
    )
    assert folded.usage == RathLLMTokenUsage(
        105, 20, 125, prompt_tokens_details={"cached_tokens": 95}
    )


@pytest.mark.parametrize(
    ("more", "read_tokens"),
    [
        ({"input_tokens": 0}, 100),
        ({"input_tokens": 0, "cache_read_input_tokens": 0}, 100),
        ({"input_tokens": 1, "cache_read_input_tokens": 99}, 100),
        ({"input_tokens": 50}, 140),
    ],
)
def test_what_was_read_is_never_taken_back(more: Json, read_tokens: int) -> None:
    message = replies.envelope(usage=replies.usage(10, 1, cache_read_input_tokens=90))
    ended = {"stop_reason": "end_turn"}
    _, folded, _ = read(
        [
            {"type": "message_start", "message": message},
            {"type": "message_delta", "delta": ended, "usage": more | {"output_tokens": 5}},
        ]
    )
    assert folded.usage is not None
    assert (folded.usage.prompt_tokens, folded.usage.completion_tokens) == (read_tokens, 5)


def test_counts_inside_the_delta_are_taken_too() -> None:
    inner = {"stop_reason": "end_turn", "usage": replies.usage(3, 4)}
    _, folded, _ = read([{"type": "message_delta", "delta": inner}])
    assert folded.usage == RathLLMTokenUsage(3, 4, 7)


def test_no_delta_comes_before_the_first_token() -> None:
    _, _, deltas = read(replies.events(replies.envelope(replies.text("a")))[:3])
    assert deltas == []


def test_the_end_marker_is_message_stop() -> None:
    *before, last = replies.events(replies.envelope(replies.redacted(), replies.text("a")))
    decoder, folded, _ = read(before)
    assert (decoder.ended, folded.finish_reason) == (False, "stop")
    assert len(decoder.served.blocks) == 2
    decoder.decode_chunk(json.dumps(last))
    assert decoder.ended


def test_the_end_marker_of_another_protocol_ends_too() -> None:
    decoder, _, _ = read([])
    assert decoder.decode_chunk("[DONE]") == ()
    assert decoder.ended


# ---------------------------------------------------------------- what is unknown or wrong


def test_unknown_events_and_deltas_are_skipped() -> None:
    decoder, folded, _ = read(
        [
            {"type": "from_the_future", "data": [1]},
            {"data": "without a type"},
            {"type": "ping"},
            start(0, replies.text("")),
            delta(0, "from_the_future", text="?"),
            delta(7, "from_the_future"),
            delta(0, "text_delta", text="a"),
            stop(0),
            stop(9),
            STOP,
        ]
    )
    assert (folded.text, decoder.served.blocks) == ("a", ())


def test_text_of_a_block_that_nobody_began_is_text() -> None:
    thought = delta(0, "thinking_delta", thinking="hm")
    decoder, folded, _ = read([thought, delta(1, "text_delta", text="a"), STOP])
    assert (folded.text, folded.reasoning) == ("a", "hm")
    assert decoder.served.blocks == (
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "a"},
    )


def test_text_of_an_unknown_block_is_preserved_and_not_reported() -> None:
    decoder, folded, _ = read(
        [start(0, {"type": "from_the_future"}), delta(0, "text_delta", text="a"), STOP]
    )
    assert folded.text == ""
    assert decoder.served.blocks == ({"type": "from_the_future", "text": "a"},)


def test_an_error_event_is_an_error() -> None:
    decoder, _, _ = read(replies.events(replies.envelope(replies.text("a")))[:4])
    with pytest.raises(ProviderServerError, match="Overloaded") as caught:
        decoder.decode_chunk(json.dumps(replies.error_event()))
    assert (caught.value.status, caught.value.code) == (529, "overloaded_error")


def test_an_error_without_a_type_is_an_error() -> None:
    with pytest.raises(ProviderStatusError, match="status 200: it broke"):
        AnthropicChunkDecoder(ASKED).decode_chunk('{"error": {"message": "it broke"}}')


@pytest.mark.parametrize(
    "data",
    [
        "{oops",
        "[]",
        "null",
        '{"type": "content_block_delta"}',
        '{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta"}}',
        '{"type": "content_block_delta", "index": [], "delta": {"type": "text_delta"}}',
        '{"type": "message_start", "message": 1}',
        json.dumps(start(0, replies.text("")) | {"index": "0"}),
        json.dumps(delta(0, "text_delta", text=7)),
        json.dumps(delta(0, "thinking_delta", thinking=["x"])),
        json.dumps(start(0, {"type": "text", "text": {"a": 1}})),
        '{"type": "x", "data": ' + "[" * 100_000,
    ],
)
def test_a_malformed_event_is_a_value_error(data: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        AnthropicChunkDecoder(ASKED).decode_chunk(data)


EVENTS = replies.events(
    replies.envelope(
        replies.thinking("hm"), replies.text("b"), replies.tool_use("f", {"x": 1}),
        replies.tool_use("g", {"y": 2}), usage=replies.usage(1, 2, cache_read_input_tokens=3),
    )
)  # fmt: skip


@given(
    st.lists(anthropic_events, min_size=1, max_size=4)
    | with_one_odd_value([*EVENTS]).filter(lambda found: isinstance(found, list))
)
def test_whatever_events_come_they_are_an_answer_or_an_error(events: list[Any]) -> None:
    decoder, folded = AnthropicChunkDecoder(ASKED), StreamFold()
    try:
        for event in events:
            for found in decoder.decode_chunk(json.dumps(event)):
                folded.add(found)
    except (ProviderError, ValueError):
        return  # the draft makes an error of rath of the latter
    json.dumps(decoder.served.blocks)
    assert folded.response().choices


@given(anthropic_events)
def test_whatever_event_is_given_its_deltas_are_well_typed(event: Any) -> None:
    folded = StreamFold()
    for found in anthropic_event_to_deltas(event):
        folded.add(found)
    assert folded.response().choices


# ---------------------------------------------------------------- the documented function


USED = replies.tool_use("f", {})
REASON: Json = {"stop_reason": "tool_use"}
FINISHED = RathLLMStreamDelta(finish_reason="tool_calls")


@pytest.mark.parametrize(
    ("event", "deltas"),
    [
        (delta(0, "text_delta", text="a"), [RathLLMStreamDelta(content_delta="a")]),
        (delta(0, "text_delta", text=""), []),
        (delta(0, "thinking_delta", thinking="hm"), [RathLLMStreamDelta(reasoning_delta="hm")]),
        (
            delta(3, "input_json_delta", partial_json="{"),
            [RathLLMStreamDelta(tool_call_index=3, tool_call_args_delta="{")],
        ),
        (delta(3, "input_json_delta", partial_json=""), []),
        (
            start(3, USED),
            [
                RathLLMStreamDelta(
                    tool_call_index=3, tool_call_id="toolu_01A", tool_call_name_delta="f"
                )
            ],
        ),
        (start(0, replies.text("")), []),
        (
            {"type": "message_delta", "delta": REASON | {"usage": replies.usage(1, 2)}},
            [FINISHED, RathLLMStreamDelta(usage=RathLLMTokenUsage(1, 2, 3))],
        ),
        (
            {"type": "message_delta", "delta": REASON, "usage": {"output_tokens": 2}},
            [FINISHED, RathLLMStreamDelta(usage=RathLLMTokenUsage(0, 2, 2))],
        ),
        (STOP, []),
        ({"type": "ping"}, []),
    ],
)
def test_an_event_alone_gives_its_deltas(event: Json, deltas: list[RathLLMStreamDelta]) -> None:
    assert list(anthropic_event_to_deltas(event)) == deltas


def test_an_event_of_the_sdk_gives_its_deltas() -> None:
    written = RawContentBlockDeltaEvent.model_validate(delta(0, "text_delta", text="a"))
    ended = RawMessageDeltaEvent.model_validate(
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": replies.usage(1, 2),
        }
    )
    assert [*anthropic_event_to_deltas(written), *anthropic_event_to_deltas(ended)] == [
        RathLLMStreamDelta(content_delta="a"),
        RathLLMStreamDelta(finish_reason="stop"),
        RathLLMStreamDelta(usage=RathLLMTokenUsage(1, 2, 3)),
    ]


def test_an_object_with_the_fields_of_an_event_will_do() -> None:
    counted = SimpleNamespace(input_tokens=1, output_tokens=2)
    ended = SimpleNamespace(stop_reason="end_turn", usage=counted)
    event = SimpleNamespace(type="message_delta", delta=ended)
    assert list(anthropic_event_to_deltas(event))[1].usage == RathLLMTokenUsage(1, 2, 3)
