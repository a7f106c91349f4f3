"""Snapshots of workspaces: their history, and who may change a tree while one needs it.

A snapshot is taken in O(1): its files are found in the tree itself until somebody changes that,
who copies them first. A driver adds how files are read and copied.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import field
from hashlib import sha256
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from rath._core.dataclasses import dataclass
from rath.backend.changes import FileState, Manifest
from rath.errors import BackendError


class FrozenWorkspace(ABC):
    """The files of a workspace as they were when it was frozen.

    Freezing costs nothing: the files are copied before somebody changes them, at the latest. They
    stay as long as the object is held.
    """

    @abstractmethod
    async def amanifest(self) -> Manifest:
        """Return what it holds, without ignored directories."""

    @abstractmethod
    async def aread(self, path: str) -> bytes:
        """Return the content of a file, the target of a link.

        Raises:
            FileNotFoundError: It holds no such file.
        """

    @abstractmethod
    def base_with(self, other: FrozenWorkspace) -> FrozenWorkspace | None:
        """Return the youngest frozen files that both came from; None where there are none."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """Content and mode of a file that is put into a new workspace."""

    data: bytes
    mode: int
    """Type and permission bits, `st_mode`; for a link `data` is its target."""


@dataclass(frozen=True, slots=True)
class Seed:
    """Files with which a new workspace begins."""

    frozen: FrozenWorkspace
    changes: Mapping[str, NewFile | None] = field(default_factory=dict[str, "NewFile | None"])
    """Differences from the frozen files, by path; None where a file is left out."""


Origin = Callable[[], Awaitable[Seed]]
"""Finds what a workspace begins with, when it is opened; called on the runtime, once."""


class SharedOrigin:
    """An origin that several may ask; the first answer is stored."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._lock = asyncio.Lock()
        self._seed: Seed | None = None

    async def __call__(self) -> Seed:
        async with self._lock:
            if self._seed is None:
                self._seed = await self._origin()
        return self._seed


class WorkspaceSnapshot(FrozenWorkspace):
    """Frozen files with a history; a driver derives one class of all its snapshots from this."""

    workspace_kind: ClassVar[str]
    """The workspaces of the driver as a subject of messages, with an article."""

    _manifest: Manifest | None = None

    def __init__(self, lineage: SnapshotLineage[Any]) -> None:
        self.lineage = lineage
        self.version: int = lineage.next_version()
        """Number within its lineage: the greater, the later it was frozen."""

    @property
    @abstractmethod
    def is_secured(self) -> bool:
        """Whether it no longer needs the tree."""

    @abstractmethod
    async def asecure(self) -> None:
        """Copy its files, so that the tree may change."""

    async def amanifest(self) -> Manifest:
        """Return the states of its files; scanned once.

        Raises:
            BackendError: They cannot be read, or there are too many.
        """
        if self._manifest is None:
            self._manifest = await self.ascan()
        return self._manifest

    @abstractmethod
    async def ascan(self) -> Manifest:
        """Scan its files for `amanifest`."""

    @classmethod
    def require(cls, frozen: FrozenWorkspace) -> Self:
        """Return frozen files of this driver.

        Raises:
            BackendError: They belong to a backend of another kind.
        """
        if isinstance(frozen, cls):
            return frozen
        raise BackendError(
            f"{cls.workspace_kind} cannot begin with the files of {type(frozen).__name__}; "
            "fork on the backend where the files are"
        )

    def base_with(self, other: FrozenWorkspace) -> FrozenWorkspace | None:
        if not isinstance(other, WorkspaceSnapshot):
            return None
        others = {each.lineage: each for each in other.origins()}
        for mine in self.origins():
            theirs = others.get(mine.lineage)
            if theirs is not None:
                return mine if mine.version < theirs.version else theirs
        return None

    def origins(self) -> Iterator[WorkspaceSnapshot]:
        """Yield this one and what it came from, the youngest first."""
        at: WorkspaceSnapshot | None = self
        while at is not None:
            yield at
            at = at.lineage.start


S = TypeVar("S", bound=WorkspaceSnapshot)


class SnapshotLineage(Generic[S]):
    """The history of one workspace: what is frozen later descends from what was before.

    Args:
        start: What it began with, None where that is not known.
    """

    def __init__(self, start: S | None = None) -> None:
        self.start = start
        self._n_versions = 0

    def next_version(self) -> int:
        """Return the number of the version that is frozen now."""
        self._n_versions += 1
        return self._n_versions


