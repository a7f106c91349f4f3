"""What is known of the files of a tree, and what changed between each look and the next."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from dataclasses import dataclass, field
from typing import Protocol

from rath._core.blobs import MAX_BLOB_BYTES, Blob
from rath.backend.effects import FileEffect
from rath.backend.host.compare import Difference, compare
from rath.backend.host.contents import MIN_WASTE_BYTES, ContentStore
from rath.backend.host.scan import Keep, Known, Snapshot
from rath.backend.host.upper import OverlaySource
from rath.backend.manifest import EffectPolicy, FileState, Manifest

RETRY_SECONDS = 60.0
"""A tree with too many files is looked at again after this time; a guess."""

MAX_KEPT_BYTES = 64 << 20
"""Contents that the effects between two scans hold in memory, in bytes; a guess."""

MAX_EFFECTS = 10_000
"""Effects that one operation tells; a guess, far above what anybody reads."""

NO_ROOM = "some contents were not kept, only their digests: there is no room for more"

_ticks = itertools.count(1)


def tick() -> int:
    """Return the next moment of the one clock by which scans and operations are ordered."""
    return next(_ticks)


class Source(Protocol):
    """Looks at a tree as it is now; may block."""

    def __call__(self, policy: EffectPolicy, *, known: Known, keep: Keep | None) -> Snapshot: ...


@dataclass(slots=True, eq=False)
class Operation:
    """A command or a piece of code that runs on a tree."""

    view: View | None = None
    """Where its effects are looked for; None if nobody observes it."""

    began: int = 0
    """Tick before which it cannot have changed anything; 0 if it never began."""

    ended: int | None = None
    """Tick after which it cannot have changed anything; None while it runs."""

    effects: list[FileEffect] = field(default_factory=list[FileEffect])
    gaps: list[str] = field(default_factory=list[str])

    def may_have_run(self, begin: int, end: int) -> bool:
        """Tell whether it ran at some time between two ticks."""
        return 0 < self.began <= end and (self.ended is None or self.ended >= begin)

    def add(self, difference: Difference) -> None:
        """Add what changed while it ran."""
        room = MAX_EFFECTS - len(self.effects)
        self.effects += difference.effects[:room]
        gaps = list(difference.gaps)
        if len(difference.effects) > room:
            gaps.append(f"more than {MAX_EFFECTS} effects: the rest is not listed")
        self.gaps += [gap for gap in gaps if gap not in self.gaps]


@dataclass(frozen=True, slots=True)
class _Look:
    began: int
    ended: int
    snapshot: Snapshot


class Operations:
    """What runs on a tree, and what ran as long as it matters."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Operation] = []

    def add(self, operation: Operation) -> None:
        """Add one that begins, or runs already."""
        with self._lock:
            self._all.append(operation)

    def forget_ended(self, floor: int | None) -> None:
        """Drop those that ended before a tick; all that ended for None."""
        with self._lock:
            self._all = [
                each
                for each in self._all
                if each.ended is None or (floor is not None and each.ended >= floor)
            ]

    def ran_in(self, begin: int, end: int) -> list[Operation]:
        """Return those that ran at some time between two ticks."""
        with self._lock:
            return [each for each in self._all if each.may_have_run(begin, end)]

    def running(self) -> list[Operation]:
        """Return those that have not ended."""
        with self._lock:
            return [each for each in self._all if each.ended is None]


