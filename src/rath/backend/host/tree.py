"""Which operations ran on a tree when, and so which of them may have changed what was seen.

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

import os
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from weakref import WeakValueDictionary

from rath.backend.effects import FileEffect, is_observed, note_effect
from rath.backend.host.layer import Layer
from rath.backend.host.paths import Workspace
from rath.backend.host.scan import scan
from rath.backend.host.view import Operation, Operations, Source, View, tick
from rath.backend.manifest import EffectPolicy


class Tree:
    """A directory tree and what runs on it; shared by all sandboxes that work in it.

    Any thread may call it. Operations and file tools on a tree above or below count as well.

    Args:
        root: Its real path, or the door to a layer.
        source: Looks at it; a scan of the directory by default.
    """

    def __init__(self, root: str, source: Source | None = None) -> None:
        self.root = root
        self.pid = os.getpid()
        self.still = threading.Lock()
        """Held by scans and by each exact change, so that they never overlap."""
        self._source: Source = source or partial(scan, root)
        self._lock = threading.Lock()
        self.operations = Operations()
        self._views: dict[EffectPolicy, View] = {}

    def view(self, policy: EffectPolicy) -> View:
        """Return what is known of its files under a policy."""
        with self._lock:
            if policy not in self._views:
                self._views[policy] = View(policy, self._source, self.still, self.operations)
            return self._views[policy]

    def begin(self, operation: Operation) -> None:
        """Tell that `operation` runs from now on."""
        with _registry_lock:
            operation.began = tick()
            for tree in _related(self):
                tree.operations.add(operation)

    def end(self, operation: Operation) -> None:
        """Tell that `operation` has ended."""
        operation.ended = tick()
        with _registry_lock:
            trees = _related(self)
        for tree in trees:
            tree.forget_ended()

    def forget_ended(self) -> None:
        """Drop the operations that no change can belong to any more."""
        floors = [floor for view in self.watched_views() if (floor := view.floor) is not None]
        self.operations.forget_ended(min(floors, default=None))

    def watched_views(self) -> list[View]:
        """Return the views through which somebody looks now."""
        with self._lock:
            return [view for view in self._views.values() if view.n_windows]


@dataclass(slots=True)
class Watch:
    """Holds what a sandbox knows of the tree that it works in."""

    held: Tree | None = None

    def at(self, workspace: Workspace, layer: Layer | None = None) -> Tree:
        """Return the tree of a workspace, and hold it until another one is asked for.

        Args:
            workspace: Where it is.
            layer: What its files are made of.
        """
        held = self.held
        if held is None or held.root != workspace.door or held.pid != os.getpid():
            # A layer is its sandbox's own, and where it is mounted others see something else.
            is_shared = workspace.door == workspace.root
            source = None if layer is None else layer.changes()
            held = tree_at(workspace.root) if is_shared else Tree(workspace.door, source)
            self.held = held
        return held


_registry_lock = threading.Lock()
_trees: WeakValueDictionary[str, Tree] = WeakValueDictionary()
_current: ContextVar[Tree | None] = ContextVar("rath_tree_of_operation", default=None)


def tree_at(root: str) -> Tree:
    """Return the tree at a real path; the same one for all who ask while somebody holds it."""
    with _registry_lock:
        tree = _trees.get(root)
        if tree is None:
            tree = Tree(root)
            running = {id(op): op for each in _related(tree) for op in each.operations.running()}
            _trees[root] = tree
            for operation in running.values():
                tree.operations.add(operation)
        return tree


def _related(tree: Tree) -> list[Tree]:
    """Return `tree` and those above and below it, in the order of their roots."""
    found = {id(tree): tree}
    for other in list(_trees.values()):
        if _is_below(other.root, tree.root) or _is_below(tree.root, other.root):
            found[id(other)] = other
    return sorted(found.values(), key=lambda each: each.root)


def _is_below(path: str, root: str) -> bool:
    return f"{path}/".startswith(root.rstrip("/") + "/")


@contextmanager
def working_on(tree: Tree) -> Generator[None]:
    """Say on which tree the file tools inside work, also those on worker threads."""
    token = _current.set(tree)
    try:
        yield
    finally:
        _current.reset(token)


@dataclass(slots=True)
class ExactChange:
    """One change of a file by a file tool."""

    tree: Tree | None
    views: list[tuple[Tree, View]] = field(default_factory=list[tuple[Tree, View]])

    @property
    def is_wanted(self) -> bool:
        """Whether anybody wants to know what was changed."""
        return bool(self.views) or is_observed()

    def note(self, effect: FileEffect) -> None:
        """Tell what was changed."""
        note_effect(effect)
        for tree, view in self.views:
            assert self.tree is not None
            path = _path_in(tree.root, os.path.join(self.tree.root, effect.path))
            if path is not None:
                view.note_exact(replace(effect, path=path))


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
                stack.enter_context(tree.still)
                change.views += [(tree, view) for view in tree.watched_views()]
        yield change


def _forget_after_fork() -> None:
    """Start afresh in a forked child: nothing runs there, and locks may be held for ever."""
    global _registry_lock
    _registry_lock = threading.Lock()
    _trees.clear()


if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_after_fork)


def _path_in(root: str, path: str) -> str | None:
    above = root.rstrip("/") + "/"
    return path[len(above) :] if path.startswith(above) else None
