"""What operations changed in a workspace, told to whoever observes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol
from weakref import WeakValueDictionary

from rath._core.blobs import Blob

EffectKind = Literal["created", "changed", "deleted", "renamed"]
Attribution = Literal["exact", "window", "ambiguous"]


@dataclass(frozen=True, slots=True)
class FileEffect:
    """One file was changed by one operation."""

    path: str
    """Where, relative to the root of the workspace, with links resolved and `/` between names."""

    kind: EffectKind
    before: Blob | None = None
    """Content before, None where there was no file."""

    after: Blob | None = None
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

    sandbox: str | None = field(default=None, compare=False)
    """Handle of the sandbox in which it happened, None where no sandbox told it. A tool may use
    other sandboxes than its session's; who counts changes of a workspace looks here."""


class EffectLog(list[FileEffect]):
    """The effects that were observed, in the order they were noted."""

    def __init__(self) -> None:
        super().__init__()
        self.gaps: list[str] = []
        """Why effects may be missing, in words: what was not looked at."""


class Place(Protocol):
    """Where operations run."""

    @property
    def handle(self) -> str:
        """Its name, "" while it is not open."""
        ...


_observers: ContextVar[tuple[EffectLog, ...]] = ContextVar("rath_effect_observers", default=())
_place: ContextVar[Place | None] = ContextVar("rath_place_of_operation", default=None)
_contents: WeakValueDictionary[str, Blob] = WeakValueDictionary()
"""Contents that effects hold now: what one leaves, the next one finds."""


def is_observed() -> bool:
    """Tell whether anybody observes; if not, looking at contents is a waste."""
    return bool(_observers.get())


def note_effect(effect: FileEffect) -> None:
    """Tell every observer around the current operation what it changed, and in which sandbox."""
    seen_by, place = _observers.get(), _place.get()
    if not seen_by:
        return
    sandbox = effect.sandbox or (place.handle if place is not None else None) or None
    before, after = _one_copy(effect.before), _one_copy(effect.after)
    effect = replace(effect, sandbox=sandbox, before=before, after=after)
    for seen in seen_by:
        seen.append(effect)


def _one_copy(blob: Blob | None) -> Blob | None:
    if blob is None or blob.data is None:
        return blob
    found = _contents.setdefault(blob.digest, blob)
    # Backends of others say the digest themselves.
    return found if found.data == blob.data else blob


@contextmanager
def happening_in(place: Place) -> Generator[None]:
    """Say in which sandbox the operation inside runs, also on worker threads."""
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)


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