class View:
    """The files of one tree under one policy; scans come one after another.

    Args:
        policy: What is looked at.
        source: Looks at the tree.
        still: Is held while it looks.
        operations: What runs on the tree.
    """

    def __init__(
        self,
        policy: EffectPolicy,
        source: Source,
        still: threading.Lock,
        operations: Operations,
    ) -> None:
        self.policy = policy
        self.n_windows = 0
        """Operations whose effects are looked for now."""
        self._source = source
        self._still = still
        self._operations = operations
        self._count_lock = threading.Lock()
        self._last: _Look | None = None
        self._last_time = 0.0
        self._known: Known = {}
        self._exact: list[FileEffect] = []
        self._store: ContentStore | None = None
        self._compact_at = MIN_WASTE_BYTES

    @property
    def floor(self) -> int | None:
        """Tick before which nothing matters; None while nobody looks."""
        last = self._last
        return last.began if self.n_windows and last is not None else None

    def open_window(self) -> Operation:
        """Return an operation whose effects are looked for, until `close_window`."""
        with self._count_lock:
            self.n_windows += 1
        return Operation(self)

    def close_window(self) -> None:
        """Stop to look for the effects of one operation."""
        with self._count_lock:
            self.n_windows -= 1

    def note_exact(self, effect: FileEffect) -> None:
        """Take off a change that a file tool makes; called with `still` held."""
        if not self.policy.ignore.intersection(effect.path.split("/")[:-1]):
            self._exact.append(effect)

    def look(self, since: int) -> None:
        """Look at the tree, unless that was done after the tick `since`; blocks.

        What changed since the last look is added to the operations that may have done it.
        """
        with self._still:
            last = self._last
            if last is not None and (last.began >= since or self._is_hopeless(last)):
                return
            began = tick()
            snapshot = self._seen()
            exact, self._exact = self._exact, []
            self._last = _Look(began, tick(), snapshot)
            self._last_time = time.monotonic()
            if last is not None:
                self._settle(last, self._last, exact)
            self._forget()

    def finish(self, operation: Operation) -> None:
        """Look once more, for an operation that has ended; blocks."""
        self.look(tick())
        if self._last is not None and self._last.snapshot.is_too_large:
            operation.add(Difference(gaps=[self._too_large()]))

    def manifest(self) -> Manifest | None:
        """Look at the tree and return its digests, None if they are not all known; blocks."""
        self.look(tick())
        if isinstance(self._source, OverlaySource):
            self._source.read_all(self.policy, keep=self._keep())
        return None if self._last is None else self._last.snapshot.manifest()

    def _seen(self) -> Snapshot:
        try:
            return self._source(self.policy, known=self._known, keep=self._keep())
        except OSError as exc:
            # What ran has its result all the same: that nothing is known of its effects is told.
            return Snapshot(unseen={"": exc.strerror or str(exc)})

    def _settle(self, last: _Look, now: _Look, exact: list[FileEffect]) -> None:
        operations = self._operations.ran_in(last.began, now.ended)
        observed = [each for each in operations if each.view is self]
        if not observed:
            return
        by_path: dict[str, list[FileEffect]] = {}
        for effect in exact:
            by_path.setdefault(effect.path, []).append(effect)
        blobs = _Blobs(self._store, self.policy)
        difference = compare(
            last.snapshot,
            now.snapshot,
            by_path,
            to_blob=blobs.of,
            attribution="window" if len(operations) == 1 else "ambiguous",
        )
        difference.gaps += blobs.gaps()
        for each in observed:
            each.add(difference)

    def _is_hopeless(self, last: _Look) -> bool:
        return last.snapshot.is_too_large and time.monotonic() < self._last_time + RETRY_SECONDS

    def _too_large(self) -> str:
        return (
            f"the workspace holds more than {self.policy.max_files} files (EffectPolicy.max_files):"
            " effects were not looked for"
        )

    def _keep(self) -> Keep | None:
        if self._store is None and self.policy.keep_contents:
            # Without room for temporary files the digests must do.
            with contextlib.suppress(OSError):
                self._store = ContentStore()
        return None if self._store is None else self._store.put

    def _forget(self) -> None:
        """Drop what stands for files that are gone, when it is worth it."""
        assert self._last is not None
        files = self._last.snapshot.files
        if len(self._known) > 2 * len(files) + 1000:
            self._known = {each.key: each for each in files.values() if each.is_settled}
        if self._store is not None and self._store.n_bytes > self._compact_at:
            self._store.keep_only({each.state.digest for each in files.values() if each.state})
            self._compact_at = 2 * self._store.n_bytes + MIN_WASTE_BYTES


class _Blobs:
    """Makes blobs for the effects between two scans, with contents up to a limit."""

    def __init__(self, store: ContentStore | None, policy: EffectPolicy) -> None:
        self._store = store
        self._is_keeping = policy.keep_contents
        self._room = MAX_KEPT_BYTES
        self._is_short = False

    def of(self, state: FileState) -> Blob:
        content = None
        if self._is_keeping and state.size <= MAX_BLOB_BYTES:
            if self._store is not None and state.size <= self._room:
                content = self._store.get(state.digest)
            if content is None:
                self._is_short = True
            else:
                self._room -= state.size
        return Blob(state.digest, state.size, content)

    def gaps(self) -> list[str]:
        return [NO_ROOM] if self._is_short else []
