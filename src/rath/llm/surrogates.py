"""Characters that a vendor cut in two: a stream may carry half a surrogate pair per delta."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from rath._core.text import valid_unicode
from rath.llm.chat_response import RathLLMStreamDelta

__all__ = ["PairKeeper"]


class PairKeeper:
    """Keeps the first half of a pair back until the second comes, so that each delta is valid."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    @property
    def holds(self) -> bool:
        """Whether half a character waits for the rest."""
        return bool(self._held)

    def mend(self, deltas: Iterable[RathLLMStreamDelta]) -> Iterator[RathLLMStreamDelta]:
        """Yield the deltas with valid text; only content is joined across deltas."""
        for delta in deltas:
            if delta.content_delta is None:
                yield from self.flush()
                yield _valid(delta)
                continue
            text = self._held + delta.content_delta
            self._held = text[-1] if text and "\ud800" <= text[-1] <= "\udbff" else ""
            kept = text[: len(text) - len(self._held)]
            if kept:
                yield replace(_valid(delta), content_delta=valid_unicode(kept))

    def flush(self) -> Iterator[RathLLMStreamDelta]:
        """Yield a half whose other half never came, as U+FFFD."""
        if self._held:
            self._held = ""
            yield RathLLMStreamDelta(content_delta="\ufffd")


def _valid(delta: RathLLMStreamDelta) -> RathLLMStreamDelta:
    """Return a delta whose texts are valid; the halves of arguments are joined by the fold."""
    reasoning, refusal = delta.reasoning_delta, delta.refusal_delta
    if reasoning is None and refusal is None:
        return delta
    return replace(
        delta,
        reasoning_delta=None if reasoning is None else valid_unicode(reasoning),
        refusal_delta=None if refusal is None else valid_unicode(refusal),
    )
