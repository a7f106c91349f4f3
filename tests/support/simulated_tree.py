"""A simulated tree whose every change has a known cause, and operations on it in any order."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

from rath._core.blobs import Blob
from rath.backend.changes import EffectPolicy, FileState, ScanCache, ScannedFile, TreeState
from rath.backend.effects import EffectKind, FileEffect, observe_effects
from rath.backend.host.changes import (
    TreeScans,
    WatchedOperation,
    WatchedTree,
    exact_change,
    tick,
    working_on,
)
from rath.backend.host.scan import Keep

PATHS = ("p", "q", "r")
MODE = 0o100644
POLICY = EffectPolicy(keep_contents=False)
NOBODY, TOOL = "nobody", "a file tool"


def digest(content: int) -> str:
    return sha256(str(content).encode()).hexdigest()


@dataclass
class Change:
    """One true change: no content ever comes twice."""

    path: str
    before: int | None
    after: int | None
    by: str
    at: int


@dataclass
class World:
    """A tree whose files hold numbers, and what happened in it."""

    files: dict[str, int] = field(default_factory=dict[str, int])
    log: list[Change] = field(default_factory=list[Change])
    meanwhile: Callable[[], None] = lambda: None
    """Happens between looking at one file and the next."""

    contents: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __call__(self, policy: EffectPolicy, *, known: ScanCache, keep: Keep | None) -> TreeState:
        found = TreeState()
        for number, path in enumerate(PATHS):
            self.meanwhile()
            content = self.files.get(path)
            if content is not None:
                key = (MODE, number, 0, 1, content, content)
                state = FileState(digest(content), len(str(content)), MODE)
                found.files[path] = known.setdefault(key, ScannedFile(key, state, is_settled=True))
        self.meanwhile()
        return found

    def change(self, path: str, by: str, *, is_removal: bool) -> Change:
        after = None if is_removal else next(self.contents)
        change = Change(path, self.files.get(path), after, by, tick())
        if after is None:
            self.files.pop(path, None)
        else:
            self.files[path] = after
        self.log.append(change)
        return change

    def blob(self, content: int | None) -> Blob | None:
        return None if content is None else Blob(digest(content), len(str(content)))


@dataclass
class Run:
    """One operation of the simulation."""

    name: str
    operation: WatchedOperation
    view: TreeScans | None
    asked: int = field(default_factory=tick)
    """When it was asked to look before it runs."""
    before: dict[str, int] = field(default_factory=dict[str, int])


class Simulation:
    """Runs operations, file tools and outsiders on a world, in any order."""

    def __init__(self, draw: Callable[[int], int], *, is_quiet: bool = False) -> None:
        self.is_quiet = is_quiet
        """Whether nothing changes during a scan."""
        self.world = World()
        self.tree = WatchedTree("simulated", self.world)
        self.draw = draw
        self.running: list[Run] = []
        self.over: list[Run] = []
        self.exact: list[FileEffect] = []
        self._names = itertools.count(1)

    def step(self) -> None:
        action = (self.open, self.open_unseen, self.write, self.write, self.use_tool, self.close)
        action[self.draw(len(action))]()

    def open(self) -> None:
        view = self.tree.scans(POLICY)
        run = Run(f"run {next(self._names)}", view.open(), view)
        self._look(lambda: view.scan(tick()))
        run.before = dict(self.world.files)
        self.tree.start(run.operation)
        self.running.append(run)

    def open_unseen(self) -> None:
        run = Run(f"unseen {next(self._names)}", WatchedOperation(), None)
        self.tree.start(run.operation)
        self.running.append(run)

    def write(self) -> None:
        authors = [NOBODY, *(run.name for run in self.running if run.operation.ended is None)]
        by = authors[self.draw(len(authors))]
        path = PATHS[self.draw(len(PATHS))]
        self.world.change(path, by, is_removal=self.draw(3) == 0)

    def use_tool(self) -> None:
        with observe_effects() as effects, working_on(self.tree), exact_change() as change:
            done = self.world.change(PATHS[self.draw(len(PATHS))], TOOL, is_removal=False)
            before, after = self.world.blob(done.before), self.world.blob(done.after)
            kind: EffectKind = "created" if before is None else "changed"
            before_mode = None if before is None else MODE
            change.note(
                FileEffect(done.path, kind, before, after, before_mode=before_mode, after_mode=MODE)
            )
        self.exact += effects

    def close(self) -> None:
        if not self.running:
            return
        run = self.running.pop(self.draw(len(self.running)))
        self._end(run)
        if run.view is not None:
            view = run.view
            self._look(lambda: view.finish(run.operation))
            view.close()
        self.tree.forget_ended()
        self.over.append(run)

    def _end(self, run: Run) -> None:
        if run.operation.ended is None:
            self.tree.end(run.operation)

    def _end_one(self) -> None:
        """One ends while a scan runs; another scan looks for its effects later."""
        if self.running:
            self._end(self.running[self.draw(len(self.running))])

    def _look(self, look: Callable[[], None]) -> None:
        def meanwhile() -> None:
            if not self.is_quiet and self.draw(2) == 0:
                (self.write, self.write, self._end_one, self.open_unseen)[self.draw(4)]()

        self.world.meanwhile = meanwhile
        look()
        self.world.meanwhile = lambda: None
