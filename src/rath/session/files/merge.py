"""Three-way merges of files and of recorded changes."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Literal, Protocol, TypeVar
from uuid import UUID

from rath._async.runtime import runtime
from rath._core.blobs import MAX_BLOB_BYTES, Blob
from rath.backend.changes import FileState, Manifest
from rath.backend.effects import FileEffect
from rath.backend.file_tools import split_lines
from rath.backend.snapshots import NewFile
from rath.errors import BackendError
from rath.session.files.changes import Version, effect_between, line_of, net_changes
from rath.session.files.diff import PLAIN_FILE, common_runs, is_text
from rath.session.record import Entry, Operation

V = TypeVar("V")


def merge_texts(base: str, ours: str, theirs: str) -> str | None:
    """Return `base` with the changes of both, None where both changed the same lines differently.

    Lines that only one side changed are taken from that side; changes that touch each other are of
    the same lines. Exchanging the sides gives the same result.
    """
    merged = merge_lines(split_lines(base), split_lines(ours), split_lines(theirs))
    return None if merged is None else "".join(merged)


def merge_lines(
    base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]
) -> list[str] | None:
    """Return the merged lines, None for a conflict."""
    merged: list[str] = []
    a = b = c = 0
    for in_base, in_ours, in_theirs, size in _in_all(base, ours, theirs):
        between = chosen(base[a:in_base], ours[b:in_ours], theirs[c:in_theirs])
        if between is None:
            return None
        merged += [*between, *base[in_base : in_base + size]]
        a, b, c = in_base + size, in_ours + size, in_theirs + size
    return merged


def chosen(base: V, ours: V, theirs: V) -> V | None:
    """Return the value that counts of three, None where both sides changed it differently."""
    if ours in (base, theirs):
        return theirs
    return ours if theirs == base else None


def _in_all(
    base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield where runs begin in each text that are common to all, and their size, in order.

    At last comes an empty one at the end.
    """
    mine, others = common_runs(base, ours), common_runs(base, theirs)
    i = j = 0
    while i < len(mine) and j < len(others):
        a, b = mine[i], others[j]
        start, end = max(a.a, b.a), min(a.a + a.size, b.a + b.size)
        if start < end:
            yield start, a.b + start - a.a, b.b + start - b.a, end - start
        if a.a + a.size <= b.a + b.size:
            i += 1
        else:
            j += 1
    yield len(base), len(ours), len(theirs), 0


ConflictKind = Literal[
    "content", "binary", "link", "too_large", "mode", "type", "deleted", "added", "directory"
]
"""What both sides did: changed the same lines of a text; changed a file that is no text, a link, or
a file of more than 1 MiB; gave it different modes; one made it a link, or a link a file, which the
other changed; one changed what the other deleted; added different files; one has a file where the
other has a directory."""


class MergeTree(Protocol):
    """Files to merge: a frozen workspace, or what is known of one."""

    async def amanifest(self) -> Manifest:
        """Return its manifest."""
        ...

    async def aread(self, path: str) -> bytes:
        """Return the content of a file, the target of a link."""
        ...


@dataclass(frozen=True, slots=True)
class FileVersion:
    """A file as one side has it."""

    content: Blob
    """Holds the bytes of a file of at most 1 MiB."""

    mode: int
    """Type and permission bits, `st_mode`; a link's content is its target."""


@dataclass(frozen=True, slots=True)
class FileConflict:
    """A file on which the two sides of a merge do not agree; the merged workspace has ours."""

    path: str
    kind: ConflictKind
    base: FileVersion | None
    """What both began with, None for no file."""

    ours: FileVersion | None
    theirs: FileVersion | None


@dataclass(frozen=True, slots=True)
class Merge:
    """The merged state of our files, and the conflicts between the sides."""

    changes: Mapping[str, NewFile | None]
    """What is new in our files, by path; None where a file is taken away."""

    conflicts: tuple[FileConflict, ...]
    """Sorted by path."""


_Trees = tuple[MergeTree, MergeTree, MergeTree]
"""Of the base, ours, theirs."""


@dataclass(frozen=True, slots=True)
class _States:
    """One path in the three trees."""

    path: str
    base: FileState | None
    ours: FileState | None
    theirs: FileState | None

    @property
    def is_same(self) -> bool:
        """Whether both sides have the same."""
        return self.ours == self.theirs

    @property
    def is_changed_by_both(self) -> bool:
        """Whether both sides changed it, and not alike."""
        return not self.is_same and self.base not in (self.ours, self.theirs)

    @property
    def may_stand(self) -> bool:
        """Whether a file may be there after the merge; the same for exchanged sides."""
        if self.is_changed_by_both:
            return True
        return (self.theirs if self.ours == self.base else self.ours) is not None


async def merge_trees(base: MergeTree, ours: MergeTree, theirs: MergeTree) -> Merge:
    """Return the changes that make our files the merge of both sides.

    What only one side changed is taken from it; texts that both changed are merged by lines.
    """
    trees = (base, ours, theirs)
    manifests = [await tree.amanifest() for tree in trees]
    paths = [
        _States(path, *(manifest.get(path) for manifest in manifests))
        for path in sorted(set[str]().union(*manifests))
    ]
    clashing = _clashing(paths)
    changes: dict[str, NewFile | None] = {}
    conflicts: list[FileConflict] = []
    for states in paths:
        outcome = "directory" if states.path in clashing else await _outcome(trees, states)
        if not isinstance(outcome, str):
            changes |= outcome
            continue
        sides = zip(trees, (states.base, states.ours, states.theirs), strict=True)
        versions = [await _version(tree, states.path, state) for tree, state in sides]
        conflicts.append(FileConflict(states.path, outcome, *versions))
    return Merge(changes, tuple(conflicts))


