"""Who may touch a directory when: frozen files are made safe before anybody changes them."""

from __future__ import annotations

import asyncio
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar


class Pinned(ABC):
    """Files of a tree as they are now, which somebody holds."""

    @property
    @abstractmethod
    def is_secured(self) -> bool:
        """Whether they no longer need the tree."""

    @abstractmethod
    async def asecure(self) -> None:
        """Copy them, so that the tree may change."""


class Background(Protocol):
    """What operations left running: it changes files without asking."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing runs."""
        ...


P = TypeVar("P", bound=Pinned)


class Lineage(Generic[P]):
    """The history of one workspace: what is frozen later descends from what was before.

    Args:
        born: What it began with, None where that is not known.
    """

    def __init__(self, born: P | None = None) -> None:
        self.born = born
        self._n_versions = 0

    def next_version(self) -> int:
        """Return the number of the version that is frozen now."""
        self._n_versions += 1
        return self._n_versions


class Tree(Generic[P]):
    """One directory whose files sandboxes of this process read and change.

    Args:
        place: Names the directory; trees of which one lies in the other have places that do.
        door: Path by which this process opens it.
    """

    def __init__(self, place: str, door: str) -> None:
        self.place = place
        self.door = door
        self.lineage: Lineage[P] | None = None
        """Its history; None as long as nothing of it was frozen."""

        self.n_writers = 0
        """Operations in flight that may change it."""

        self.n_readers = 0
        """Operations in flight that read frozen files and find them here."""

        self._pinned: weakref.ref[P] | None = None

    @property
    def pinned(self) -> P | None:
        """What is frozen of it as it is now, None where nobody holds such a thing."""
        return None if self._pinned is None else self._pinned()

    def pin(self, pinned: P) -> None:
        """Remember what is frozen, as long as somebody holds it."""
        self._pinned = weakref.ref(pinned)

    def overlaps(self, other: Tree[P]) -> bool:
        """Tell whether a change in one is a change in the other."""
        mine, others = f"{self.place.rstrip('/')}/", f"{other.place.rstrip('/')}/"
        return mine.startswith(others) or others.startswith(mine)

    def is_in_the_way(self) -> bool:
        """Tell whether it must not change now."""
        pinned = self.pinned
        return self.n_readers > 0 or (pinned is not None and not pinned.is_secured)

    def forget_pinned(self) -> None:
        """Take what is frozen for the past: it changes now."""
        self._pinned = None


class Trees(Generic[P]):
    """The trees of this process, by place; all that waits, waits on the runtime loop."""

    def __init__(self) -> None:
        # A collected tree or frozen object may end in here, on the same thread.
        self._lock = threading.RLock()
        self._by_place: weakref.WeakValueDictionary[str, Tree[P]] = weakref.WeakValueDictionary()
        self._watched: set[Tree[P]] = set()
        """Trees of which something is frozen: only they are ever in the way."""

        self._changing: set[Tree[P]] = set()
        self._background: weakref.WeakKeyDictionary[Background, Tree[P]] = (
            weakref.WeakKeyDictionary()
        )
        self._waiting: list[asyncio.Future[None]] = []

    def at(self, root: str) -> Tree[P]:
        """Return the tree of a directory, by its real path."""
        with self._lock:
            tree = self._by_place.get(root)
            if tree is None:
                tree = self._by_place[root] = Tree(root, root)
            return tree

    def freeze(
        self, tree: Tree[P], lineage: Lineage[P] | None, make: Callable[[Lineage[P]], P]
    ) -> P:
        """Return what is frozen of `tree` as it is now; made unless somebody holds it. O(1).

        May be called on any thread. What runs in the tree now counts as before: the files are
        those that it leaves.

        Args:
            tree: A directory.
            lineage: The history that it continues, where nothing of it was frozen before.
            make: Makes what is frozen, as the next version of a history.
        """
        with self._lock:
            pinned = tree.pinned
            if pinned is None:
                tree.lineage = tree.lineage or lineage or Lineage()
                pinned = make(tree.lineage)
                tree.pin(pinned)
                self._forget_unheld()
                self._watched.add(tree)
            return pinned

    def watch(self, background: Background, tree: Tree[P]) -> None:
        """Count with what may run in `tree` in the background from now on."""
        with self._lock:
            self._background[background] = tree

    def is_restless(self, tree: Tree[P]) -> bool:
        """Tell whether something in the background may change `tree` now."""
        with self._lock:
            return any(
                not background.is_empty and each.overlaps(tree)
                for background, each in self._background.items()
            )

    def exposed(self, tree: Tree[P]) -> list[P]:
        """Return what is frozen and would change with `tree`."""
        with self._lock:
            pinned = [each.pinned for each in self._watched if each.overlaps(tree)]
        return [each for each in pinned if each is not None and not each.is_secured]

    @asynccontextmanager
    async def writing(self, tree: Tree[P]) -> AsyncGenerator[None]:
        """Secure what is frozen of `tree`, then let it change inside the block."""
        while not self._began(tree):
            await self._clear(tree)
        try:
            yield
        finally:
            tree.n_writers -= 1
            if not tree.n_writers:
                self._changing.discard(tree)
            self._wake()

    @asynccontextmanager
    async def reading_frozen(self, tree: Tree[P]) -> AsyncGenerator[None]:
        """Read frozen files in `tree` inside the block; nobody changes them there meanwhile."""
        await self.quiet(tree)
        tree.n_readers += 1
        try:
            yield
        finally:
            tree.n_readers -= 1
            self._wake()

    async def quiet(self, tree: Tree[P]) -> None:
        """Wait until nothing that may change `tree` is in flight."""
        while any(each.overlaps(tree) for each in self._changing):
            await self._change()

    def start_afresh(self) -> None:
        """Take nothing for being in flight, as it is in a forked child."""
        self._lock = threading.RLock()
        for tree in self._changing | self._watched:
            tree.n_writers = tree.n_readers = 0
        self._changing.clear()
        self._waiting.clear()

    def _began(self, tree: Tree[P]) -> bool:
        """Count a writer unless something is in the way."""
        with self._lock:
            touched = [each for each in self._watched if each.overlaps(tree)]
            if any(each.is_in_the_way() for each in touched):
                return False
            for each in touched:
                each.forget_pinned()
                self._watched.discard(each)
            tree.n_writers += 1
            self._changing.add(tree)
            return True

    def _forget_unheld(self) -> None:
        unheld = [each for each in self._watched if not each.n_readers and each.pinned is None]
        self._watched.difference_update(unheld)

    async def _clear(self, tree: Tree[P]) -> None:
        """Secure one thing that is in the way, or wait for those who read it."""
        with self._lock:
            touched = [each for each in self._watched if each.overlaps(tree)]
            pinned = [each.pinned for each in touched]
        unsecured = next((each for each in pinned if each and not each.is_secured), None)
        if unsecured is not None:
            await unsecured.asecure()
        elif any(each.n_readers for each in touched):
            await self._change()

    async def _change(self) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
