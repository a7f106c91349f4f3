"""What a streamed answer has said so far, written now and then."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from uuid import UUID

from rath.llm.chat_response import RathLLMStreamDelta
from rath.session.recorder.recorder import Recorder

WRITE_SECONDS = 0.5
WRITE_CHARS = 4096
"""So much text, or so much time, goes by between two lines; guesses: at most half a second of an
answer is lost, and the lines take no more room than its row."""

Sink = Callable[[RathLLMStreamDelta], Awaitable[None] | None]


def watched(
    sink: Sink | None,
    recorder: Recorder,
    operation: UUID,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Sink | None:
    """Return `sink`, with what passes through it written; as it is where nothing is recorded."""
    if sink is None or not recorder.is_on:
        return sink
    waiting: list[str] = []
    n_chars, last = 0, clock()

    def put(delta: RathLLMStreamDelta) -> Awaitable[None] | None:
        nonlocal n_chars, last
        text = delta.content_delta
        if text:
            waiting.append(text)
            n_chars += len(text)
            now = clock()
            if n_chars >= WRITE_CHARS or now - last >= WRITE_SECONDS:
                recorder.add_partial(operation, "".join(waiting))
                waiting.clear()
                n_chars, last = 0, now
        return sink(delta)

    return put
