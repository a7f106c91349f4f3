"""Answers and chunks of LiteLLM, recorded, into pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rath.llm.litellm.client import LiteLLMChunkDecoder, decode_litellm, to_event
from tests.support.chat_replies import chunk, usage
from tests.support.targets import request_target

ASKED = request_target(model="openai/m")


def answer(**more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "hi", **more.pop("message", {})}
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": message}], **more}


def thought(text: str, signature: str = "") -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def thinking_chunk(*blocks: Mapping[str, Any]) -> dict[str, Any]:
    return chunk({"content": "", "thinking_blocks": list(blocks)})


def folded(*chunks: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    decoder = LiteLLMChunkDecoder(ASKED)
    for each in chunks:
        decoder.decode_chunk(json.dumps(each))
    return decoder.served.blocks


def test_zeros_are_no_usage() -> None:
    assert decode_litellm(answer(usage=usage(0, 0)), ASKED)[0].usage is None


def test_signed_thinking_is_preserved_for_the_way_back() -> None:
    blocks = [thought("why", "sig"), {"type": "redacted_thinking", "data": "x"}]
    assert decode_litellm(answer(message={"thinking_blocks": blocks}), ASKED)[1].blocks == tuple(
        blocks
    )


@given(st.lists(st.text(min_size=1), min_size=1), st.text(min_size=1))
def test_streamed_thinking_is_folded_until_it_is_signed(pieces: list[str], signature: str) -> None:
    chunks = [thinking_chunk(thought(piece)) for piece in pieces]
    chunks.append(thinking_chunk(thought("", signature)))
    assert folded(*chunks) == (thought("".join(pieces), signature),)


def test_a_signature_and_another_kind_of_block_begin_a_new_one() -> None:
    redacted = {"type": "redacted_thinking", "data": "x"}
    blocks = folded(
        thinking_chunk(thought("a")),
        thinking_chunk(thought("", "1")),
        thinking_chunk(redacted),
        thinking_chunk(thought("b")),
        thinking_chunk(thought("", "2")),
    )
    assert blocks == (thought("a", "1"), redacted, thought("b", "2"))


def test_an_event_is_one_line_of_data() -> None:
    written = to_event({"text": "zwei\nZeilen ä"})
    assert written.startswith(b"data: {")
    assert written.endswith(b"}\n\n")
    assert json.loads(written[6:]) == {"text": "zwei\nZeilen ä"}
