"""Which operations ran on a tree when, and so which of them may have changed what scans found.

A scan is not a moment but an interval, and so is an operation. Between two scans that follow each
other, S and T, a file changed somewhere in (begin of S, end of T):

    scans        [--S--]              [--T--]
    operations      [---- A ----]        [-- B --]          [-- C --]
                 (-------- may have ---------)

If one operation ran in that time, the change happened in its window; if several did, it is
ambiguous for each; if none did, it is nobody's. File tools never write while a scan runs, so what
they did lies on one side of it and is taken off exactly.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import field, replace
from functools import partial
from operator import attrgetter
from typing import TypeVar
from weakref import ReferenceType, WeakValueDictionary, ref

from rath._async.runtime import runtime
from rath._core.blobs import MAX_BLOB_BYTES, Blob
from rath._core.dataclasses import dataclass
from rath.backend.changes import (
    EffectPolicy,
    FileState,
    Manifest,
    ScanCache,
    TreeDiff,
    TreeState,
    diff,
)
from rath.backend.effects import (
    OFF,
    Attribution,
    FileEffect,
    is_observed,
    note_effect,
    note_gap,
    paused_deadlines,
)
from rath.backend.host.overlay import OverlaySource
from rath.backend.host.paths import is_below
from rath.backend.host.scan import MIN_WASTE_BYTES, ContentStore, Keep, TreeSource, scan
from rath.backend.host.supervisor import Leftovers
from rath.backend.tool_types import BackendTool, BackendToolFilesEdit, BackendToolFilesWrite

T = TypeVar("T")

RETRY_SECONDS = 60.0
"""A tree with too many files is looked at again after this time; a guess."""

MAX_CONTENT_BYTES = 64 << 20
"""Contents that the effects between two scans hold in memory, in bytes; a guess."""

MAX_EFFECTS = 10_000
"""Effects that one operation tells; a guess, far above what anybody reads."""

CANCEL_SECONDS = 0.5
"""How long a cancelled operation may look for its effects; exit leaves 1.2 s for all. A guess."""

NO_ROOM = "some contents were not kept, only their digests: there is no room for more"
CUT_SHORT = (
    f"the operation was cancelled, and its effects could not be looked for in {CANCEL_SECONDS:g} s"
)
LEFT_RUNNING = (
    "a process that a command started goes on running in the sandbox, and nobody looks at what it "
    "changes after the command"
)

_ticks = itertools.count(1)


def tick() -> int:
    """Return the next moment of the one clock by which scans and operations are ordered."""
    return next(_ticks)


@dataclass(slots=True, eq=False)
class WatchedOperation:
    """A command or a piece of code that runs on a tree."""

    scans: TreeScans | None = None
    """Where its effects are looked for; None if nobody observes it."""

    started: int = 0
    """Tick before which it cannot have changed anything; 0 if it never started."""

    ended: int | None = None
    """Tick after which it cannot have changed anything; None while it runs."""

    effects: list[FileEffect] = field(default_factory=list[FileEffect])
    gaps: list[str] = field(default_factory=list[str])

    def may_have_run(self, start: int, end: int) -> bool:
        """Tell whether it ran at some time between two ticks."""
        return 0 < self.started <= end and (self.ended is None or self.ended >= start)

    def add(self, found: TreeDiff) -> None:
        """Add what changed while it ran."""
        room = MAX_EFFECTS - len(self.effects)
        self.effects += found.effects[:room]
        gaps = list(found.gaps)
        if len(found.effects) > room:
            gaps.append(f"more than {MAX_EFFECTS} effects: the rest is not listed")
        self.gaps += [gap for gap in gaps if gap not in self.gaps]


@dataclass(slots=True, eq=False)
class TreeActivity:
    """What a tree shares with its scans, which do not hold it."""

    source: TreeSource
    still: threading.Lock = field(default_factory=threading.Lock)
    """Held by scans and by each exact change, so that they never overlap."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    operations: list[WatchedOperation] = field(default_factory=list[WatchedOperation])
    """Those that run, and those that ended as long as they matter; used with `lock` held."""


