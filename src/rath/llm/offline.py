"""The switch that forbids live calls of models, and the one check that every such call passes."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from rath.errors import OfflineError

_lock = threading.Lock()
_on: set[int] = set()
"""The switches that are on, by identity: each is taken back by itself."""


class Offline:
    """Keeps the process from calling models, from the moment it is made until it is ended."""

    def __init__(self) -> None:
        with _lock:
            _on.add(id(self))

    def end(self) -> None:
        """Take this switch back; calls are made again once no other one is on. Safe to repeat."""
        with _lock:
            _on.discard(id(self))

    def __enter__(self) -> Self:
        with _lock:
            _on.add(id(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


def offline() -> Offline:
    """Forbid live calls of chat models, embeddings and VLMs in this process, in all its threads.

    Holds from now on, or for a block: `with rath.offline(): ...`. Such a call raises OfflineError,
    with nothing sent. Scripted clients and replays answer as ever, and so does a client of your
    own that has an attribute `answers_offline = True`.

    Returns:
        The switch: `end()` takes it back, leaving its block too.

    Example:
        >>> with offline():
        ...     is_offline()
        True
        >>> is_offline()
        False
    """
    return Offline()


def is_offline() -> bool:
    """Tell whether live calls are forbidden now."""
    return bool(_on)


def refuse_live_call(endpoint: str | None, model: str | None, *, kind: str) -> None:
    """Refuse a call that is about to be made where live calls are forbidden.

    Args:
        endpoint: Where it would go, None where that is not known.
        model: The model that it would ask.
        kind: Provider kind, or the class of a client; names who is asked without an endpoint.

    Raises:
        OfflineError: `offline()` holds.
    """
    if _on:
        raise OfflineError(endpoint or kind, model)
