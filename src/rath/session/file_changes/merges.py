"""What merges of files did, where only the record is left to tell it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rath.backend.effects import FileEffect
from rath.errors import BackendError
from rath.session.file_changes.history import line_of
from rath.session.file_changes.recorded_merge import RecordedMerge, recorded_merge
from rath.session.record import Entry, Operation


def merge_in(entries: Sequence[Entry], merge: Operation) -> RecordedMerge:
    """Return what a three-way merge did to the files of its first side; O(entries).

    Args:
        entries: A record that holds the merge, or a merge of a session that made it.
        merge: The operation.

    Raises:
        BackendError: The record does not hold all of both sides, or contents were not kept.
    """
    before = _before(tuple(entries), merge)
    if before is None:
        raise BackendError(
            f"what the merge that made session {merge.session} did to files is not known: the "
            "record does not hold both its sides"
        )
    return recorded_merge(merge, before, _effects)


def _effects(entries: Sequence[Entry], without: frozenset[object]) -> Iterator[FileEffect]:
    for step in line_of(entries).told:
        entry = step.entry
        if entry.id in without:
            continue
        if isinstance(entry, Operation) and entry.workspace == "three-way":
            yield from merge_in(entries, entry).effects
        else:
            yield from step.effects


def _before(entries: tuple[Entry, ...], merge: Operation) -> tuple[Entry, ...] | None:
    """Return the entries before a merge, in the record of the session that it made.

    Its counts hold there: a later merge has put the entries of another session in between.
    """
    at = next((at for at, entry in enumerate(entries) if entry.id == merge.id), None)
    n_ours = merge.n_ours or 0
    if at is not None and at >= n_ours:
        theirs = {entry.id for entry in merge.theirs or ()}
        if all(entry.id in theirs for entry in entries[n_ours:at]):
            return entries[:at]
    for other in entries:
        if isinstance(other, Operation) and other.theirs is not None and other.id != merge.id:
            found = _before(tuple(other.theirs), merge)
            if found is not None:
                return found
    return None
