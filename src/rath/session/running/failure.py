"""Where an error was born: a note for the reader of its traceback."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def noting(where: str) -> Generator[None]:
    """Add `where` to an error that leaves the block.

    An error that an input raised must be awaited outside of it: a failure is passed on to every
    session that comes after, and would collect a note of each.
    """
    try:
        yield
    except Exception as exc:
        exc.add_note(where)
        raise
