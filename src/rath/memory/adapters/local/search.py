"""Finding notes and transcripts in a local store, by their words and by what they mean.

Words: BM25, computed for the few documents that the rarest words of the query select.

    score(d) = sum over the query's words of the greatest of
                   w(t) idf(t) tf (k1 + 1) / (tf + k1 (1 - b + b |d|/avg))
               over the terms t that the word means: itself, with w = 1, and those near it
    idf(t)   = ln(1 + (N - n + 0.5) / (n + 0.5))    N documents, n of them with t or with the word

Robertson & Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009; with the idf
of Lucene, which is never negative. FTS5 has a bm25() too: it gives no weight to a term that half of
the documents have, and takes 2 us for each document that has any term at all.

Near words, and how much each of them counts:

    inflected   renewing   renewed                w = |common beginning| / |longer word|
    compound    datenbank  datenbankverbindung    the same
    corrected   postgers   postgres               w = 1 - edits / |shorter word|

An edit inserts, leaves out or changes a letter or swaps two neighbours: four of five misspellings
are one edit (Damerau, "A technique for computer detection and correction of spelling errors",
CACM 7(3), 1964), and the weight is that of Lucene's FuzzyTermsEnum. One edit is allowed from 4
letters on, two from 8 on, and the first letter must be right, or be the second: it is wrong in one
misspelling of seventy (Yannakoudakis & Fawthrop, "The rules of spelling errors", 1983). Only a word
that no note has is corrected, so that a corrected word never stands before an exact one.

Beginnings stand for stems, since the language of a word is not known; words cut at five letters
serve European languages about as well as their stemmers do (McNamee, Nicholas & Mayfield,
"Addressing morphological variation in alphabetic languages", SIGIR 2009).

Without an embedding model a score is that of BM25, with `ranking="vectors"` it is the cosine. With
both, reciprocal rank fusion (Cormack, Clarke & Buettcher, SIGIR 2009) of the two orders, whose
scores do not compare, makes the order:

    rank_fusion(d) = sum over the orders that have d of  1 / (60 + rank of d in the order)
    score          = max(min(1, BM25), cosine)

so a threshold in [0, 1] lets pass what it lets pass in one of the other modes.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath.memory.adapters.local.files import Document, read_document
from rath.memory.adapters.local.index import (
    MAX_WORD_CHARS,
    TABLES,
    Match,
    NoteIndex,
    Totals,
    scope_condition,
)
from rath.memory.adapters.local.layout import Kind, relative_path, session_of, uri_of
from rath.memory.adapters.local.metadata import read_metadata
from rath.memory.adapters.local.store import LocalStore, run
from rath.memory.adapters.local.terms import is_word, query_terms
from rath.memory.adapters.local.vectors import parts_of
from rath.memory.op_types import MemoryOpFind, MemoryOpSearch
from rath.memory.results import MemoryFindResult, MemoryHit, MemoryResult
from rath.memory.uri import LEGACY_MEMORY_URI_ROOT, MEMORY_URI_ROOT

T = TypeVar("T", bound=Hashable)

K1 = 1.5
B = 0.75
FUSION_K = 60

MAX_QUERY_TERMS = 128
"""Further terms of a query do not count."""

MAX_POSTINGS = 3000
"""How many (term, document) pairs make candidates; each takes about 0.5 us."""

MAX_SCORED = 64
"""Of more matches, those are scored whose words are the rarest together."""

MIN_CHARS = 4
"""Shorter words mean themselves."""

MAX_VARIANTS = 4

_MAX_SCORED_CHARS = 2_000_000
_MAX_WIDENED = 8
"""How many words of a query, the rarest, may mean others too, if no more than `MAX_SCORED`
documents have them; each takes up to 1 ms among 200,000 words."""

_FREQUENT = 500
_TOLERANCE = 0.1
_TWO_EDITS_FROM = 8
_COMPOUND_FROM = 5
_MAX_ENDING = 3
_MIN_PART = 5
_SHARED = 0.6

_ATTEMPTS = 3
_TRANSCRIPTS_PER_SESSION = 4
"""How many more transcripts than hits are ranked, since a session may be committed often."""

_MAX_QUERY_CHARS = 32_768
"""Further characters of a longer query do not count; looking at a million took up to a second."""

_FUSED = 50
"""How much of each order is fused at least; what comes after adds less than 1/110 to a score."""


@dataclass(frozen=True, slots=True)
class _Query:
    """The object of a search: words, place and vectors."""

    terms: list[str]
    below: str | None
    near: dict[Kind, list[Match]] | None = None
    """The documents with the nearest vectors; None where only words count."""
    by_cosine: bool = False
    """Whether only vectors count."""
    hidden: frozenset[tuple[str, str]] = frozenset()
    """Notes that have expired and are not removed yet."""


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
    # The best transcript of each session, and of those that say the same, one.
    by_session: dict[str, MemoryHit] = {}
    snippets: set[str | None] = set()
    for hit in _hits(store, "transcript", query, limit=several):
        session = session_of(relative_path(hit.uri))
        if session not in by_session and hit.snippet not in snippets:
            by_session[session] = hit
            snippets.add(hit.snippet)
    room = max(op.top_k // 2, op.top_k - len(notes))
    hits = sorted(
        [*notes, *list(by_session.values())[:room]],
        key=lambda hit: -(hit.score if hit.rank_fusion is None else hit.rank_fusion),
    )
    return MemoryFindResult(tuple(hits[: op.top_k]))


def _hits(store: LocalStore, kind: Kind, query: _Query, *, limit: int) -> list[MemoryHit]:
    """Return the best documents that are in their files what they are in the index."""
    hits: list[MemoryHit] = []
    changed: set[tuple[str, str]] = set()
    for _ in range(_ATTEMPTS):
        hits = []
        stale: list[Match] = []
        for match in _matches(store, kind, query, limit=limit, changed=changed):
            if len(hits) == limit:
                break
            path = f"{store.root}/{match.directory}/{match.name}"
            document = read_document(path, kind)
            if document is None or not match.stamp.is_still(document.stamp):
                stale.append(match)
                continue
            now = store.expiry.now()
            if kind == "note" and read_metadata(path).metadata.is_expired(now):
                stale.append(match)
                continue
            snippet = _snippet(document, match, query.terms)
            uri = uri_of(f"{match.directory}/{match.name}")
            hits.append(MemoryHit(uri, match.score, snippet, rank_fusion=match.rank_fusion))
        if not stale:
            break
        for match in stale:
            changed.add(match.place)
            store.catalog.recheck(match.directory, match.name)
    return hits


def _matches(
    store: LocalStore, kind: Kind, query: _Query, *, limit: int, changed: set[tuple[str, str]]
) -> list[Match]:
    """Return documents with their scores, the best first; some may have changed in their files.

    Args:
        store: Where to look.
        kind: What to look for.
        query: What it must fit.
        limit: How many are needed.
        changed: Documents whose vectors are not those of their texts any more.
    """
    words: list[Match] = []
    if not query.by_cosine:
        depth = limit if query.near is None else max(limit, _FUSED)
        now = store.expiry.now() if query.hidden else None

        def rank(index: NoteIndex) -> list[Match]:
            with index.reading():
                return best(index, kind, query.terms, depth, below=query.below, now=now)

        words = [each for each in store.catalog.use(rank) if each.place not in query.hidden]
    if query.near is None:
        return words
    close = [
        # The last digit of a cosine of float32 numbers may lie above 1.
        each._replace(score=min(1.0, each.score))
        for each in query.near[kind]
        if each.place not in changed
    ]
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
        by_place[place]._replace(score=scores[place], rank_fusion=fusion[place]) for place in order
    ]


def _snippet(document: Document, match: Match, terms: list[str]) -> str:
    """Return the part of a text that shows why it was found."""
    if match.part is not None:
        parts = parts_of(document.texts)
        if match.part < len(parts):
            document = replace(document, texts=(parts[match.part],))
    return document.snippet(terms)


def fused(orders: Iterable[Sequence[T]]) -> dict[T, float]:
    """Return the scores of all that stand in any order; each has the best first, each once."""
    scores: dict[T, float] = {}
    for order in orders:
        for rank, each in enumerate(order, start=1):
            scores[each] = scores.get(each, 0.0) + 1 / (FUSION_K + rank)
    return scores


class _Word(NamedTuple):
    """A term of the query with those that it may also mean."""

    n_documents: int
    """How many have any of the terms, at most."""
    weights: dict[str, float]
    """What a match of each term is worth, the most first."""


def best(
    index: NoteIndex,
    kind: Kind,
    terms: list[str],
    limit: int,
    *,
    below: str | None = None,
    now: float | None = None,
) -> list[Match]:
    """Return the documents with the highest BM25 scores, at most `limit`.

    Of many matches, those with the rarest terms are scored; which commoner terms they have counts
    in their scores.

    Args:
        index: Where to look.
        kind: What to look for.
        terms: Distinct terms.
        limit: How many.
        below: Directory to look in, or the path of one note without suffix.
        now: Leaves out what has expired by then, in seconds since 1970.
    """
    totals = index.totals(kind)
    if not totals.documents:
        return []
    words = _words(index, kind, terms, totals)
    rows = _candidates(index, kind, words, limit=limit, below=below, now=now)
    # For each term the words of the query that it may be, and what a match is worth there.
    meanings: dict[str, list[tuple[int, float]]] = {}
    for number, word in enumerate(words):
        for term, weight in word.weights.items():
            meanings.setdefault(term, []).append((number, weight))
    average = totals.terms / totals.documents
    ranked: list[Match] = []
    room = _MAX_SCORED_CHARS
    for directory, name, stamp, stored in index.iter_terms(kind, rows):
        score = _bm25(stored.split(" "), meanings, average)
        ranked.append(Match(directory, name, stamp, score))
        room -= len(stored)
        if room < 0:
            break
    return sorted(ranked, key=lambda hit: (-hit.score, hit.directory, hit.name))[:limit]


def _words(index: NoteIndex, kind: Kind, terms: list[str], totals: Totals) -> list[_Word]:
    """Return what the terms of a query mean, the rarest first."""
    counts = {term: _documents_with(index, kind, term, totals) for term in terms}
    missing = [term for term, n in counts.items() if not n][:_MAX_WIDENED]
    # A word that documents of the other kind have is no misspelling.
    unknown = set(missing) - index.words_in_vocabulary(missing)
    for term in missing:
        for part in parts(index, term) if term in unknown else ():
            counts[part] = _documents_with(index, kind, part, totals)
    words: list[_Word] = []
    for place, term in enumerate(sorted(counts, key=lambda term: counts[term])):
        found = {term: counts[term]} if counts[term] else {}
        weights = dict.fromkeys(found, 1.0)
        if place < _MAX_WIDENED and counts[term] <= MAX_SCORED:
            for other, weight in variants(index, term, is_known=term not in unknown):
                n_other = 0 if other in counts else _documents_with(index, kind, other, totals)
                if n_other:
                    found[other], weights[other] = n_other, weight
        if found:
            worth = {
                each: weights[each] * _idf(max(n, counts[term]), totals.documents)
                for each, n in found.items()
            }
            best_first = sorted(worth.items(), key=lambda item: -item[1])
            words.append(_Word(sum(found.values()), dict(best_first)))
    return sorted(words, key=lambda word: word.n_documents)


def _documents_with(index: NoteIndex, kind: Kind, term: str, totals: Totals) -> int:
    count, n_then = index.frequent.get((kind, term), (0, 0))
    if count and abs(n_then - totals.documents) <= _TOLERANCE * n_then:
        return min(count, totals.documents)
    found = index.rows(f"SELECT doc FROM {TABLES[kind]}_terms WHERE term = ?", term)
    count = found[0][0] if found else 0
    if count >= _FREQUENT:
        index.frequent[kind, term] = count, totals.documents
    return count


def _candidates(
    index: NoteIndex,
    kind: Kind,
    words: list[_Word],
    *,
    limit: int,
    below: str | None,
    now: float | None,
) -> list[int]:
    """Return the rows with the rarest words together, the most promising first."""
    table = TABLES[kind]
    scope, of_scope = ("1", ()) if below is None else scope_condition(below)
    join = "" if below is None else f"JOIN files AS f ON f.id = {table}.rowid"
    # Here, and not among the matches: expired notes would fill the postings that are looked at.
    expiry = f"AND {table}.rowid NOT IN (SELECT id FROM files WHERE expires_at <= ?)"
    sql = f"""SELECT {table}.rowid FROM {table} {join}
              WHERE {table} MATCH ? AND {scope} {"" if now is None else expiry}
              ORDER BY {table}.rowid DESC LIMIT {MAX_POSTINGS}"""
    found: dict[int, float] = {}
    room = MAX_POSTINGS
    for word in words:
        if word.n_documents > room and len(found) >= limit:
            break
        worth: dict[int, float] = {}
        for term, weight in word.weights.items():
            if len(worth) >= room:
                break
            values = (f'"{term}"', *of_scope, *(() if now is None else (now,)))
            for (row,) in index.rows(sql, *values):
                worth.setdefault(row, weight)
        if found:
            for row, weight in worth.items():
                found[row] = found.get(row, 0.0) + weight
        else:
            found = worth
        room -= min(word.n_documents, MAX_POSTINGS)
    most = heapq.nlargest(max(limit, MAX_SCORED), zip(found.values(), found, strict=True))
    return [row for _, row in most]


def _idf(n_with_term: int, n_documents: int) -> float:
    return math.log(1 + (n_documents - n_with_term + 0.5) / (n_with_term + 0.5))


def _bm25(terms: list[str], meanings: dict[str, list[tuple[int, float]]], average: float) -> float:
    longer = K1 * (1 - B + B * len(terms) / average)
    scores: dict[int, float] = {}
    for term, times in Counter(filter(meanings.__contains__, terms)).items():
        saturated = times * (K1 + 1) / (times + longer)
        for word, weight in meanings[term]:
            scores[word] = max(scores.get(word, 0.0), weight * saturated)
    return sum(scores.values())


class Variant(NamedTuple):
    """Another word, and its weight above 0 and below 1."""

    word: str
    weight: float


def variants(index: NoteIndex, word: str, *, is_known: bool) -> list[Variant]:
    """Return what a word of a query may also mean, the likeliest first, at most `MAX_VARIANTS`.

    Args:
        index: Its vocabulary has the words of the notes.
        word: A term of a query.
        is_known: Whether some note has it; then it is not corrected.
    """
    if not MIN_CHARS <= len(word) <= MAX_WORD_CHARS or not is_word(word):
        return []
    found: dict[str, float] = {}
    for length in range(max(MIN_CHARS - 1, len(word) - _MAX_ENDING), len(word) + _MAX_ENDING + 1):
        longer = max(length, len(word))
        common = max(math.ceil(_SHARED * longer), longer - _MAX_ENDING, MIN_CHARS - 1)
        for other in index.words_beginning_with(word[:common], shortest=length, longest=length):
            found[other] = _common(word, other) / longer
    if len(word) >= _COMPOUND_FROM:
        shortest = len(word) + _MAX_ENDING + 1
        for other in index.words_beginning_with(word, shortest=shortest, longest=MAX_WORD_CHARS):
            found[other] = len(word) / len(other)
    if not is_known:
        found |= _corrections(index, word)
    found.pop(word, None)
    likeliest = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return [Variant(*item) for item in likeliest[:MAX_VARIANTS]]


def _corrections(index: NoteIndex, word: str) -> dict[str, float]:
    """Return the words with the fewest edits."""
    for edits in (1, 2) if len(word) >= _TWO_EDITS_FROM else (1,):
        near = index.words_with_letters_of(word, initials=word[: 3 - edits], edits=edits)
        found = {
            other: 1 - edits / min(len(word), len(other))
            for other in near
            if is_within(edits, word, other)
        }
        if found:
            return found
    return {}


def parts(index: NoteIndex, word: str) -> list[str]:
    """Return the two words of the notes that an unknown word is made of; nothing if it is not.

    lieferantenvertrag -> lieferanten vertrag, sicherheitsregel -> sicherheit regel
    """
    if not 2 * _MIN_PART <= len(word) <= MAX_WORD_CHARS or not is_word(word):
        return []
    cuts = range(len(word) - _MIN_PART, _MIN_PART - 1, -1)
    known = index.words_in_vocabulary(each for cut in cuts for each in (word[:cut], word[cut:]))
    for cut in cuts:
        for head in (word[:cut], word[: cut - 1] if word[cut - 1] == "s" else ""):
            if head in known and word[cut:] in known:
                return [head, word[cut:]]
    return []


def is_within(edits: int, one: str, other: str) -> bool:
    """Return whether so many edits make one word the other, where each letter is edited once."""
    start = _common(one, other)
    one, other = one[start:], other[start:]
    if one == other:
        return True
    if not edits or abs(len(one) - len(other)) > edits:
        return False
    return (
        is_within(edits - 1, one[1:], other[1:])
        or is_within(edits - 1, one[1:], other)
        or is_within(edits - 1, one, other[1:])
        or (one[:2] == other[1::-1] and is_within(edits - 1, one[2:], other[2:]))
    )


def _common(one: str, other: str) -> int:
    """Return how many letters two words begin with both."""
    at = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        at += 1
    return at
