"""What operations changed in a workspace, told to whoever observes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from rath._core.blobs import Blob

EffectKind = Literal["created", "changed", "deleted", "renamed"]
Attribution = Literal["exact", "window", "ambiguous"]


@dataclass(frozen=True, slots=True)
class FileEffect:
    """One file was changed by one operation."""

    path: str
    """Where, relative to the root of the workspace, with links resolved and `/` between names."""

    kind: EffectKind
    before: Blob | None
    """Content before, None where there was no file."""

    after: Blob | None
    """Content afterwards, None where there is no file any more."""

    attribution: Attribution = "exact"
    """`exact`: this operation did it; `window`: it happened while this one ran; `ambiguous`: it
    happened while several ran."""

    renamed_from: str | None = None
    """Where a renamed file stood before."""

    before_mode: int | None = None
    """Type and permission bits before (`st_mode`), where they are known. A symbolic link is an
    entry of its own; its content is the text of its target."""

    after_mode: int | None = None


class EffectLog(list[FileEffect]):
    """The effects that were observed, in the order they were noted."""

    def __init__(self) -> None:
        super().__init__()
        self.gaps: list[str] = []
        """Why effects may be missing, in words: what was not looked at."""


_observers: ContextVar[tuple[EffectLog, ...]] = ContextVar("rath_effect_observers", default=())


def is_observed() -> bool:
    """Tell whether anybody observes; if not, looking at contents is a waste."""
    return bool(_observers.get())


def note_effect(effect: FileEffect) -> None:
    """Tell every observer around the current operation what it changed."""
    for seen in _observers.get():
        seen.append(effect)


def note_gap(reason: str) -> None:
    """Tell every observer why effects of the current operation may be missing; once each."""
    for seen in _observers.get():
        if reason not in seen.gaps:
            seen.gaps.append(reason)


@contextmanager
def observe_effects() -> Generator[EffectLog]:
    """Collect the effects of every operation dispatched inside, in the order they were noted.

    Worker threads and the runtime count as inside. Observers may be nested; each one gets all.

    Example:
        >>> with observe_effects() as effects:
        ...     note_effect(FileEffect("a.txt", "created", None, Blob.from_bytes(b"hi")))
        >>> [effect.path for effect in effects]
        ['a.txt']
    """
    effects = EffectLog()
    token = _observers.set((*_observers.get(), effects))
    try:
        yield effects
    finally:
        _observers.reset(token)
