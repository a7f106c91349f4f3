"""Effects of operations on a workspace: observers, gaps, and deadlines that scans do not use up."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self
from weakref import WeakValueDictionary

from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_modules

if TYPE_CHECKING:
    import asyncio
else:
    (asyncio,) = lazy_modules(__name__, "asyncio")


EffectKind = Literal["created", "changed", "deleted", "renamed"]
Attribution = Literal["exact", "window", "ambiguous"]


@dataclass(frozen=True, slots=True)
class FileEffect:
    """One file was changed by one operation."""

    path: str
    """Path relative to the root of the workspace, with links resolved and `/` between names."""

    kind: EffectKind
    before: Blob | None = None
    """Content before, None where there was no file."""

    after: Blob | None = None
    """Content afterwards, None where there is no file any more."""

    attribution: Attribution = "exact"
    """`exact`: this operation did it; `window`: it happened while this one ran; `ambiguous`: it
    happened while several ran."""

    renamed_from: str | None = None
    """Earlier path of a renamed file."""

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
        """Reasons for which effects may be missing."""


class OperationSite(Protocol):
    """The sandbox in which operations run."""

    @property
    def handle(self) -> str:
        """Its name, "" while it is not open."""
        ...


_observers: ContextVar[tuple[EffectLog, ...]] = ContextVar("rath_effect_observers", default=())
_site: ContextVar[OperationSite | None] = ContextVar("rath_place_of_operation", default=None)
_contents: WeakValueDictionary[str, Blob] = WeakValueDictionary()
"""Contents that effects hold now: what one leaves, the next one finds."""


def is_observed() -> bool:
    """Tell whether anybody observes; if not, looking at contents is a waste."""
    return bool(_observers.get())


def note_effect(effect: FileEffect) -> None:
    """Tell every observer around the current operation what it changed, and in which sandbox."""
    observers, site = _observers.get(), _site.get()
    if not observers:
        return
    sandbox = effect.sandbox or (site.handle if site is not None else None) or None
    before, after = _one_copy(effect.before), _one_copy(effect.after)
    effect = replace(effect, sandbox=sandbox, before=before, after=after)
    for log in observers:
        log.append(effect)


def _one_copy(blob: Blob | None) -> Blob | None:
    if blob is None or blob.data is None:
        return blob
    found = _contents.setdefault(blob.digest, blob)
    # Backends of others say the digest themselves.
    return found if found.data == blob.data else blob


@contextmanager
def happening_in(site: OperationSite) -> Generator[None]:
    """Say in which sandbox the operation inside runs, also on worker threads."""
    token = _site.set(site)
    try:
        yield
    finally:
        _site.reset(token)


def note_gap(reason: str) -> None:
    """Tell every observer why effects of the current operation may be missing; once each."""
    for log in _observers.get():
        if reason not in log.gaps:
            log.gaps.append(reason)


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


OFF = "effects were not looked for (EffectPolicy.is_on is False)"
UNOBSERVED = (
    "operations ran in the sandbox that nobody observed, as those of a thread that a tool starts "
    "without its context; have a thread run `contextvars.copy_context().run` of its work"
)


class UnobservedOps:
    """Counts the operations of one sandbox that nobody observed; used on the runtime thread."""

    def __init__(self) -> None:
        self._n_started = 0
        self._n_running = 0

    def mark(self) -> int:
        """Return the moment from which `any_since` looks."""
        return self._n_started - self._n_running

    def any_since(self, mark: int) -> bool:
        """Tell whether one ran at some time since a moment."""
        return self._n_started > mark

    @contextmanager
    def counting(self) -> Generator[None]:
        """Count what runs inside, unless somebody observes it."""
        if is_observed():
            yield
            return
        self._n_started += 1
        self._n_running += 1
        try:
            yield
        finally:
            self._n_running -= 1


@contextmanager
def note_unreported(backend: str) -> Generator[None]:
    """Note a gap for what a backend does inside, unless it reports something after all."""
    with observe_effects() as reported:
        try:
            yield
        finally:
            if not reported and not reported.gaps:
                note_gap(
                    f"the {backend} backend does not tell what its operations change "
                    "(capabilities().observes_effects is False)"
                )


MAX_PAUSE_SECONDS = 60.0
"""How much longer a call may take because its effects are looked for; a guess, far above what a
tree of `EffectPolicy.max_files` files takes."""


class PausableDeadline:
    """A deadline for what runs inside, that stands still while effects are looked for.

    Inside `async with` it raises TimeoutError when the time is up. Used on the runtime thread.

    Args:
        limit: Seconds that it may take.
    """

    def __init__(self, limit: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self._limit = self._started_at + limit
        self._deadline = asyncio.timeout_at(self._limit)
        self._paused = 0.0
        self._n_pauses = 0
        self._paused_at = 0.0
        self._token: Token[tuple[PausableDeadline, ...]] | None = None

    @property
    def has_expired(self) -> bool:
        """Whether the time was up."""
        return self._deadline.expired()

    @property
    def is_paused(self) -> bool:
        """Whether it stands still now."""
        return self._n_pauses > 0

    def elapsed_ms(self) -> float:
        """Return how long it has taken by now without pauses, in milliseconds."""
        now = self._loop.time()
        pause = now - self._paused_at if self.is_paused else 0.0
        return (now - self._started_at - self._paused - pause) * 1000

    def pause(self) -> None:
        """Stand still, until `resume` was called as often."""
        self._n_pauses += 1
        if self._n_pauses == 1:
            self._paused_at = self._loop.time()
            self._extend(MAX_PAUSE_SECONDS)

    def resume(self) -> None:
        """Take back one `pause`."""
        self._n_pauses -= 1
        if self._n_pauses == 0:
            self._paused += self._loop.time() - self._paused_at
            self._extend(min(self._paused, MAX_PAUSE_SECONDS))

    async def __aenter__(self) -> Self:
        self._token = _deadlines.set((*_deadlines.get(), self))
        await self._deadline.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._token is not None
        _deadlines.reset(self._token)
        # What the call left running may still look for effects of its own.
        self._token = None
        await self._deadline.__aexit__(kind, error, trace)

    def _extend(self, seconds: float) -> None:
        if self._token is not None and not self._deadline.expired():
            self._deadline.reschedule(self._limit + seconds)


_deadlines: ContextVar[tuple[PausableDeadline, ...]] = ContextVar("rath_deadlines", default=())


@contextmanager
def paused_deadlines() -> Generator[None]:
    """Let what happens inside, looking for effects, count for no deadline of a call."""
    deadlines = _deadlines.get()
    for deadline in deadlines:
        deadline.pause()
    try:
        yield
    finally:
        for deadline in deadlines:
            deadline.resume()
