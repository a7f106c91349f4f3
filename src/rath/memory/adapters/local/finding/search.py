"""Finding notes and transcripts in a local store, by their words and by what they mean.

Without an embedding model a score is that of BM25 (`ranking.py`), with `ranking="vectors"` it is
the cosine. With both, reciprocal rank fusion (`fusion.py`) of the two orders makes the order, and

    score = max(min(1, BM25), cosine)

so a threshold in [0, 1] lets pass what it lets pass in one of the other modes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from rath._async.runtime import runtime
from rath.memory.adapters.local.files.documents import Document, read_document
from rath.memory.adapters.local.finding.fusion import fused
from rath.memory.adapters.local.finding.ranking import MAX_QUERY_TERMS
from rath.memory.adapters.local.finding.terms import query_terms
from rath.memory.adapters.local.indexing.index import Stamp
from rath.memory.adapters.local.layout import Kind, relative_path, session_of, uri_of
from rath.memory.adapters.local.removal.expiry import is_expired
from rath.memory.adapters.local.store import LocalStore, run
from rath.memory.adapters.local.vectors.nearest import Near
from rath.memory.adapters.local.vectors.parts import parts_of
from rath.memory.op_types import MemoryOpFind, MemoryOpSearch
from rath.memory.results import MemoryFindResult, MemoryHit, MemoryResult
from rath.memory.uri import LEGACY_MEMORY_URI_ROOT, MEMORY_URI_ROOT

_ATTEMPTS = 3
_TRANSCRIPTS_PER_SESSION = 4
"""How many more transcripts than hits are ranked, since a session may be committed often."""

_MAX_QUERY_CHARS = 32_768
"""What follows in a longer query does not count; looking at a million took up to a second."""

_FUSED = 50
"""How much of each order is fused at least; what comes after adds less than 1/110 to a score."""


@dataclass(frozen=True, slots=True)
class _Query:
    """What is looked for, where, and by which means."""

    terms: list[str]
    below: str | None
    near: dict[Kind, list[Near]] | None = None
    """The documents with the nearest vectors; None where only words count."""
    by_cosine: bool = False
    """Whether only vectors count."""
    hidden: frozenset[tuple[str, str]] = frozenset()
    """Notes that have expired and are not removed yet."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A document that may be a hit."""

    directory: str
    name: str
    stamp: Stamp
    score: float
    part: int | None = None
    """Which of its texts shows why it is one; None where its words do."""
    rank_fusion: float | None = None
    """What orders it among the others, where that is not its score."""

    @property
    def place(self) -> tuple[str, str]:
        return self.directory, self.name


async def find(store: LocalStore, op: MemoryOpFind | MemoryOpSearch) -> MemoryResult:
    """Return the notes and transcripts that fit a query, the closest first.

    A session gives one hit at most, and transcripts take no more than half of the places as long
    as there are notes for the others: what somebody chose to remember is not crowded out.
    """
    vector = None
    if store.vectors is not None and op.top_k > 0:
        vector = await store.vectors.aquery(op.query)
    return await runtime().call_in_worker(partial(run, partial(_find, vector=vector), store, op))