async def merge_effects(merge: Merge, ours: MergeTree) -> tuple[FileEffect, ...]:
    """Return the changes of a merge to our files."""
    manifest = await ours.amanifest()
    effects: list[FileEffect] = []
    for path, new in merge.changes.items():
        version = await _version(ours, path, manifest.get(path))
        before = Version() if version is None else Version(version.content, version.mode)
        after = Version() if new is None else Version(Blob.from_bytes(new.data), new.mode)
        effects.append(effect_between(path, before, after))
    return tuple(effects)


async def _outcome(trees: _Trees, states: _States) -> dict[str, NewFile | None] | ConflictKind:
    """Return the merged state of one path of ours, if that changes, or why it cannot be told."""
    path, base, ours, theirs = states.path, states.base, states.ours, states.theirs
    if states.is_same or theirs == base:
        return {}
    if ours == base:
        new = None if theirs is None else NewFile(await trees[2].aread(path), theirs.mode)
        return {path: new}
    if base is None:
        return "added"
    if ours is None or theirs is None:
        return "deleted"
    mode = chosen(base.mode, ours.mode, theirs.mode)
    types = [stat.S_IFMT(each.mode) for each in (base, ours, theirs)]
    if len(set(types)) > 1:
        return "link" if types[1:] == [stat.S_IFLNK] * 2 else "type"
    if mode is None:
        return "mode"
    digest = chosen(base.digest, ours.digest, theirs.digest)
    if digest is not None:
        tree = trees[1 if digest == ours.digest else 2]
        return {path: NewFile(await tree.aread(path), mode)}
    if stat.S_ISLNK(mode):
        return "link"
    if max(base.size, ours.size, theirs.size) > MAX_BLOB_BYTES:
        return "too_large"
    texts = [await tree.aread(path) for tree in trees]
    if not all(map(is_text, texts)):
        return "binary"
    merging = partial(merge_texts, *(text.decode() for text in texts))
    merged = await runtime().call_in_worker(merging)
    return "content" if merged is None else {path: NewFile(merged.encode(), mode)}


async def _version(tree: MergeTree, path: str, state: FileState | None) -> FileVersion | None:
    if state is None:
        return None
    data = await tree.aread(path) if state.size <= MAX_BLOB_BYTES else None
    return FileVersion(Blob(state.digest, state.size, data), state.mode)


def _clashing(paths: list[_States]) -> set[str]:
    """Return the paths of which one is a file where another one needs a directory.

    What both sides have alike cannot clash with itself and is left out.
    """
    standing = {states.path: states for states in paths if states.may_stand}
    clashing: set[str] = set()
    for path in standing:
        for end, char in enumerate(path):
            above = path[:end]
            if char == "/" and above in standing:
                clashing |= {path, above}
    return {path for path in clashing if not standing[path].is_same}


@dataclass(frozen=True, slots=True)
class RecordedMerge:
    """The changes of a merge to the files of its first side, and its conflicts."""

    effects: tuple[FileEffect, ...]
    conflicts: tuple[FileConflict, ...]


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
    effects = runtime().run(lambda: merge_effects(merge, mine), label="a merge of files")
    return RecordedMerge(net_changes((*effects, *alone)), merge.conflicts)


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
        state = self.states.get(path)
        mode = mode or (PLAIN_FILE if state is None else state.mode)
        self.states[path] = FileState(blob.digest, blob.size, mode)
        if self.contents.get(blob.digest) is None:
            self.contents[blob.digest] = blob.data

    def with_changes(self, changes: Iterable[FileEffect]) -> _Tree:
        """Return the tree after net changes."""
        tree = _Tree(dict(self.states), dict(self.contents))
        before: Mapping[str, FileState] = self.states
        for change in changes:
            old = tree.states.pop(change.renamed_from or change.path, None)
            state = old or before.get(change.path)
            mode = None if state is None else state.mode
            tree.add(change.path, change.after, change.after_mode or mode)
        return tree

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


def merge_in(entries: Sequence[Entry], merge: Operation) -> RecordedMerge:
    """Return the changes of a three-way merge to the files of its first side; O(entries).

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
    ours, theirs = before[: merge.n_ours], tuple(merge.theirs or ())
    pairs = takewhile(lambda pair: pair[0].id == pair[1].id, zip(ours, theirs, strict=False))
    own_ids = {mine.id for mine, _ in pairs}
    return _merged(net_changes(_effects(ours, own_ids)), net_changes(_effects(theirs, own_ids)))


def _effects(entries: Sequence[Entry], without: set[UUID]) -> Iterator[FileEffect]:
    """Yield the effects that entries tell of, but for those of some entries."""
    for step in line_of(entries).all_steps:
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
            earlier = _before(tuple(other.theirs), merge)
            if earlier is not None:
                return earlier
    return None