class WatchedTree:
    """A directory tree and what runs on it; shared by all sandboxes that work in it.

    Any thread may call it. Operations and file tools on a tree above or below count as well.

    Args:
        root: Its real path, or the door to a layer.
        source: Looks at it; a scan of the directory by default.
    """

    def __init__(self, root: str, source: TreeSource | None = None) -> None:
        self.root = root
        self.pid: int = os.getpid()
        self.activity: TreeActivity = TreeActivity(source or partial(scan, root))
        self.overlaps: list[ReferenceType[WatchedTree]] = []
        """The trees above and below, by `tree_at`; used with the lock of the registry held."""
        self._scans: dict[EffectPolicy, TreeScans] = {}

    def scans(self, policy: EffectPolicy) -> TreeScans:
        """Return what is known of its files under a policy."""
        with self.activity.lock:
            if policy not in self._scans:
                self._scans[policy] = TreeScans(self.activity, policy)
            return self._scans[policy]

    def start(self, operation: WatchedOperation) -> None:
        """Tell that `operation` runs from now on."""
        with _registry_lock:
            operation.started = tick()
            for tree in _related(self):
                with tree.activity.lock:
                    tree.activity.operations.append(operation)

    def end(self, operation: WatchedOperation) -> None:
        """Tell that `operation` has ended."""
        operation.ended = tick()
        with _registry_lock:
            trees = _related(self)
        for tree in trees:
            tree.forget_ended()

    def forget_ended(self) -> None:
        """Drop the operations that no change can belong to any more."""
        activity = self.activity
        with activity.lock:
            if not activity.operations:
                return
            floor: float = math.inf
            for each in self._scans.values():
                if each.n_operations and each.last is not None:
                    floor = min(floor, each.last_started)
            activity.operations = [
                each for each in activity.operations if each.ended is None or each.ended >= floor
            ]

    def active_scans(self) -> list[TreeScans]:
        """Return the scans through which somebody looks now."""
        with self.activity.lock:
            return [each for each in self._scans.values() if each.n_operations]


