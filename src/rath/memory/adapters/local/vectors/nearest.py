"""Which documents of a store are nearest to a vector."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial

from rath.memory.adapters.local.indexing.catalog import Catalog
from rath.memory.adapters.local.indexing.index import TABLES, NoteIndex, Stamp
from rath.memory.adapters.local.layout import Kind
from rath.memory.adapters.local.vectors import tables
from rath.memory.adapters.local.vectors.shelf import Shelf, View
from rath.memory.adapters.local.vectors.tables import Placed

RELATIVE_FLOOR = 0.7
"""A hit has at least this part of the best cosine; `MIN_SIMILARITY` tells how it was chosen."""

_SMALL_SCOPE = 5000
"""Texts of a part of the store that are compared one by one, without the others."""

_MAX_GROUPS = 3
"""64, 512 and 4096 vectors are looked up at most: those of texts that are gone, have expired or lie
elsewhere stand among them."""

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Near:
    """A document and how close its closest text is."""

    directory: str
    name: str
    stamp: Stamp
    cosine: float
    """Above 0, at most 1; higher is closer."""
    part: int
    """Which of its texts that is."""


@dataclass(slots=True)
class _Found:
    """The documents found so far, the closest first, each once."""

    limit: int
    """Of each kind."""
    least: float
    """Least cosine that is taken; grows with the best one."""
    hidden: Collection[tuple[str, str]]
    there: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(TABLES, 0))
    """How many documents of each kind there are."""
    near: dict[Kind, dict[tuple[str, str], Near]] = field(
        default_factory=lambda: {kind: {} for kind in TABLES}
    )

    def add(self, placed: Iterable[Placed], cosines: dict[int, float]) -> None:
        """Take what is close enough; groups come with falling cosines."""
        for each in sorted(
            placed, key=lambda each: (-cosines[each.slot], each.directory, each.name)
        ):
            cosine = cosines[each.slot]
            kept = self.near[each.kind]
            place = each.directory, each.name
            if place in self.hidden:
                continue
            self.least = max(self.least, RELATIVE_FLOOR * cosine)
            if cosine >= self.least and place not in kept and len(kept) < self.limit:
                kept[place] = Near(each.directory, each.name, each.stamp, cosine, each.part)

    def is_enough(self, last_cosine: float) -> bool:
        """Return whether nothing can come after a cosine that would be taken."""
        are_full = all(len(self.near[kind]) >= min(self.limit, n) for kind, n in self.there.items())
        return are_full or last_cosine < self.least


def nearest(
    catalog: Catalog,
    shelf: Shelf,
    vector: bytes,
    limit: int,
    *,
    floor: float,
    below: str | None = None,
    hidden: Collection[tuple[str, str]] = (),
) -> dict[Kind, list[Near]]:
    """Return the documents whose vectors are closest to one of length 1, of each kind `limit`.

    Args:
        catalog: Of the store.
        shelf: Its vectors.
        vector: Float32 numbers.
        limit: How many of each kind.
        floor: Least cosine, 0 or more; what has none above 0 is never near.
        below: Directory to look in, or the path of one note without suffix.
        hidden: Directory and name of documents that do not count.
    """
    for _ in range(_ATTEMPTS):
        view = catalog.use(shelf.view)
        if view is None or view.matrix.shape[1] * 4 != len(vector):
            break
        found = _ranked(catalog, view, vector, _Found(limit, floor, hidden), below=below)
        # Slots are those of the view only while its file is the current one.
        now = catalog.use(shelf.model)
        if now.token == view.model.token:
            return {kind: list(near.values()) for kind, near in found.near.items()}
    return {kind: [] for kind in TABLES}


def _ranked(
    catalog: Catalog, view: View, vector: bytes, found: _Found, *, below: str | None
) -> _Found:
    from rath.memory.adapters.local.vectors.matrix import cosines, iter_best

    def begin(index: NoteIndex) -> list[Placed]:
        found.there = {kind: index.totals(kind).documents for kind in TABLES}
        if below is None:
            return []
        return tables.placed_below(index, view.model, below, _SMALL_SCOPE)

    few = catalog.use(begin)
    if below is not None and len(few) < _SMALL_SCOPE:
        inside = [each for each in few if each.slot < len(view.matrix)]
        slots = sorted({each.slot for each in inside})
        scores = dict(zip(slots, cosines(view.matrix, vector, slots).tolist(), strict=True))
        found.add((each for each in inside if scores[each.slot] > 0), scores)
        return found
    groups = iter_best(cosines(view.matrix, vector), found.least)
    for group, _ in zip(groups, range(_MAX_GROUPS), strict=False):
        scores = dict(group)
        look_up = partial(tables.placed, known=view.model, slots=scores, below=below)
        found.add(catalog.use(look_up), scores)
        if found.is_enough(group[-1][1]):
            break
    return found
