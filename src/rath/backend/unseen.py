"""Operations of a sandbox whose effects nobody was told: none observed, or none reported."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rath.backend.effects import is_observed, note_gap, observe_effects

UNOBSERVED = (
    "operations ran in the sandbox that nobody observed, as those of a thread that a tool starts "
    "without its context; have a thread run `contextvars.copy_context().run` of its work"
)


class Unseen:
    """Counts the operations of one sandbox that nobody observed; used on the runtime thread."""

    def __init__(self) -> None:
        self._n_begun = 0
        self._n_running = 0

    def mark(self) -> int:
        """Return the moment from which `any_since` looks."""
        return self._n_begun - self._n_running

    def any_since(self, mark: int) -> bool:
        """Tell whether one ran at some time since a moment."""
        return self._n_begun > mark

    @contextmanager
    def counting(self) -> Generator[None]:
        """Count what runs inside, unless somebody observes it."""
        if is_observed():
            yield
            return
        self._n_begun += 1
        self._n_running += 1
        try:
            yield
        finally:
            self._n_running -= 1


@contextmanager
def silent_told(backend: str) -> Generator[None]:
    """Note a gap for what a backend does inside, unless it tells something after all."""
    with observe_effects() as told:
        try:
            yield
        finally:
            if not told and not told.gaps:
                note_gap(
                    f"the {backend} backend does not tell what its operations change "
                    "(capabilities().observes_effects is False)"
                )
