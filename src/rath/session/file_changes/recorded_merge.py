"""What a three-way merge did to files, worked out from the record of both its sides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.backend.effects import FileEffect
from rath.backend.manifest import FileState, Manifest
from rath.errors import BackendError
from rath.session.file_changes.changes import net_changes
from rath.session.file_changes.diff import PLAIN_FILE
from rath.session.file_changes.merging import FileConflict, merge_effects, merge_trees
from rath.session.record import Entry, Operation

NetEffects = Callable[[Sequence[Entry], frozenset[object]], Iterable[FileEffect]]
"""Gives the effects that entries tell of, but for those of entries with the given ids."""


@dataclass(frozen=True, slots=True)
class RecordedMerge:
    """What a merge changed in the files of its first side, and what it left as it was there."""

    effects: tuple[FileEffect, ...]
    conflicts: tuple[FileConflict, ...]


def recorded_merge(
    merge: Operation, before: Sequence[Entry], effects_of: NetEffects
) -> RecordedMerge:
    """Return what a three-way merge of files did.

    Args:
        merge: The operation.
        before: The entries before it in the record in which it stands.
        effects_of: Reads effects from entries.

    Raises:
        BackendError: Contents that both sides changed were not kept.
    """
    ours = tuple(before if merge.n_ours is None else before[: merge.n_ours])
    theirs = tuple(merge.theirs or ())
    shared: list[object] = []
    for mine, other in zip(ours, theirs, strict=False):
        if mine.id != other.id:
            break
        shared.append(mine.id)
    known = frozenset(shared)
    return _merged(net_changes(effects_of(ours, known)), net_changes(effects_of(theirs, known)))


def _merged(ours: Sequence[FileEffect], theirs: Sequence[FileEffect]) -> RecordedMerge:
    """Merge what both sides came to, in trees that hold nothing but what one of them touched."""
    touched = {path for effect in ours for path in _paths(effect)}
    # What only they changed needs no look at contents, so that they need not have been kept.
    alone = [effect for effect in theirs if not touched.intersection(_paths(effect))]
    both = [effect for effect in theirs if touched.intersection(_paths(effect))]
    base = _Tree()
    for effect in (*ours, *both):
        base.add(effect.renamed_from or effect.path, effect.before, effect.before_mode)
    mine, others = base.with_changes(ours), base.with_changes(both)
    merge = runtime().run(lambda: merge_trees(base, mine, others), label="a merge of files")
    made = runtime().run(lambda: merge_effects(merge, mine), label="a merge of files")
    return RecordedMerge(net_changes((*made, *alone)), merge.conflicts)


def _paths(effect: FileEffect) -> set[str]:
    return {effect.path, effect.renamed_from or effect.path}


@dataclass(frozen=True, slots=True)
class _Tree:
    """Files as a record tells of them."""

    states: dict[str, FileState] = field(default_factory=dict[str, FileState])
    contents: dict[str, bytes | None] = field(default_factory=dict[str, bytes | None])
    """By digest."""

    def add(self, path: str, blob: Blob | None, mode: int | None) -> None:
        """Note a file, None for one that is not there."""
        if blob is None:
            return
        known = self.states.get(path)
        mode = mode or (PLAIN_FILE if known is None else known.mode)
        self.states[path] = FileState(blob.digest, blob.size, mode)
        if self.contents.get(blob.digest) is None:
            self.contents[blob.digest] = blob.data

    def with_changes(self, changes: Iterable[FileEffect]) -> _Tree:
        """Return the tree after net changes."""
        made = _Tree(dict(self.states), dict(self.contents))
        before: Mapping[str, FileState] = self.states
        for change in changes:
            old = made.states.pop(change.renamed_from or change.path, None)
            known = old or before.get(change.path)
            mode = None if known is None else known.mode
            made.add(change.path, change.after, change.after_mode or mode)
        return made

    async def amanifest(self) -> Manifest:
        """Return the files that are known."""
        return self.states

    async def aread(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            BackendError: It was not kept.
        """
        data = self.contents[self.states[path].digest]
        if data is None:
            raise BackendError(
                f"what a merge of files did to {path!r} is not known: its contents were not kept"
            )
        return data