class SeedSnapshot(WorkspaceSnapshot, Generic[S]):
    """The files of a seed: frozen ones, and the differences from them.

    Args:
        lineage: The history of a workspace that begins with them.
        origin: Finds the seed.
    """

    base_class: type[S]
    """Class of all snapshots of the driver."""

    def __init__(self, lineage: SnapshotLineage[S], origin: Origin) -> None:
        super().__init__(lineage)
        self._origin = origin

    @property
    def is_secured(self) -> bool:
        return True  # what it needs of a tree, the snapshot of its seed holds

    async def aresolved(self) -> tuple[S, Seed]:
        """Return the snapshot of the seed, and the seed."""
        seed = await self._origin()
        base = self.base_class.require(seed.frozen)
        self.lineage.start = self.lineage.start or base
        return base, seed

    async def asecure(self) -> None:
        await (await self.aresolved())[0].asecure()

    async def aread(self, path: str) -> bytes:
        base, seed = await self.aresolved()
        if path not in seed.changes:
            return await base.aread(path)
        new = seed.changes[path]
        if new is None:
            raise missing_file(path)
        return new.data

    async def ascan(self) -> Manifest:
        base, seed = await self.aresolved()
        states = dict(await base.amanifest())
        for path, new in seed.changes.items():
            if new is None:
                states.pop(path, None)
            else:
                states[path] = FileState(sha256(new.data).hexdigest(), len(new.data), new.mode)
        return states


def missing_file(path: str) -> FileNotFoundError:
    """Return the error of a path at which frozen files have no file."""
    return FileNotFoundError(f"there is no file {path!r} in the frozen workspace")


class InitialFiles(Generic[S]):
    """The snapshot of a workspace in which nothing was changed yet; made while somebody holds it.

    Args:
        make: Makes it, as the next version of a history.
    """

    def __init__(self, make: Callable[[SnapshotLineage[S]], S]) -> None:
        self.lineage: SnapshotLineage[S] = SnapshotLineage()
        """Its history, which goes on when it is opened."""

        self._make = make
        self._lock = threading.Lock()
        self._snapshot: Callable[[], S | None] = lambda: None

    def freeze(self) -> S:
        """Return the files with which it begins; O(1), on any thread."""
        with self._lock:
            snapshot = self._snapshot()
            if snapshot is None:
                snapshot = self._make(self.lineage)
                self._snapshot = weakref.ref(snapshot)
            return snapshot


class FreezableSandbox(Protocol):
    """A sandbox that begins with the files of its origin."""

    origin: Origin | None


class UnopenedFiles(Generic[S]):
    """The initial files of sandboxes that were frozen before they were opened; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_sandbox: weakref.WeakKeyDictionary[FreezableSandbox, InitialFiles[S]] = (
            weakref.WeakKeyDictionary()
        )

    def lineage(self, sandbox: FreezableSandbox) -> SnapshotLineage[S] | None:
        """Return the history of a sandbox from before it was opened, None where there is none."""
        files = self._by_sandbox.get(sandbox)
        return None if files is None else files.lineage

    def freeze(
        self, sandbox: FreezableSandbox, make: Callable[[SnapshotLineage[S], Origin | None], S]
    ) -> S:
        """Return the files with which a sandbox that is not open begins; O(1), on any thread.

        Args:
            sandbox: Its origin is shared from now on.
            make: Makes the snapshot, from the history and the origin of the sandbox.
        """
        with self._lock:
            files = self._by_sandbox.get(sandbox)
            if files is None:
                origin = sandbox.origin
                if origin is not None:
                    origin = sandbox.origin = SharedOrigin(origin)
                files = InitialFiles[S](lambda lineage: make(lineage, origin))
                self._by_sandbox[sandbox] = files
        return files.freeze()


class Background(Protocol):
    """Processes that operations left running: they may change files at any time."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing runs."""
        ...


class WorkspaceTree(Generic[S]):
    """One directory whose files sandboxes of this process read and change.

    Args:
        place: Names the directory; trees of which one lies in the other have places that do.
        door: Path by which this process opens it.
    """

    def __init__(self, place: str, door: str) -> None:
        self.place = place
        self.door = door
        self.lineage: SnapshotLineage[S] | None = None
        """Its history; None as long as nothing of it was frozen."""

        self.n_writers = 0
        """Operations in flight that may change it."""

        self.n_readers = 0
        """Operations in flight that read frozen files and find them here."""

        self._pinned: weakref.ref[S] | None = None

    @property
    def pinned(self) -> S | None:
        """The snapshot of its present files, None where nobody holds one."""
        return None if self._pinned is None else self._pinned()

    @pinned.setter
    def pinned(self, snapshot: S | None) -> None:
        self._pinned = None if snapshot is None else weakref.ref(snapshot)

    def overlaps(self, other: Self) -> bool:
        """Tell whether a change in one is a change in the other."""
        mine, others = f"{self.place.rstrip('/')}/", f"{other.place.rstrip('/')}/"
        return mine.startswith(others) or others.startswith(mine)


