"""Forking while other threads use an index: the child gets it between two uses."""

from __future__ import annotations

import os
import threading
from collections.abc import MutableMapping
from typing import Protocol, TypeVar


class Held(Protocol):
    """What no thread may be using when the process forks."""

    def hold(self) -> None:
        """Wait until nobody uses it, and keep others out."""
        ...

    def let_go(self) -> None:
        """End that, in the parent and in the child."""
        ...


K = TypeVar("K")
H = TypeVar("H", bound=Held)


def hold_at_fork(sharing: threading.Lock, shared: MutableMapping[K, H]) -> None:
    """Hold all of `shared`, and `sharing` that guards it, at each fork; a child starts without.

    SQLite remembers the locks of its connections in the memory of the process. A child that is
    forked in a transaction of its parent would count those as its own: it would wait for them, or
    read without one.
    """

    def hold() -> None:
        sharing.acquire()
        for each in shared.values():
            each.hold()

    def let_go() -> None:
        for each in shared.values():
            each.let_go()
        sharing.release()

    def let_go_in_child() -> None:
        let_go()
        shared.clear()

    if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
        os.register_at_fork(before=hold, after_in_parent=let_go, after_in_child=let_go_in_child)
