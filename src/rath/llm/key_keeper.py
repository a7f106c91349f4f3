"""A key that an endpoint repeats in a stream, which may cut it into any pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

from rath.config.secrets import HIDDEN
from rath.llm.chat_response import RathLLMStreamDelta
from rath.llm.repeated_key import MIN_IN_ANSWER

__all__ = ["KeyKeeper"]

_MIN_HELD = 4
"""Characters of a key at the end of a delta that are kept back until it is clear what follows."""

Place = tuple[str, int | None, str | None]
_CONTENT: Place = ("content_delta", None, None)


class KeyKeeper:
    """Hides a key in the deltas of a stream, also one that is spread over several of them.

    The end of a delta that may be the beginning of the key is kept back until the next one comes,
    except for fewer than four characters, which end too many words.
    """

    __slots__ = ("_beginnings", "_n_given", "_place", "_secret", "_tail", "has_hidden")

    def __init__(self, secret: str) -> None:
        self._secret = secret if len(secret) >= MIN_IN_ANSWER else ""
        self._beginnings = _beginnings(self._secret)
        self._place: Place = _CONTENT
        """Field and tool call whose text was read last."""

        self._tail = ""
        """The end of that text, as far as it is a beginning of the key."""

        self._n_given = 0
        """How many characters of the tail were given out."""

        self.has_hidden = False
        """Whether the key was found so far."""

    def hide(self, deltas: Iterable[RathLLMStreamDelta]) -> Iterator[RathLLMStreamDelta]:
        """Yield the deltas without the key."""
        for delta in deltas:
            text = delta.content_delta
            if text and self._place is _CONTENT and self._says_nothing_of_it(text):
                yield delta
                continue
            name, text = _text_of(delta)
            index = delta.tool_call_index
            place = (name, index, delta.tool_call_id if index is None else None)
            if place != self._place:
                yield from self.flush()
                self._place = _CONTENT if place == _CONTENT else place
            given = self._read(text) if text and self._secret else text
            if given == text:
                yield delta
            elif given or delta.tool_call_id or delta.tool_call_name_delta:
                yield _with(delta, name, given)

    def flush(self) -> Iterator[RathLLMStreamDelta]:
        """Yield what was kept back, for nothing follows; the better part of a key stays hidden."""
        held = self._tail[self._n_given :]
        if 2 * len(self._tail) > len(self._secret):
            held, self.has_hidden = HIDDEN, True
        self._tail, self._n_given = "", 0
        if held:
            name, index, _ = self._place
            yield _with(RathLLMStreamDelta(tool_call_index=index), name, held)

    def is_in(self, value: object) -> bool:
        """Tell whether the key stands in a text, or in one that a JSON value holds."""
        if not self._secret:
            return False
        if isinstance(value, str):
            return self._secret in value
        if isinstance(value, Mapping):
            return any(self.is_in(inner) for inner in cast("Mapping[str, object]", value).values())
        if isinstance(value, list | tuple):
            return any(self.is_in(inner) for inner in cast("Iterable[object]", value))
        return False

    def _read(self, text: str) -> str:
        """Return what of `text`, and of what was kept back, may be given out now."""
        if self._says_nothing_of_it(text):
            return text
        secret = self._secret
        whole, given_to, begin = self._tail + text, self._n_given, 0
        pieces: list[str] = []
        while (found := whole.find(secret, begin)) >= 0:
            pieces += [whole[given_to:found], HIDDEN]
            begin = given_to = found + len(secret)
            self.has_hidden = True
        n_kept = self._n_begun(whole[begin:])
        n_held = n_kept if n_kept >= _MIN_HELD else 0
        pieces.append(whole[given_to : len(whole) - n_held])
        self._n_given = max(0, given_to - (len(whole) - n_kept)) if n_held else n_kept
        self._tail = secret[:n_kept]
        return "".join(pieces)

    def _says_nothing_of_it(self, text: str) -> bool:
        """Tell, fast, whether a text that is not empty neither holds nor begins the key."""
        if not self._secret:
            return True
        if self._tail or text.endswith(self._beginnings.get(text[-1], ())):
            return False
        return len(text) < len(self._secret) or self._secret not in text

    def _n_begun(self, text: str) -> int:
        """Return how many characters at the end of `text` are a beginning of the key."""
        for beginning in self._beginnings.get(text[-1:], ()):
            if text.endswith(beginning):
                return len(beginning)
        return 0


@lru_cache(maxsize=128)
def _beginnings(secret: str) -> Mapping[str, tuple[str, ...]]:
    """Return what a key may begin with, by the last character, longest first."""
    found: dict[str, tuple[str, ...]] = {}
    for end in range(1, len(secret)):
        last = secret[end - 1]
        found[last] = (secret[:end], *found.get(last, ()))
    return found


def _with(delta: RathLLMStreamDelta, name: str, text: str | None) -> RathLLMStreamDelta:
    changed: dict[str, Any] = {name: text}
    return replace(delta, **changed)


def _text_of(delta: RathLLMStreamDelta) -> tuple[str, str | None]:
    """Return the field of a delta that holds text, and the text."""
    if delta.content_delta is not None:
        return "content_delta", delta.content_delta
    if delta.reasoning_delta is not None:
        return "reasoning_delta", delta.reasoning_delta
    if delta.tool_call_args_delta is not None:
        return "tool_call_args_delta", delta.tool_call_args_delta
    return "refusal_delta", delta.refusal_delta
