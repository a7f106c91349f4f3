"""What an open store extracts in the background."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rath._async.runtime import AtExit, Running, runtime
from rath.errors import MemoryBackendError
from rath.memory.adapters.local.extraction.model import ChatModel, chat_model_of
from rath.memory.adapters.local.layout import InvalidUri, logger, relative_path
from rath.memory.uri import to_public_uri

DEFAULT_URI = "memory://user/memories/extracted"

MAX_SECONDS = 900.0
"""Three times what one call may take by default; only a client that never answers comes to it."""


class Jobs:
    """The extractions of a store that are under way, which its closing waits for."""

    def __init__(self) -> None:
        self.is_closing = False
        """What is pending waits for the next opening."""
        self._running: set[Running] = set()

    def start(
        self, make: Callable[[], Coroutine[Any, Any, Any]], *, label: str, at_exit: AtExit
    ) -> Running:
        """Start one in the background; called on the runtime thread."""
        # Not in the context of the caller, whose run may be over long before this.
        running = runtime().submit(
            make, label=label, context=contextvars.Context(), at_exit=at_exit
        )
        self._running.add(running)
        running.future.add_done_callback(partial(self._ended, running))
        return running

    async def await_all(self) -> None:
        """Wait for those that are under way."""
        running = [asyncio.wrap_future(each.future) for each in self._running]
        await asyncio.gather(*running, return_exceptions=True)

    async def aclose(self) -> None:
        """Let what has begun end; no more of what earlier processes left begins."""
        self.is_closing = True
        await self.await_all()

    def _ended(self, running: Running, done: Future[Any]) -> None:
        self._running.discard(running)
        error = done.exception()
        if error is not None and not isinstance(error, asyncio.CancelledError):
            # What a model does wrong is a result; this was not foreseen.
            logger.error("%s ended: %r", running.label, error)


@dataclass(frozen=True, slots=True)
class Extraction:
    """How a store makes notes of transcripts."""

    model: ChatModel
    uri: str = DEFAULT_URI
    """The directory below which the notes stand, whatever the model says."""
    max_seconds: float = MAX_SECONDS
    """How long the model may take for one transcript."""
    jobs: Jobs = field(default_factory=Jobs)


def extraction_of(options: Mapping[str, Any]) -> Extraction | None:
    """Return what the options of a store say of extraction; None when they name no model.

    Raises:
        MemoryBackendError: The model cannot be used, or `extraction_uri` is no directory of notes.
    """
    model = chat_model_of(options)
    uri = options.get("extraction_uri") or DEFAULT_URI
    try:
        relative_path(str(uri))
    except InvalidUri as exc:
        raise MemoryBackendError(
            f"the option extraction_uri of the memory store cannot be used: {exc}. By default it "
            f"is {DEFAULT_URI!r}"
        ) from exc
    return None if model is None else Extraction(model, to_public_uri(str(uri)))
