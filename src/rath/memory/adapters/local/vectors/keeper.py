"""Keeps the vectors of a store complete, and gives the vectors of queries."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TypeVar

from rath._async.runtime import Running, runtime
from rath._core.text import valid_unicode
from rath.memory.adapters.local.indexing.catalog import Catalog
from rath.memory.adapters.local.indexing.index import NoteIndex
from rath.memory.adapters.local.layout import Kind, logger
from rath.memory.adapters.local.vectors import drafts
from rath.memory.adapters.local.vectors.choices import Choices
from rath.memory.adapters.local.vectors.embedding import Embedding, EmbeddingFailed
from rath.memory.adapters.local.vectors.nearest import Near, nearest
from rath.memory.adapters.local.vectors.shelf import Batch, Shelf

T = TypeVar("T")

INLINE = 64
"""Documents that get their vectors while a search waits; more of them do in the background."""

MAX_QUERY_CHARS = 2000
"""Further characters of a query count as words only."""

PATIENCE_SECONDS = 10.0
"""How long a search waits for vectors by default; a guess."""

PAUSE_SECONDS = 30.0
"""After a failure no vectors are asked for so long, and no further warning is given; a guess."""

_BLOCK = 128
_MAX_QUERIES = 256
_MAX_IN_VAIN = 3


class StoreVectors:
    """The vectors of one open store; its coroutines run on the runtime's loop.

    Args:
        root: Directory of the store.
        catalog: Its index.
        embedding: The model.
        choices: How the store ranks.
        patience: Seconds that a search waits for vectors before it goes by words.
        clock: Seconds that only grow; for tests.
    """

    def __init__(
        self,
        root: Path,
        catalog: Catalog,
        embedding: Embedding,
        *,
        choices: Choices,
        patience: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.choices = choices
        self._root = root
        self._catalog = catalog
        self._embedding = embedding
        self._patience = patience
        self._clock = clock
        self._shelf = Shelf(root, embedding.identity)
        self._turn = asyncio.Lock()
        self._queries: OrderedDict[str, bytes] = OrderedDict()
        self._filling: Running | None = None
        self._again = False
        self._paused_until = float("-inf")
        self._is_closed = False

    async def aclose(self) -> None:
        """End the work in the background; it goes on when the store is used again."""
        if self._filling is not None:
            runtime().cancel(self._filling)
            ended = asyncio.wrap_future(self._filling.future)
            await asyncio.wait({ended})
            if not ended.cancelled():
                ended.exception()  # looked at, so that nobody is told of what was meant
        await runtime().call_in_worker(self._close)

    async def aquery(self, text: str) -> bytes | None:
        """Return the vector of a query once the store is complete; None where words must do.

        What cannot be embedded now is told in a warning, once in a while.
        """
        asked = valid_unicode(text.strip()[:MAX_QUERY_CHARS])
        if not asked:
            return None
        try:
            async with asyncio.timeout(self._patience):
                await self._acomplete(must_wait=False)
                return await self._avector(asked)
        except TimeoutError:
            self._pause(f"it took more than {self._patience:g} s")
        except EmbeddingFailed as exc:
            self._pause(str(exc))
        except (sqlite3.Error, OSError) as exc:
            self._pause(f"the vectors cannot be stored: {exc}")
        return None

    async def achanged(self, *, wait: bool, timeout: float | None = None) -> None:
        """See to the vectors of what was just written: now, or in the background.

        Args:
            wait: Wait for them.
            timeout: Seconds after which the background goes on with it.
        """
        if not wait:
            self.fill_soon()
            return
        try:
            async with asyncio.timeout(timeout):
                await self._acomplete(must_wait=True)
        except TimeoutError:
            self.fill_soon()
        except EmbeddingFailed as exc:
            self._pause(str(exc))
        except (sqlite3.Error, OSError) as exc:
            self._pause(f"the vectors cannot be stored: {exc}")

    def fill_soon(self) -> None:
        """Let the background go on, unless it does; called on the runtime's loop."""
        self._again = True
        if self._is_filling or self._is_paused() or self._is_closed:
            return
        # Not in the context of the caller, whose run may be over long before this.
        self._filling = runtime().submit(
            self._afill_all,
            label=f"vectors of the memory {self._root.name}",
            context=contextvars.Context(),
        )
        # Nothing is lost when the program ends meanwhile: that is no news for anybody.
        self._filling.is_given_up = True

    def nearest(
        self,
        vector: bytes,
        limit: int,
        *,
        below: str | None,
        hidden: Collection[tuple[str, str]] = (),
    ) -> dict[Kind, list[Near]] | None:
        """Return the nearest documents of each kind, as `nearest.nearest` does; blocks.

        Returns:
            None where words must do, since the vectors cannot be read.
        """
        try:
            return nearest(
                self._catalog,
                self._shelf,
                vector,
                limit,
                floor=self.choices.min_similarity,
                below=below,
                hidden=hidden,
            )
        except OSError as exc:
            self._pause(f"the vectors cannot be read: {exc}")
            return None

    async def _avector(self, text: str) -> bytes | None:
        found = self._queries.get(text)
        if found is None:
            if self._is_paused():
                return None
            [found] = await drafts.aembed(self._embedding, [text])
            if found is None:
                return None
            await self._in_worker(partial(self._expect_length, n_bytes=len(found)))
        self._queries[text] = found
        self._queries.move_to_end(text)
        while len(self._queries) > _MAX_QUERIES:
            self._queries.popitem(last=False)
        return found

    def _expect_length(self, index: NoteIndex, *, n_bytes: int) -> None:
        """Start afresh when the model gives vectors of another length than it did."""
        view = self._shelf.view(index)
        if view is not None and view.matrix.shape[1] * 4 != n_bytes:
            self._shelf.reset(index)
            self._queries.clear()
            self._again = True

    async def _acomplete(self, *, must_wait: bool) -> None:
        """Embed the newest documents that wait for it; of many, leave most to the background."""
        if self._is_paused():
            await runtime().call_in_worker(self._catalog.catch_up)
            return
        choose = partial(drafts.choose_newest, self._shelf, INLINE)
        chosen = await self._in_worker(choose, first=self._catalog.catch_up)
        if chosen.documents and (must_wait or not self._is_filling or chosen.is_all):
            async with self._turn:
                # Somebody else may have made them meanwhile.
                chosen = await self._in_worker(choose)
                await self._afill(chosen)
        if not chosen.is_all or self._again:
            self.fill_soon()

    async def _afill_all(self) -> None:
        try:
            # What is written meanwhile sets the mark again.
            while self._again:
                await self._afill_waiting()
                await self._in_worker(self._shelf.compact)
        except EmbeddingFailed as exc:
            self._pause(str(exc))
        except (sqlite3.Error, OSError) as exc:
            self._pause(f"the vectors cannot be stored: {exc}")

    async def _afill_waiting(self) -> None:
        in_vain = 0
        while self._again:
            self._again = False
            async with self._turn:
                chosen = await self._in_worker(partial(drafts.choose_oldest, self._shelf, _BLOCK))
                is_done = await self._afill(chosen)
            in_vain = 0 if is_done else in_vain + 1
            if in_vain == _MAX_IN_VAIN:
                raise EmbeddingFailed("the model keeps giving vectors of different lengths")
            self._again |= not (chosen.is_all and is_done)

    async def _afill(self, chosen: drafts.Chosen) -> bool:
        """Embed documents and store their vectors; False when some of them still wait."""
        if not chosen.documents:
            return True
        read = partial(
            drafts.read, self._shelf, chosen, root=self._root, model_name=self._embedding.name
        )
        draft = await runtime().call_in_worker(partial(read, use=self._catalog.use))
        made = await drafts.aembed_all(self._embedding, draft.texts)
        vectors = drafts.of_one_length(made, draft.vectors)
        batch = Batch(chosen.model, draft.documents, vectors, chosen.seen)
        return await self._in_worker(lambda index: self._shelf.add(index, batch))

    async def _in_worker(
        self, act: Callable[[NoteIndex], T], *, first: Callable[[], None] = lambda: None
    ) -> T:
        """Run a function on the index, after another one without it."""

        def run(index: NoteIndex) -> T:
            if self._is_closed:
                raise EmbeddingFailed("the store is being closed")
            return act(index)

        def both() -> T:
            first()
            return self._catalog.use(run)

        return await runtime().call_in_worker(both)

    def _close(self) -> None:
        self._is_closed = True
        if self._shelf.is_used:
            # Under the catalog's lock: an abandoned job may still be at work on the file.
            try:
                self._catalog.use(lambda _: self._shelf.close())
            except sqlite3.Error:
                self._shelf.close()

    @property
    def _is_filling(self) -> bool:
        filling = self._filling
        # A child of a fork has no part in what its parent began.
        return filling is not None and filling.pid == os.getpid() and not filling.future.done()

    def _is_paused(self) -> bool:
        return self._clock() < self._paused_until

    def _pause(self, reason: str) -> None:
        if self._is_paused() or self._is_closed:
            return
        self._paused_until = self._clock() + PAUSE_SECONDS
        logger.warning(
            "the memory %s goes by words only for %g s: no vectors from %s: %s",
            self._root,
            PAUSE_SECONDS,
            self._embedding.name,
            reason,
        )
