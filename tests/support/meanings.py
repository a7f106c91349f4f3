"""An embedding model of a few words, which tells what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Sequence

GROUPS = (
    {"tea", "beverage", "drink"},
    {"car", "automobile", "vehicle"},
    {"cat", "kitten", "feline"},
    {"rain", "weather", "storm"},
)
"""Words of one group mean the same; others mean nothing."""


class Meanings:
    """Gives a text the groups of its words as its vector; one without them has no direction."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.failure: Exception | None = None
        """Raised by each call while it is set."""
        self.scale = 3.0
        self._called = threading.Condition()

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each text."""
        with self._called:
            self.calls.append(list(texts))
            self._called.notify_all()
        if self.failure is not None:
            raise self.failure
        return [self._vector(text) for text in texts]

    def wait_for(self, n_texts: int) -> None:
        """Wait until so many texts were asked for, at most 15 s."""
        with self._called:
            assert self._called.wait_for(lambda: len(self.asked) >= n_texts, timeout=50)

    @property
    def asked(self) -> list[str]:
        """All texts of all calls, in order."""
        return [text for call in self.calls for text in call]

    def _vector(self, text: str) -> list[float]:
        words = text.lower().split()
        return [self.scale * sum(word in group for word in words) for group in GROUPS]