def _find(
    store: LocalStore, op: MemoryOpFind | MemoryOpSearch, *, vector: bytes | None
) -> MemoryFindResult:
    below = None
    if op.target_uri not in {None, MEMORY_URI_ROOT, LEGACY_MEMORY_URI_ROOT}:
        below = relative_path(str(op.target_uri))
    query = _Query(query_terms(op.query[:_MAX_QUERY_CHARS])[:MAX_QUERY_TERMS], below)
    if (not query.terms and vector is None) or op.top_k <= 0:
        return MemoryFindResult(())
    several = op.top_k * _TRANSCRIPTS_PER_SESSION
    if vector is None or store.vectors is None:
        store.catalog.catch_up()
    hidden = store.catalog.use(lambda index: index.expired(store.expiry.now()))
    query = replace(query, hidden=hidden)
    if vector is not None and store.vectors is not None:
        n_wanted = max(several, _FUSED)
        near = store.vectors.nearest(vector, n_wanted, below=below, hidden=hidden)
        by_cosine = near is not None and store.vectors.choices.mode == "vectors"
        query = replace(query, near=near, by_cosine=by_cosine)
    notes = _hits(store, "note", query, limit=op.top_k)
    transcripts = _hits(store, "transcript", query, limit=several)
    room = max(op.top_k // 2, op.top_k - len(notes))
    hits = sorted([*notes, *_one_each(transcripts)[:room]], key=_order)
    return MemoryFindResult(tuple(hits[: op.top_k]))


def _order(hit: MemoryHit) -> float:
    return -(hit.score if hit.rank_fusion is None else hit.rank_fusion)


def _hits(store: LocalStore, kind: Kind, query: _Query, *, limit: int) -> list[MemoryHit]:
    """Return the best documents that are in their files what they are in the index."""
    hits: list[MemoryHit] = []
    changed: set[tuple[str, str]] = set()
    for _ in range(_ATTEMPTS):
        hits = []
        stale: list[_Candidate] = []
        for candidate in _candidates(store, kind, query, limit=limit, changed=changed):
            if len(hits) == limit:
                break
            document = _read(store, kind, candidate, now=store.expiry.now())
            if document is None:
                stale.append(candidate)
                continue
            snippet = _snippet(document, candidate, query.terms)
            uri = uri_of(f"{candidate.directory}/{candidate.name}")
            fusion = candidate.rank_fusion
            hits.append(MemoryHit(uri, candidate.score, snippet, rank_fusion=fusion))
        if not stale:
            break
        for candidate in stale:
            changed.add(candidate.place)
            store.catalog.recheck(candidate.directory, candidate.name)
    return hits


def _candidates(
    store: LocalStore, kind: Kind, query: _Query, *, limit: int, changed: set[tuple[str, str]]
) -> list[_Candidate]:
    """Return documents with their scores, the best first; some may have changed in their files.

    Args:
        store: Where to look.
        kind: What to look for.
        query: What it must fit.
        limit: How many are needed.
        changed: Documents whose vectors are not those of their texts any more.
    """
    depth = limit if query.near is None else max(limit, _FUSED)
    now = store.expiry.now() if query.hidden else None
    ranked = (
        []
        if query.by_cosine
        else store.catalog.best(kind, query.terms, depth, below=query.below, now=now)
    )
    words = [
        _Candidate(each.directory, each.name, each.stamp, each.score)
        for each in ranked
        if (each.directory, each.name) not in query.hidden
    ]
    if query.near is None:
        return words
    close = [
        # The last digit of a cosine of float32 numbers may lie above 1.
        _Candidate(each.directory, each.name, each.stamp, min(1.0, each.cosine), each.part)
        for each in query.near[kind]
    ]
    close = [each for each in close if each.place not in changed]
    if query.by_cosine:
        return close
    fusion = fused([[each.place for each in words], [each.place for each in close]])
    by_place = {each.place: each for each in (*close, *words)}
    closeness = {each.place: each.score for each in close}
    scores = {each.place: min(1.0, each.score) for each in words}
    for place, cosine in closeness.items():
        scores[place] = max(cosine, scores.get(place, 0.0))
    # What is as high in one list as another is in the other: the closer meaning is first.
    order = sorted(fusion, key=lambda place: (-fusion[place], -closeness.get(place, 0.0), place))
    return [
        replace(by_place[place], score=scores[place], rank_fusion=fusion[place]) for place in order
    ]


def _read(store: LocalStore, kind: Kind, candidate: _Candidate, *, now: float) -> Document | None:
    """Return what is in a file; None when that has changed, or is gone by `now`."""
    path = store.root / candidate.directory / candidate.name
    document = read_document(path, kind)
    if document is None or not candidate.stamp.is_still(document.stamp):
        return None
    return None if kind == "note" and is_expired(path, now) else document


def _snippet(document: Document, candidate: _Candidate, terms: list[str]) -> str:
    """Return the part of a text that shows why it was found."""
    if candidate.part is not None:
        parts = parts_of(document.texts)
        if candidate.part < len(parts):
            document = replace(document, texts=(parts[candidate.part],))
    return document.snippet(terms)


def _one_each(transcripts: list[MemoryHit]) -> list[MemoryHit]:
    """Keep the best transcript of each session, and of those that say the same, one."""
    kept: dict[str, MemoryHit] = {}
    said: set[str | None] = set()
    for hit in transcripts:
        session = session_of(relative_path(hit.uri))
        if session not in kept and hit.snippet not in said:
            kept[session] = hit
            said.add(hit.snippet)
    return list(kept.values())