class TreeScans:
    """The files of one tree under one policy; scans come one after another.

    Args:
        activity: Of the tree that is looked at.
        policy: Which of its files, and what is kept.
    """

    def __init__(self, activity: TreeActivity, policy: EffectPolicy) -> None:
        self.policy = policy
        self.n_operations: int = 0
        """Operations whose effects are looked for now."""
        self.last: TreeState | None = None
        self.last_started: int = 0
        """Tick at which the last scan began: before, nothing matters; 0 while there was none."""
        self._activity = activity
        self._last_time = 0.0
        self._known: ScanCache = {}
        self._exact: dict[str, list[FileEffect]] = {}
        self._store: ContentStore | None = None
        self._compact_at = MIN_WASTE_BYTES

    def open(self) -> WatchedOperation:
        """Return an operation whose effects are looked for, until `close`."""
        with self._activity.lock:
            self.n_operations += 1
        return WatchedOperation(self)

    def close(self) -> None:
        """Stop to look for the effects of one operation."""
        with self._activity.lock:
            self.n_operations -= 1

    def note_exact(self, effect: FileEffect) -> None:
        """Take off a change that a file tool makes; called with `still` held."""
        if not self.policy.ignore.intersection(effect.path.split("/")[:-1]):
            self._exact.setdefault(effect.path, []).append(effect)

    def scan(self, since: int) -> None:
        """Look at the tree, unless that was done after the tick `since`; blocks.

        What changed since the last look is added to the operations that may have done it.
        """
        with self._activity.still:
            last, start = self.last, self.last_started
            is_hopeless = (
                last is not None
                and last.is_too_large
                and time.monotonic() < self._last_time + RETRY_SECONDS
            )
            if last is not None and (start >= since or is_hopeless):
                return
            started = tick()
            try:
                found = self._activity.source(self.policy, known=self._known, keep=self._keep)
            except OSError as exc:
                # What ran has its result all the same: that its effects are not known is told.
                found = TreeState(unseen={"": exc.strerror or str(exc)})
            exact, self._exact = self._exact, {}
            if last is not None:
                self._attribute(last, found, exact, (start, tick()))
            # Only now: until changes are attributed, those that ended since `start` count.
            self.last, self.last_started, self._last_time = found, started, time.monotonic()
            # What stands for files that are gone is dropped when it is worth it.
            if len(self._known) > 2 * len(found.files) + 1000:
                self._known = {each.key: each for each in found.files.values() if each.is_settled}
            if self._store is not None and self._store.n_bytes > self._compact_at:
                self._store.keep_only(
                    {each.state.digest for each in found.files.values() if each.state}
                )
                self._compact_at = 2 * self._store.n_bytes + MIN_WASTE_BYTES

    def finish(self, operation: WatchedOperation) -> None:
        """Look once more, for an operation that has ended; blocks."""
        self.scan(tick())
        if self.last is not None and self.last.is_too_large:
            limit = f"{self.policy.max_files} files (EffectPolicy.max_files)"
            gap = f"the workspace holds more than {limit}: effects were not looked for"
            operation.add(TreeDiff(gaps=[gap]))

    def manifest(self) -> Manifest | None:
        """Look at the tree and return its digests, None if they are not all known; blocks."""
        self.scan(tick())
        if isinstance(self._activity.source, OverlaySource):
            self._activity.source.read_all(self.policy, keep=self._keep)
        return None if self.last is None else self.last.manifest()

    def _attribute(
        self,
        last: TreeState,
        found: TreeState,
        exact: dict[str, list[FileEffect]],
        span: tuple[int, int],
    ) -> None:
        with self._activity.lock:
            operations = [each for each in self._activity.operations if each.may_have_run(*span)]
        observed = [each for each in operations if each.scans is self]
        if not observed:
            return
        room = MAX_CONTENT_BYTES
        lacks_contents = False

        def to_blob(state: FileState) -> Blob:
            nonlocal room, lacks_contents
            content = None
            if self.policy.keep_contents and state.size <= MAX_BLOB_BYTES:
                if self._store is not None and state.size <= room:
                    content = self._store.get(state.digest)
                lacks_contents = lacks_contents or content is None
                room -= 0 if content is None else state.size
            return Blob(state.digest, state.size, content)

        attribution: Attribution = "window" if len(operations) == 1 else "ambiguous"
        changes = diff(last, found, exact, to_blob=to_blob, attribution=attribution)
        if lacks_contents:
            changes.gaps.append(NO_ROOM)
        for each in observed:
            each.add(changes)

    @property
    def _keep(self) -> Keep | None:
        return self._store_content if self.policy.keep_contents else None

    def _store_content(self, digest: str, content: bytes) -> None:
        if self._store is None:
            # Without room for temporary files the digests must do.
            with contextlib.suppress(OSError):
                self._store = ContentStore()
        if self._store is not None:
            self._store.put(digest, content)


_registry_lock = threading.Lock()
_trees: WeakValueDictionary[str, WatchedTree] = WeakValueDictionary()
_current: ContextVar[WatchedTree | None] = ContextVar("rath_tree_of_operation", default=None)


def tree_at(root: str) -> WatchedTree:
    """Return the tree at a real path; the same one for all who ask while somebody holds it."""
    with _registry_lock:
        tree = _trees.get(root)
        if tree is None:
            tree = WatchedTree(root)
            for each in list(_trees.values()):
                if is_below(each.root, root) or is_below(root, each.root):
                    tree.overlaps.append(ref(each))
                    alive = [other for other in each.overlaps if other() is not None]
                    each.overlaps = [*alive, ref(tree)]
                    with each.activity.lock:
                        running = [op for op in each.activity.operations if op.ended is None]
                    known = tree.activity.operations
                    known += [op for op in running if op not in known]
            _trees[root] = tree
        return tree


def _related(tree: WatchedTree) -> list[WatchedTree]:
    """Return `tree` and those above and below it, in the order of their roots."""
    trees = [tree]
    if tree.overlaps:
        trees += [each for other in tree.overlaps if (each := other()) is not None]
        trees.sort(key=attrgetter("root"))
    return trees


@contextmanager
def working_on(tree: WatchedTree) -> Generator[None]:
    """Say on which tree the file tools inside work, also those on worker threads."""
    token = _current.set(tree)
    try:
        yield
    finally:
        _current.reset(token)