class WorkspaceTrees(Generic[S]):
    """The trees of this process, by place; all that waits, waits on the runtime loop."""

    def __init__(self) -> None:
        # A collected tree or snapshot may end in here, on the same thread.
        self._lock = threading.RLock()
        self._by_place: weakref.WeakValueDictionary[str, WorkspaceTree[S]] = (
            weakref.WeakValueDictionary()
        )
        self._frozen: set[WorkspaceTree[S]] = set()
        """Trees with a snapshot: only they are ever in the way."""

        self._changing: set[WorkspaceTree[S]] = set()
        self._background: weakref.WeakKeyDictionary[Background, WorkspaceTree[S]] = (
            weakref.WeakKeyDictionary()
        )
        self._waiting: list[asyncio.Future[None]] = []

    def at(self, root: str) -> WorkspaceTree[S]:
        """Return the tree of a directory, by its real path."""
        with self._lock:
            tree = self._by_place.get(root)
            if tree is None:
                tree = self._by_place[root] = WorkspaceTree(root, root)
            return tree

    def freeze(
        self,
        tree: WorkspaceTree[S],
        lineage: SnapshotLineage[S] | None,
        make: Callable[[SnapshotLineage[S]], S],
    ) -> S:
        """Return the snapshot of `tree` as it is now; made unless somebody holds it. O(1).

        May be called on any thread. What runs in the tree now counts as before: the files are
        those that it leaves.

        Args:
            tree: A directory.
            lineage: The history that it continues, where nothing of it was frozen before.
            make: Makes the snapshot, as the next version of a history.
        """
        with self._lock:
            snapshot = tree.pinned
            if snapshot is None:
                tree.lineage = tree.lineage or lineage or SnapshotLineage()
                tree.pinned = snapshot = make(tree.lineage)
                for each in [each for each in self._frozen if not each.n_readers]:
                    if each.pinned is None:
                        self._frozen.discard(each)
                self._frozen.add(tree)
            return snapshot

    def watch(self, background: Background, tree: WorkspaceTree[S]) -> None:
        """Count with what may run in `tree` in the background from now on."""
        with self._lock:
            self._background[background] = tree

    def is_restless(self, tree: WorkspaceTree[S]) -> bool:
        """Tell whether something in the background may change `tree` now."""
        with self._lock:
            return any(
                not background.is_empty and each.overlaps(tree)
                for background, each in self._background.items()
            )

    def exposed(self, tree: WorkspaceTree[S]) -> list[S]:
        """Return the snapshots that would change with `tree`."""
        with self._lock:
            pinned = [each.pinned for each in self._frozen if each.overlaps(tree)]
        return [each for each in pinned if each is not None and not each.is_secured]

    @asynccontextmanager
    async def writing(self, tree: WorkspaceTree[S]) -> AsyncGenerator[None]:
        """Secure the snapshots of `tree`, then let it change inside the block."""
        while not self._start_writing(tree):
            await self._clear(tree)
        try:
            yield
        finally:
            tree.n_writers -= 1
            if not tree.n_writers:
                self._changing.discard(tree)
            self._wake()

    @asynccontextmanager
    async def reading_frozen(self, tree: WorkspaceTree[S]) -> AsyncGenerator[None]:
        """Read frozen files in `tree` inside the block; nobody changes them there meanwhile."""
        await self.quiet(tree)
        tree.n_readers += 1
        try:
            yield
        finally:
            tree.n_readers -= 1
            self._wake()

    async def quiet(self, tree: WorkspaceTree[S]) -> None:
        """Wait until nothing that may change `tree` is in flight."""
        while any(each.overlaps(tree) for each in self._changing):
            await self._next_change()

    def start_afresh(self) -> None:
        """Take nothing for being in flight, as it is in a forked child."""
        self._lock = threading.RLock()
        for tree in self._changing | self._frozen:
            tree.n_writers = tree.n_readers = 0
        self._changing.clear()
        self._waiting.clear()

    def _start_writing(self, tree: WorkspaceTree[S]) -> bool:
        """Count a writer unless something is in the way."""
        with self._lock:
            touched = [each for each in self._frozen if each.overlaps(tree)]
            if touched and (self.exposed(tree) or any(each.n_readers for each in touched)):
                return False
            for each in touched:
                each.pinned = None
                self._frozen.discard(each)
            tree.n_writers += 1
            self._changing.add(tree)
            return True

    async def _clear(self, tree: WorkspaceTree[S]) -> None:
        """Secure one snapshot that is in the way, or wait for those who read one."""
        unsecured = next(iter(self.exposed(tree)), None)
        if unsecured is not None:
            await unsecured.asecure()
        elif any(each.n_readers for each in list(self._frozen) if each.overlaps(tree)):
            await self._next_change()

    async def _next_change(self) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
