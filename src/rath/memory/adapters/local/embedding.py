"""The embedding model of a store, and the worker that keeps the vectors of the store complete."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
import os
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from rath._async.bridge import call_either
from rath._async.runtime import Running, runtime
from rath._core.dataclasses import dataclass
from rath._core.text import valid_unicode
from rath._installation import install_advice
from rath.errors import InvalidRequestError, MemoryBackendError, RathError, UntrustedConfig
from rath.llm.embedding import EmbeddingClient, EmbeddingProvider, embedding_client_for
from rath.memory.adapters.local.catalog import Catalog
from rath.memory.adapters.local.files import read_document
from rath.memory.adapters.local.index import Match, NoteIndex
from rath.memory.adapters.local.layout import Kind, logger
from rath.memory.adapters.local.vectors import (
    PendingDocument,
    VectorBatch,
    VectorModel,
    VectorStore,
    digest_of,
    find_pending,
    parts_of,
    sidecar_vector,
)

T = TypeVar("T")

RankingMode = Literal["hybrid", "vectors", "bm25"]

MIN_SIMILARITY = 0.2
"""Least cosine of a hit that shares no word with the query.

Chosen with all-MiniLM-L6-v2 on 20 questions and 30 notes in four languages: with this and
`RELATIVE_FLOOR` 19 of the answers were found, beside 0.65 other notes for each question, and
nothing for questions about other matters. Models differ: some give 0.7 to any two texts.
"""

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
_REFUSALS = 3
"""So many refusals in a row, without an answer, are no matter of the texts."""

_LOCAL = "local"
"""Names the model inside the process where no configured provider has that name."""

_KINDS_OF_OBJECTS = (
    "an EmbeddingProvider, an EmbeddingClient, or an object with embed(texts) or embed_one(text)"
)


@dataclass(frozen=True, slots=True)
class RankingChoices:
    """Which lists make the order, and how close a vector must be."""

    mode: RankingMode
    min_similarity: float = MIN_SIMILARITY


def choices_of(options: Mapping[str, Any], *, has_embedding: bool) -> RankingChoices:
    """Return the choices of a store's options.

    Raises:
        MemoryBackendError: One is out of its range, or needs an embedding model.
    """
    mode: RankingMode = options.get("ranking") or ("hybrid" if has_embedding else "bm25")
    if mode not in get_args(RankingMode):
        raise MemoryBackendError(
            f"ranking is {mode!r}; expected one of {', '.join(get_args(RankingMode))}"
        )
    if mode != "bm25" and not has_embedding:
        raise MemoryBackendError(
            f"the ranking {mode!r} needs vectors; name an embedding model by the option "
            "embedding_provider or embedding"
        )
    least = options.get("min_similarity")
    if least is None:
        return RankingChoices(mode)
    if isinstance(least, bool) or not isinstance(least, int | float) or not 0 <= least <= 1:
        raise MemoryBackendError(f"min_similarity is {least!r}; expected a number from 0 to 1")
    return RankingChoices(mode, float(least))


class EmbeddingFailed(Exception):
    """No vectors came; the cause is the error of the model.

    Args:
        message: What happened.
        is_refusal: The model refused these texts; others may work.
    """

    def __init__(self, message: str, *, is_refusal: bool = False) -> None:
        self.is_refusal = is_refusal
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Embedding:
    """A model that gives a vector for each text."""

    name: str
    """As OpenRath 1.3 wrote it beside the vectors that it made."""
    identity: str
    """16 hex digits; vectors of different identities are never compared."""
    ask: Callable[[Sequence[str]], Coroutine[Any, Any, Any]]

    async def avectors(self, texts: Sequence[str]) -> list[bytes | None]:
        """Return the vectors of texts at length 1, in their order; None for one without direction.

        Raises:
            EmbeddingFailed: There are none, for whatever reason.
        """
        if not texts:
            return []
        try:
            found = await self.ask(texts)
            n_found = len(found)
        except Exception as exc:  # code of a user: any failure leaves words alone
            is_refusal = isinstance(exc, ValueError | InvalidRequestError)
            raise EmbeddingFailed(f"{type(exc).__name__}: {exc}", is_refusal=is_refusal) from exc
        if n_found != len(texts):
            raise EmbeddingFailed(f"{n_found} vectors came for {len(texts)} texts")
        return await runtime().call_in_worker(partial(_normalised, found))

    async def avectors_by_digest(self, texts: Mapping[bytes, str]) -> dict[bytes, bytes | None]:
        """Return the vectors of texts by their digests; None for one that the model refuses.

        Raises:
            EmbeddingFailed: There are none.
        """
        try:
            vectors = await self.avectors(list(texts.values()))
            return dict(zip(texts, vectors, strict=True))
        except EmbeddingFailed as exc:
            if not exc.is_refusal or len(texts) == 1:
                raise
        found: dict[bytes, bytes | None] = {}
        for digest, text in texts.items():
            try:
                [found[digest]] = await self.avectors([text])
            except EmbeddingFailed as alone:
                is_hopeless = len(found) + 1 == _REFUSALS and not any(found.values())
                if is_hopeless or not alone.is_refusal:
                    raise
                found[digest] = None
        if not any(found.values()):
            raise EmbeddingFailed("the model refuses every text")
        return found


def _normalised(found: Any) -> list[bytes | None]:
    from rath.memory.adapters.local.matrix import normalised

    try:
        return normalised(found)
    except ValueError as exc:
        raise EmbeddingFailed(str(exc)) from exc


def names_embedding(options: Mapping[str, Any]) -> bool:
    """Return whether the options of a store name an embedding model."""
    return not (options.get("embedding") is None and options.get("embedding_provider") is None)


def embedding_of(options: Mapping[str, Any]) -> Embedding | None:
    """Return the model that the options of a store name; None when they name none.

    Without numpy there is none either, and a warning says so: words alone find most.

    Raises:
        MemoryBackendError: It cannot be used: there is no such provider, a package of the model
            is missing, or the object has no method to embed.
    """
    if not names_embedding(options):
        return None
    try:
        import_module("numpy")  # a broken installation counts as none
    except ImportError as exc:
        logger.warning(
            "this memory store finds by words alone: comparing vectors needs numpy, which cannot "
            "be imported (%s). It needs %s; or leave out the options embedding and "
            "embedding_provider",
            exc,
            install_advice("vectors"),
        )
        return None
    source, model_name = options.get("embedding"), options.get("embedding_model")
    if source is None:
        source = _configured(options.get("embedding_provider"))
    if isinstance(source, EmbeddingProvider):
        model = source.model
        try:
            source = embedding_client_for(source)
        except UntrustedConfig:
            raise
        except (RathError, ValueError) as exc:
            raise MemoryBackendError(
                f"the embedding model {model!r} of a memory store cannot be used: {exc}"
            ) from exc
    if isinstance(source, EmbeddingClient):
        provider = source.provider
        name = str(model_name or provider.model)
        kind = provider.provider_kind or source.kind
        return Embedding(name, _identity(kind, name, provider.dimensions), source.aembed)
    many, one = getattr(source, "embed", None), getattr(source, "embed_one", None)
    if not callable(many) and not callable(one):
        raise MemoryBackendError(
            f"embedding must be {_KINDS_OF_OBJECTS}, got {type(source).__name__}"
        )
    own = getattr(source, "embedding_model", None) or getattr(source, "model", None)
    name = str(model_name or (own if isinstance(own, str) else type(source).__name__))

    async def ask(texts: Sequence[str]) -> Any:
        if callable(many):
            return await call_either(many, list(texts))
        assert callable(one)
        return [await call_either(one, text) for text in texts]

    return Embedding(name, _identity("object", name, None), ask)


def _configured(name: object) -> EmbeddingProvider:
    if not isinstance(name, str):
        raise MemoryBackendError(
            f"embedding_provider must be the name of an entry of llm.providers, got "
            f"{type(name).__name__}; {_KINDS_OF_OBJECTS} goes into the option embedding"
        )
    try:
        return EmbeddingProvider.from_config(name)
    except KeyError as exc:
        if name == _LOCAL:
            return EmbeddingProvider.local()
        raise MemoryBackendError(
            f"the embedding_provider {name!r} of a memory store is no entry of llm.providers in "
            "the config; add it there, or use 'local' for the model inside the process"
        ) from exc


def _identity(kind: str, name: str, dimensions: int | None) -> str:
    return hashlib.sha256(json.dumps([kind, name, dimensions]).encode()).hexdigest()[:16]


class _Chosen(NamedTuple):
    """Documents that get their vectors next."""

    model: VectorModel
    documents: list[PendingDocument]
    seen: int
    """Up to which document all have their vectors then."""
    is_all: bool
    """Whether no others wait."""


class EmbeddingWorker:
    """Embeds the documents of one open store; its coroutines run on the runtime's loop.

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
        choices: RankingChoices,
        patience: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.choices = choices
        self._root = root
        self._catalog = catalog
        self._embedding = embedding
        self._patience = patience
        self._clock = clock
        self._vectors = VectorStore(root, embedding.identity)
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

        A failure is logged as a warning, once in a while.
        """
        query = valid_unicode(text.strip()[:MAX_QUERY_CHARS])
        if not query:
            return None

        async def ask() -> bytes | None:
            await self._acomplete(must_wait=False)
            return await self._avector(query)

        try:
            return await self._aor_pause(ask, seconds=self._patience)
        except TimeoutError:
            self._pause(f"it took more than {self._patience:g} s")
            return None

    async def achanged(self, *, wait: bool, timeout: float | None = None) -> None:
        """See to the vectors of new documents: now, or in the background.

        Args:
            wait: Wait for them.
            timeout: Seconds after which the background goes on with it.
        """
        if not wait:
            self.fill_soon()
            return
        try:
            await self._aor_pause(partial(self._acomplete, must_wait=True), seconds=timeout)
        except TimeoutError:
            self.fill_soon()

    def fill_soon(self) -> None:
        """Let the background go on, unless it does; called on the runtime's loop."""
        self._again = True
        if self._is_filling or self._is_paused() or self._is_closed:
            return
        # Not in the context of the caller, whose run may be over long before this.
        self._filling = runtime().submit(
            partial(self._aor_pause, self._afill_all),
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
    ) -> dict[Kind, list[Match]] | None:
        """Return the nearest documents of each kind, as `matrix.nearest` does; blocks.

        Returns:
            None where words must do, since the vectors cannot be read.
        """
        from rath.memory.adapters.local.matrix import nearest

        floor = self.choices.min_similarity
        try:
            return nearest(
                self._catalog, self._vectors, vector, limit, floor=floor, below=below, hidden=hidden
            )
        except OSError as exc:
            self._pause(f"the vectors cannot be read: {exc}")
            return None

    async def _aor_pause(
        self, act: Callable[[], Coroutine[Any, Any, T]], *, seconds: float | None = None
    ) -> T | None:
        """Run a coroutine function; a failure gives None, and pauses all work.

        Raises:
            TimeoutError: It took longer than `seconds`.
        """
        try:
            async with asyncio.timeout(seconds):
                return await act()
        except EmbeddingFailed as exc:
            self._pause(str(exc))
        except (sqlite3.Error, OSError) as exc:
            if isinstance(exc, TimeoutError) and seconds is not None:
                raise
            self._pause(f"the vectors cannot be stored: {exc}")
        return None

    async def _avector(self, text: str) -> bytes | None:
        found = self._queries.get(text)
        if found is None:
            if self._is_paused():
                return None
            [found] = await self._embedding.avectors([text])
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
        view = self._vectors.view(index)
        if view is not None and view.matrix.shape[1] * 4 != n_bytes:
            self._vectors.reset(index)
            self._queries.clear()
            self._again = True

    async def _acomplete(self, *, must_wait: bool) -> None:
        """Embed the newest documents that wait for it; of many, leave most to the background."""
        await runtime().call_in_worker(self._catalog.catch_up)
        if self._is_paused():
            return
        choose = partial(self._choose, limit=INLINE, newest_first=True)
        chosen = await self._in_worker(choose)
        if chosen.documents and (must_wait or not self._is_filling or chosen.is_all):
            async with self._turn:
                # Somebody else may have made them meanwhile.
                chosen = await self._in_worker(choose)
                await self._afill(chosen)
        if not chosen.is_all or self._again:
            self.fill_soon()

    async def _afill_all(self) -> None:
        in_vain = 0
        # A write meanwhile sets the mark again.
        while self._again:
            self._again = False
            async with self._turn:
                choose = partial(self._choose, limit=_BLOCK, newest_first=False)
                chosen = await self._in_worker(choose)
                is_done = await self._afill(chosen)
            in_vain = 0 if is_done else in_vain + 1
            if in_vain == _MAX_IN_VAIN:
                raise EmbeddingFailed("the model keeps giving vectors of different lengths")
            self._again |= not (chosen.is_all and is_done)
            if not self._again:
                await self._in_worker(self._vectors.compact)

    def _choose(self, index: NoteIndex, *, limit: int, newest_first: bool) -> _Chosen:
        """Choose documents that wait; those that have waited longest, or the newest."""
        model = self._vectors.model(index)
        last = index.last_id()
        found = find_pending(index, model, limit + 1, newest_first=newest_first)
        if len(found) <= limit:
            return _Chosen(model, found, last, is_all=True)
        seen = model.seen if newest_first else found[limit - 1].id
        return _Chosen(model, found[:limit], seen, is_all=False)

    async def _afill(self, chosen: _Chosen) -> bool:
        """Embed documents and store their vectors; False when some of them still wait."""
        if not chosen.documents:
            return True
        documents, texts, sidecars = await runtime().call_in_worker(partial(self._read, chosen))
        found = await self._embedding.avectors_by_digest(texts)
        lengths = {len(vector) for vector in found.values() if vector is not None}
        if len(lengths) > 1:
            raise EmbeddingFailed("the model gave vectors of different lengths")
        lengths |= {len(vector) for vector in sidecars.values() if vector is not None}
        vectors = {**sidecars, **found} if len(lengths) <= 1 else found
        batch = VectorBatch(chosen.model, documents, vectors, chosen.seen)
        return await self._in_worker(lambda index: self._vectors.add(index, batch))

    def _read(
        self, chosen: _Chosen
    ) -> tuple[dict[int, list[bytes]], dict[bytes, str], dict[bytes, bytes | None]]:
        """Read documents and find out which of their texts have no vector; blocks.

        Returns:
            Digests of the texts of each document; the texts to embed by digest; and vectors that
            1.3 left beside notes, all of one length.
        """
        documents: dict[int, list[bytes]] = {}
        texts: dict[bytes, str] = {}
        notes: dict[bytes, Path] = {}
        for each in chosen.documents:
            path = self._root / each.directory / each.name
            document = read_document(path, each.kind)
            if document is None:
                continue
            parts = parts_of(document.texts)
            digests = documents[each.id] = [digest_of(part) for part in parts]
            texts.update(zip(digests, parts, strict=True))
            if each.kind == "note" and len(parts) == 1:
                notes[digests[0]] = path
        known = self._catalog.use(lambda index: self._vectors.known(index, texts))
        dimension = self._vectors.dimension
        found: dict[bytes, bytes | None] = {}
        for digest in notes.keys() - known:
            vector = sidecar_vector(notes[digest], self._embedding.name)
            if vector is not None and dimension in {None, len(vector)}:
                [unit] = _normalised([vector])
                if unit is not None:
                    dimension = len(vector)
                    found[digest] = unit
        wanted = {
            digest: text
            for digest, text in texts.items()
            if digest not in known and digest not in found
        }
        return documents, wanted, found

    async def _in_worker(self, act: Callable[[NoteIndex], T]) -> T:
        """Run a function on the index."""

        def run(index: NoteIndex) -> T:
            if self._is_closed:
                raise EmbeddingFailed("the store is being closed")
            return act(index)

        return await runtime().call_in_worker(partial(self._catalog.use, run))

    def _close(self) -> None:
        self._is_closed = True
        if self._vectors.is_used:
            # Under the catalog's lock: an abandoned job may still be at work on the file.
            try:
                self._catalog.use(lambda _: self._vectors.close())
            except sqlite3.Error:
                self._vectors.close()

    @property
    def _is_filling(self) -> bool:
        filling = self._filling
        # A child of a fork has no part in the work of its parent.
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
