"""What a stored session has become, each time its log has grown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from uuid import UUID

from rath.session.graph.provenance import Edge
from rath.session.log.store import SessionStore
from rath.session.persistence.loading.load import load
from rath.session.persistence.loading.unfinished import Unfinished
from rath.session.view.nodes import Node, nodes_of

REST = 4
"""How many times longer than reading the log took nothing is read again: it is read as a whole each
time, and a long one must not keep a core busy. A guess."""

MAX_NOW = 2000
"""Characters of an answer that is being written; its end is shown."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The sessions of a page at one moment."""

    nodes: tuple[Node, ...]
    heads: tuple[Edge, ...]
    """The session that is followed, and the one that it is compared with, if there is one."""

    now: tuple[tuple[str, str], ...]
    """What the run is just doing: a kind, and a text."""

    is_over: bool

    @property
    def state(self) -> str:
        """How the session that is followed stands."""
        return next(node.state for node in self.nodes if node.id == self.heads[0].id)


class Feed:
    """Reads a session again whenever its log has grown; all methods block.

    Args:
        store: Where it is.
        session: Its id.
        compare: A second session, which is read once.
    """

    def __init__(self, store: SessionStore, session: UUID, *, compare: UUID | None = None) -> None:
        self._store = store
        self._session = session
        self._beside = () if compare is None else (load(store, compare).session.as_parent(),)
        self._size = 0
        self._seconds = 0.0

    def read(self) -> Snapshot:
        """Return the session as it is now.

        Raises:
            PersistenceError: It is not there, or it cannot be read.
            SessionDamaged: Its log cannot be believed.
        """
        began = time.monotonic()
        # In this order: a writer that ends in between has written all before.
        is_over = not self._store.is_being_written(self._session)
        loaded = load(self._store, self._session)
        self._size = loaded.size
        heads = (loaded.session.as_parent(), *self._beside)
        nodes = nodes_of(heads)
        if not is_over:
            nodes = tuple(map(self._as_running, nodes))
        now = () if is_over else doing_now(loaded.unfinished)
        self._seconds = time.monotonic() - began
        return Snapshot(nodes, heads, now, is_over)

    def changes(self) -> Iterator[Snapshot]:
        """Yield the session each time it has grown, and once more when its run is over.

        Raises:
            PersistenceError: As for `read`.
        """
        is_over = False
        for _ in self._store.follow(self._session, self._size):
            time.sleep(REST * self._seconds)
            snapshot = self.read()
            is_over = snapshot.is_over
            yield snapshot
        if not is_over:
            yield self.read()

    def _as_running(self, node: Node) -> Node:
        return replace(node, state="running", problem="") if node.id == self._session else node


def doing_now(left: Unfinished | None) -> tuple[tuple[str, str], ...]:
    """Return what a run is doing between its rows: tools that run, and the answer so far."""
    if left is None:
        return ()
    tools = [("runs", f"{intent.tool}, since {intent.at:%H:%M:%S} UTC") for intent in left.intents]
    done = [("done", result.run.tool) for result in left.results]
    text = left.partial_text[-MAX_NOW:]
    return (*done, *tools, *([("writes", text)] if text else []))
