"""Three-way merge of the files of two workspaces; conflicts are values."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from rath._async.runtime import runtime
from rath._core.blobs import MAX_BLOB_BYTES, Blob
from rath.backend.effects import EffectKind, FileEffect
from rath.backend.frozen import NewFile
from rath.backend.manifest import FileState, Manifest
from rath.session.file_changes.diff import is_text
from rath.session.file_changes.merge_text import chosen, merge_texts

ConflictKind = Literal[
    "content", "binary", "link", "too_large", "mode", "type", "deleted", "added", "directory"
]
"""What both sides did: changed the same lines of a text; changed a file that is no text, a link, or
a file of more than 1 MiB; gave it different modes; one made it a link, or a link a file, which the
other changed; one changed what the other deleted; added different files; one has a file where the
other has a directory."""


class Tree(Protocol):
    """Files to merge: a frozen workspace, or what is known of one."""

    async def amanifest(self) -> Manifest:
        """Return what it holds."""
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
    """What becomes of our files, and where the sides do not agree."""

    changes: Mapping[str, NewFile | None]
    """What is new in our files, by path; None where a file is taken away."""

    conflicts: tuple[FileConflict, ...]
    """Sorted by path."""


@dataclass(frozen=True, slots=True)
class _Trees:
    base: Tree
    ours: Tree
    theirs: Tree


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


async def merge_trees(base: Tree, ours: Tree, theirs: Tree) -> Merge:
    """Return what makes our files the merge of both sides.

    What only one side changed is taken from it; texts that both changed are merged by lines.
    """
    trees = _Trees(base, ours, theirs)
    before, mine, others = (
        await base.amanifest(),
        await ours.amanifest(),
        await theirs.amanifest(),
    )
    paths = [_States(*each) for each in _side_by_side(before, mine, others)]
    clashing = _clashing(paths)
    changes: dict[str, NewFile | None] = {}
    conflicts: list[FileConflict] = []
    for states in paths:
        outcome = "directory" if states.path in clashing else await _outcome(trees, states)
        if isinstance(outcome, str):
            conflicts.append(await _conflict(trees, states, outcome))
        elif outcome is not _KEEP:
            changes[states.path] = outcome.new
    return Merge(changes, tuple(conflicts))


@dataclass(frozen=True, slots=True)
class _Change:
    """What our file becomes; None takes it away."""

    new: NewFile | None


_KEEP = _Change(None)
"""Our file stays as it is; known by identity."""


async def merge_effects(merge: Merge, ours: Tree) -> tuple[FileEffect, ...]:
    """Return what a merge changes in our files."""
    manifest = await ours.amanifest()
    effects: list[FileEffect] = []
    for path, new in merge.changes.items():
        before = await _version(ours, path, manifest.get(path))
        after = None if new is None else FileVersion(Blob.from_bytes(new.data), new.mode)
        kind: EffectKind = "deleted" if after is None else "changed" if before else "created"
        effects.append(
            FileEffect(
                path,
                kind,
                None if before is None else before.content,
                None if after is None else after.content,
                before_mode=None if before is None else before.mode,
                after_mode=None if after is None else after.mode,
            )
        )
    return tuple(effects)


async def _outcome(trees: _Trees, states: _States) -> _Change | ConflictKind:
    """Return what becomes of one path, or why that cannot be told."""
    base, ours, theirs = states.base, states.ours, states.theirs
    if states.is_same or theirs == base:
        return _KEEP
    if ours == base:
        if theirs is None:
            return _Change(None)
        return _Change(NewFile(await trees.theirs.aread(states.path), theirs.mode))
    if base is None:
        return "added"
    if ours is None or theirs is None:
        return "deleted"
    return await _both_changed(trees, states.path, base, (ours, theirs))


async def _both_changed(
    trees: _Trees, path: str, base: FileState, sides: tuple[FileState, FileState]
) -> _Change | ConflictKind:
    ours, theirs = sides
    mode = chosen(base.mode, ours.mode, theirs.mode)
    types = [stat.S_IFMT(each.mode) for each in (base, ours, theirs)]
    if len(set(types)) > 1:
        return "link" if types[1:] == [stat.S_IFLNK] * 2 else "type"
    if mode is None:
        return "mode"
    digest = chosen(base.digest, ours.digest, theirs.digest)
    if digest is not None:
        tree = trees.ours if digest == ours.digest else trees.theirs
        return _Change(NewFile(await tree.aread(path), mode))
    if stat.S_ISLNK(mode):
        return "link"
    if max(base.size, ours.size, theirs.size) > MAX_BLOB_BYTES:
        return "too_large"
    texts = [await tree.aread(path) for tree in (trees.base, trees.ours, trees.theirs)]
    if not all(map(is_text, texts)):
        return "binary"
    merging = partial(merge_texts, *(text.decode() for text in texts))
    merged = await runtime().call_in_worker(merging)
    return "content" if merged is None else _Change(NewFile(merged.encode(), mode))


async def _conflict(trees: _Trees, states: _States, kind: ConflictKind) -> FileConflict:
    sides = (
        (trees.base, states.base),
        (trees.ours, states.ours),
        (trees.theirs, states.theirs),
    )
    base, ours, theirs = [await _version(tree, states.path, state) for tree, state in sides]
    return FileConflict(states.path, kind, base, ours, theirs)


async def _version(tree: Tree, path: str, state: FileState | None) -> FileVersion | None:
    if state is None:
        return None
    data = await tree.aread(path) if state.size <= MAX_BLOB_BYTES else None
    return FileVersion(Blob(state.digest, state.size, data), state.mode)


def _side_by_side(
    base: Manifest, ours: Manifest, theirs: Manifest
) -> Iterator[tuple[str, FileState | None, FileState | None, FileState | None]]:
    for path in sorted(base.keys() | ours.keys() | theirs.keys()):
        yield path, base.get(path), ours.get(path), theirs.get(path)


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