@dataclass(slots=True)
class ExactChange:
    """One change of a file by a file tool."""

    tree: WatchedTree | None
    scans: list[tuple[WatchedTree, TreeScans]] = field(
        default_factory=list[tuple[WatchedTree, TreeScans]]
    )

    @property
    def is_wanted(self) -> bool:
        """Whether anybody wants to know what was changed."""
        return bool(self.scans) or is_observed()

    def note(self, effect: FileEffect) -> None:
        """Tell what was changed."""
        note_effect(effect)
        for tree, scans in self.scans:
            assert self.tree is not None
            path, above = os.path.join(self.tree.root, effect.path), tree.root.rstrip("/") + "/"
            if path.startswith(above):
                scans.note_exact(replace(effect, path=path[len(above) :]))


@contextmanager
def exact_change() -> Generator[ExactChange]:
    """Hold off all scans of the tree while a file is replaced; blocks until none runs."""
    own = _current.get()
    with ExitStack() as stack:
        change = ExactChange(own)
        if own is not None:
            with _registry_lock:
                trees = _related(own)
            for tree in trees:
                stack.enter_context(tree.activity.still)
                change.scans += [(tree, scans) for scans in tree.active_scans()]
        yield change


def _forget_after_fork() -> None:
    """Start afresh in a forked child: nothing runs there, and locks may be held for ever."""
    global _registry_lock
    _registry_lock = threading.Lock()
    _trees.clear()


if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_after_fork)


async def run_observed(
    tree: WatchedTree,
    op: BackendTool,
    run: Callable[[], Awaitable[T]],
    *,
    policy: EffectPolicy,
    leftovers: Leftovers,
) -> T:
    """Run an operation that may write, and tell whoever observes what it changed.

    File tools tell that themselves; around anything else the workspace is scanned before and
    after. While nobody observes nothing is scanned, but the operation still counts for the
    attribution of others.

    Args:
        tree: Where it runs.
        op: What runs.
        run: Runs it.
        policy: How its effects are looked for.
        leftovers: The commands of the sandbox that left something running.
    """
    if isinstance(op, BackendToolFilesWrite | BackendToolFilesEdit):
        with working_on(tree):
            return await run()
    if not is_observed():
        return await _run_counted(tree, WatchedOperation(), run)
    before = leftovers.now()

    async def run_settled() -> T:
        result = await run()
        await leftovers.asettle(before)
        return result

    try:
        if policy.is_on:
            return await _run_scanned(tree, policy, run_settled)
        note_gap(OFF)
        return await _run_counted(tree, WatchedOperation(), run_settled)
    finally:
        if not leftovers.is_empty:
            note_gap(LEFT_RUNNING)


async def _run_counted(
    tree: WatchedTree, operation: WatchedOperation, run: Callable[[], Awaitable[T]]
) -> T:
    tree.start(operation)
    try:
        return await run()
    finally:
        tree.end(operation)


async def _run_scanned(
    tree: WatchedTree, policy: EffectPolicy, run: Callable[[], Awaitable[T]]
) -> T:
    scans = tree.scans(policy)
    operation = scans.open()
    try:
        with paused_deadlines():
            await runtime().call_in_worker(partial(scans.scan, tick()))
        seconds: float | None = None
        try:
            return await _run_counted(tree, operation, run)
        except asyncio.CancelledError:
            seconds = CANCEL_SECONDS
            raise
        finally:
            await _finish(scans, operation, seconds)
    finally:
        scans.close()
        tree.forget_ended()


async def _finish(scans: TreeScans, operation: WatchedOperation, seconds: float | None) -> None:
    """Look once more and tell what was found; a cancellation makes it short."""
    with paused_deadlines():
        look = asyncio.wrap_future(runtime().start_in_worker(partial(scans.finish, operation)))
        try:
            await asyncio.wait([look], timeout=seconds)
        except asyncio.CancelledError:
            if seconds is None:
                await asyncio.wait([look], timeout=CANCEL_SECONDS)
            raise
        finally:
            for effect in list(operation.effects):
                note_effect(effect)
            for gap in list(operation.gaps):
                note_gap(gap)
            if not look.done():
                note_gap(CUT_SHORT)
    if look.done():
        look.result()
