"""Descriptors whose end means something to others: a forked child must not keep them open."""

from __future__ import annotations

import os

_descriptors: set[int] = set()


def keep_from_children(fd: int) -> None:
    """Let a forked child have nothing behind `fd`, until `forget` is called."""
    _descriptors.add(fd)


def forget(fd: int) -> None:
    """Tell that `fd` is closed now: its number may soon stand for another file."""
    _descriptors.discard(fd)


def _drop_in_child() -> None:
    """Put an empty file in the place of each, so that closing it again harms nobody."""
    if _descriptors:
        empty = os.open(os.devnull, os.O_RDWR)
        for fd in _descriptors:
            os.dup2(empty, fd, inheritable=False)
        os.close(empty)
        _descriptors.clear()


if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(after_in_child=_drop_in_child)
