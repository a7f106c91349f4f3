"""One turn on the official Anthropic SDK."""

from __future__ import annotations

from anthropic import Anthropic

from benchmarks.by_hand.add_tool import SYSTEM

MAX_TOKENS = 4096


def ask_once(client: Anthropic, question: str) -> str:
    """One question, one answer."""
    message = client.messages.create(
        model="fake",
        max_tokens=MAX_TOKENS,
        system=SYSTEM,
        messages=[{"role": "user", "content": question}],
    )
    block = message.content[0]
    assert block.type == "text"
    return block.text
