"""Finding notes and transcripts in a local store."""

from __future__ import annotations

from rath.memory.adapters.local.documents import Document, read_document
from rath.memory.adapters.local.layout import Kind, relative_path, session_of, uri_of
from rath.memory.adapters.local.ranking import MAX_QUERY_TERMS, Ranked
from rath.memory.adapters.local.store import LocalStore
from rath.memory.adapters.local.terms import query_terms
from rath.memory.op_types import MemoryOpFind, MemoryOpSearch
from rath.memory.results import MemoryFindResult, MemoryHit
from rath.memory.uri import LEGACY_MEMORY_URI_ROOT, MEMORY_URI_ROOT

_ATTEMPTS = 3
_TRANSCRIPTS_PER_SESSION = 4
"""How many more transcripts than hits are ranked, since a session may be committed often."""


def find(store: LocalStore, op: MemoryOpFind | MemoryOpSearch) -> MemoryFindResult:
    """Return the notes and transcripts that have words of the query, the closest first.

    A session gives one hit at most, and transcripts take no more than half of the places as long
    as there are notes for the others: what somebody chose to remember is not crowded out.
    """
    below = None
    if op.target_uri not in {None, MEMORY_URI_ROOT, LEGACY_MEMORY_URI_ROOT}:
        below = relative_path(str(op.target_uri))
    terms = query_terms(op.query)[:MAX_QUERY_TERMS]
    if not terms or op.top_k <= 0:
        return MemoryFindResult(())
    store.catalog.catch_up()
    notes = _hits(store, "note", terms, limit=op.top_k, below=below)
    several = op.top_k * _TRANSCRIPTS_PER_SESSION
    transcripts = _hits(store, "transcript", terms, limit=several, below=below)
    room = max(op.top_k // 2, op.top_k - len(notes))
    hits = sorted([*notes, *_one_each(transcripts)[:room]], key=lambda hit: (-hit.score, hit.uri))
    return MemoryFindResult(tuple(hits[: op.top_k]))


def _hits(
    store: LocalStore, kind: Kind, terms: list[str], *, limit: int, below: str | None
) -> list[MemoryHit]:
    """Return the best documents that are in their files what they are in the index."""
    hits: list[MemoryHit] = []
    for _ in range(_ATTEMPTS):
        found = store.catalog.best(kind, terms, limit, below=below)
        read = [(ranked, _read(store, kind, ranked)) for ranked in found]
        hits = [
            MemoryHit(uri_of(f"{ranked.directory}/{ranked.name}"), ranked.score, doc.snippet(terms))
            for ranked, doc in read
            if doc is not None
        ]
        if len(hits) == len(found):
            break
        for ranked, doc in read:
            if doc is None:
                store.catalog.recheck(ranked.directory, ranked.name)
    return hits


def _read(store: LocalStore, kind: Kind, ranked: Ranked) -> Document | None:
    document = read_document(store.root / ranked.directory / ranked.name, kind)
    if document is None or not ranked.stamp.is_still(document.stamp):
        return None
    return document


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
