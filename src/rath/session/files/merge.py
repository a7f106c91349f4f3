"""Merging files three ways, and writing changes of files into a directory."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import cache, cached_property, partial
from hashlib import file_digest, sha256
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol, TypeVar
from uuid import UUID

from rath._async.runtime import runtime
from rath._core.blobs import MAX_BLOB_BYTES, Blob
from rath._core.dataclasses import dataclass
from rath.backend import BackendSandbox, BackendToolFilesRead, FileContent
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
"""Kind of conflict: both changed the same lines of a text; changed a file that is no text, a link
or a file of more than 1 MiB; gave it different modes; one made it a link, or a link a file, which
the other changed; one changed what the other deleted; added different files; one has a file where
the other has a directory."""


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
    """The file with which both began, None for none."""

    ours: FileVersion | None
    theirs: FileVersion | None


@dataclass(frozen=True, slots=True)
class FileMerge:
    """The merged state of our files, and the conflicts between the sides."""

    changes: Mapping[str, NewFile | None]
    """New content of our files, by path; None where a file is removed."""

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


async def merge_trees(base: MergeTree, ours: MergeTree, theirs: MergeTree) -> FileMerge:
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
    return FileMerge(changes, tuple(conflicts))


async def merge_effects(merge: FileMerge, ours: MergeTree) -> tuple[FileEffect, ...]:
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


class Writing:
    """Planned changes below a directory; nothing of them is seen there before the end."""

    def __init__(self, root: Path, temporary: Path) -> None:
        self._root = root
        self._temporary = temporary
        """Where new files wait, and old ones until all is done."""

        self._n_temporary = 0
        self._removed: list[Path] = []
        self._new: list[tuple[Path, Path]] = []
        self._modes: list[tuple[Path, int]] = []
        self._steps_back: list[Callable[[], object]] = []

    def remove(self, path: str) -> None:
        """Have a file removed."""
        self._removed.append(self._root / path)

    def chmod(self, path: str, mode: int) -> None:
        """Have a file given other permission bits."""
        self._modes.append((self._root / path, stat.S_IMODE(mode)))

    def write(self, path: str, content: Iterable[bytes], *, mode: int) -> str:
        """Have a file written, or a link made; return the sha256 of its content."""
        waiting = self._temporary_path()
        digest = sha256()
        if stat.S_ISLNK(mode):
            target = b"".join(content)
            waiting.symlink_to(os.fsdecode(target))
            digest.update(target)
        else:
            with waiting.open("xb") as file:
                for part in content:
                    file.write(part)
                    digest.update(part)
            waiting.chmod(stat.S_IMODE(mode))
        self._new.append((self._root / path, waiting))
        return digest.hexdigest()

    def finish(self) -> None:
        """Do all of it."""
        # What is taken away first may make room for what comes.
        for path in self._removed:
            self._take_away(path)
        for path, waiting in self._new:
            self._make_directory(path.parent)
            if os.path.lexists(path):
                self._take_away(path)
            waiting.rename(path)
            self._steps_back.append(partial(path.rename, waiting))
        for path, mode in self._modes:
            before = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode)
            self._steps_back.append(partial(path.chmod, before))

    def step_back(self) -> list[OSError]:
        """Undo what was done so far; return what stood against it."""
        faults: list[OSError] = []
        for step in reversed(self._steps_back):
            try:
                step()
            except OSError as exc:
                faults.append(exc)
        return faults

    def _take_away(self, path: Path) -> None:
        """Move a file aside, or a directory that no files are left in."""
        backup = self._temporary_path()
        path.rename(backup)
        self._steps_back.append(partial(backup.rename, path))

    def _make_directory(self, path: Path) -> None:
        if path.is_dir():
            return
        self._make_directory(path.parent)
        path.mkdir()
        self._steps_back.append(path.rmdir)

    def _temporary_path(self) -> Path:
        self._n_temporary += 1
        return self._temporary / str(self._n_temporary)


@contextmanager
def all_or_none(root: Path) -> Generator[Writing]:
    """Collect what is to be done below `root` and do it at the end of the block.

    An error inside the block, or in doing it, leaves everything as it was. A process that is killed
    in the middle leaves the old files in a directory whose name begins with `.rath_apply_`.

    Raises:
        OSError: Something could not be done, so nothing was.
    """
    temporary = Path(tempfile.mkdtemp(prefix=".rath_apply_", dir=root))
    writing = Writing(root, temporary)
    try:
        yield writing
        writing.finish()
    except BaseException as exc:
        faults = writing.step_back()
        if faults:
            exc.add_note(f"not all could be put back, the rest is in {str(temporary)!r}: {faults}")
        else:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(temporary, ignore_errors=True)


Contents = Callable[[str], Iterable[bytes]]
"""Gives the content of a file of the workspace in parts."""


@dataclass(frozen=True, slots=True)
class _PathPlan:
    """One path: what must be there, and what shall be there; None stands for nothing."""

    path: str
    before: str | None
    """sha256 of the content, of a link's target."""

    after: str | None
    data: bytes | None
    mode: int
    moved_from: str | None = None
    """Where in the directory the same content stands now."""


@dataclass(frozen=True)
class _PathState:
    """The present state of a path of the directory; a link is not followed."""

    place: Path
    mode: int | None = None
    """`st_mode`, None where there is nothing."""

    behind: str | None = None
    """The path above that is no directory, so that there is nothing."""

    @cached_property
    def digest(self) -> str | None:
        """The sha256 of a file or of a link's target, None for anything else."""
        if self.mode is None:
            return None
        if stat.S_ISLNK(self.mode):
            return sha256(os.fsencode(os.readlink(self.place))).hexdigest()
        if not stat.S_ISREG(self.mode):
            return None
        with self.place.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()

    def has_content(self, one: _PathPlan) -> bool:
        """Whether at most the permission bits are to be changed."""
        is_same_kind = stat.S_IFMT(self.mode or 0) == stat.S_IFMT(one.mode)
        return is_same_kind and self.digest == one.after

    @property
    def is_directory(self) -> bool:
        return self.mode is not None and stat.S_ISDIR(self.mode)


def apply_changes(
    changes: Sequence[FileEffect],
    directory: str | os.PathLike[str],
    *,
    contents: Contents | None = None,
) -> list[str]:
    """Write changes below `directory` and return the paths that were touched, sorted.

    Args:
        changes: Net changes, each path once.
        directory: Root of the tree to change.
        contents: Asked for what the changes do not hold, as it is after them.

    Raises:
        ValueError: A path is not as the changes found or left it, or leads out, or its content
            is not to be had; nothing was written.
        NotADirectoryError: There is no such directory.
        OSError: Something could not be written; everything is as it was.
    """
    root = Path(directory)
    if not root.is_dir():
        raise NotADirectoryError(f"cannot apply changes to {str(root)!r}: it is no directory")
    wanted = {one.path: one for change in changes for one in _plans_of(change)}
    check = _DirectoryCheck(root, wanted, contents)
    problems = [problem for path in sorted(wanted) if (problem := check.problem(wanted[path]))]
    if problems:
        raise ValueError(
            f"nothing was written to {str(root)!r}, since files there are not as the changes "
            f"found them: {'; '.join(problems)}. Bring them back to that, or apply the parts that "
            "fit with files.diff()"
        )
    todo = [wanted[path] for path in sorted(wanted) if not check.is_done(wanted[path])]
    if todo:
        with all_or_none(root) as writing:
            for one in todo:
                _plan(one, check, writing)
    return [one.path for one in todo]


def contents_of(sandbox: BackendSandbox, path: str) -> Iterator[bytes]:
    """Yield the content of a file of an open sandbox in parts.

    Raises:
        BackendError: It cannot be read.
    """
    offset: int | None = 0
    while offset is not None:
        result = sandbox.dispatch(
            BackendToolFilesRead(path, encoding=None, offset=offset, limit=MAX_BLOB_BYTES)
        )
        if not isinstance(result, FileContent) or isinstance(result.data, str):
            raise BackendError(
                f"nothing was written, since the content of {path!r} was not kept and cannot be "
                f"read in the workspace: {result!r:.200}"
            )
        yield result.data
        offset = result.next_offset


def _plans_of(change: FileEffect) -> Iterator[_PathPlan]:
    before = None if change.before is None else change.before.digest
    after = None if change.after is None else change.after.digest
    data = None if change.after is None else change.after.data
    mode = change.after_mode or PLAIN_FILE
    moved_from = change.renamed_from if before == after else None
    if change.renamed_from is not None:
        yield _PathPlan(change.renamed_from, before, None, None, PLAIN_FILE)
        before = None
    yield _PathPlan(change.path, before, after, data, mode, moved_from)


class _DirectoryCheck:
    """Looks at a directory before anything is written to it."""

    def __init__(
        self, root: Path, wanted: Mapping[str, _PathPlan], contents: Contents | None
    ) -> None:
        self._root = root
        self._wanted = wanted
        self._contents = contents
        self.found = cache(self._look)
        """Returns what stands at a path."""

    def is_done(self, one: _PathPlan) -> bool:
        """Tell whether a path is as the changes leave it."""
        state = self.found(one.path)
        if one.after is not None:
            mode = state.mode or 0
            return state.has_content(one) and (stat.S_ISLNK(mode) or (mode ^ one.mode) & 0o111 == 0)
        # A file made way for a directory.
        return state.mode is None or (
            state.is_directory
            and any(
                other.after is not None and path.startswith(f"{one.path}/")
                for path, other in self._wanted.items()
            )
        )

    def problem(self, one: _PathPlan) -> str | None:
        """Return why a path cannot be written, None where it can."""
        parts = PurePosixPath(one.path).parts
        if not parts or one.path.startswith("/") or ".." in parts:
            return f"{one.path!r} leads out of the directory"
        state = self.found(one.path)
        if state.behind is not None:
            above = self._wanted.get(state.behind)
            if above is None and stat.S_ISLNK(self.found(state.behind).mode or 0):
                return f"{one.path!r} lies behind the symbolic link {state.behind!r}"
            if one.after is not None and (above is None or above.after is not None):
                return f"{one.path!r} lies behind {state.behind!r}, which is no directory"
        if self.is_done(one):
            return None
        return self._misfit(one, state) or self._missing(one, state)

    def content(self, one: _PathPlan) -> Iterable[bytes]:
        """Return the new content of a file."""
        if one.data is not None:
            return [one.data]
        if self._is_moved(one):
            assert one.moved_from is not None
            return _parts(self.found(one.moved_from).place)
        assert self._contents is not None
        return self._contents(one.path)

    def _look(self, path: str) -> _PathState:
        place = self._root / path
        for above in [*PurePosixPath(path).parents][::-1][1:]:  # but for the root itself
            mode = _mode(self._root / above)
            if mode is not None and not stat.S_ISDIR(mode):
                return _PathState(place, None, str(above))
        return _PathState(place, _mode(place))

    def _misfit(self, one: _PathPlan, state: _PathState) -> str | None:
        if state.digest == one.before and (state.mode is None or one.before is not None):
            return None
        if state.is_directory and one.before is None and self._is_emptied(state.place):
            return None
        expected = "no file" if one.before is None else "the file that was changed"
        actual = (
            "none" if state.mode is None else "a directory" if state.is_directory else "another"
        )
        return f"{one.path!r}: expected {expected}, found {actual}"

    def _is_emptied(self, directory: Path) -> bool:
        """Tell whether nothing but directories is left of a directory."""
        for above, below, names in os.walk(directory):
            links = [name for name in below if os.path.islink(os.path.join(above, name))]
            for name in [*names, *links]:
                path = Path(above, name).relative_to(self._root).as_posix()
                if path not in self._wanted or self._wanted[path].after is not None:
                    return False
        return True

    def _missing(self, one: _PathPlan, state: _PathState) -> str | None:
        is_there = one.after is None or one.data is not None or state.has_content(one)
        if is_there or self._is_moved(one) or self._contents is not None:
            return None
        return (
            f"the content of {one.path!r} was not kept, since it has more than {MAX_BLOB_BYTES} "
            "bytes or effects keep none, and the sandbox of the session, which has it, is not open"
        )

    def _is_moved(self, one: _PathPlan) -> bool:
        return one.moved_from is not None and self.found(one.moved_from).digest == one.after


def _mode(place: Path) -> int | None:
    try:
        return place.lstat().st_mode
    except FileNotFoundError:
        return None


def _plan(one: _PathPlan, check: _DirectoryCheck, writing: Writing) -> None:
    """Have one path written.

    Raises:
        ValueError: Its content is another one by now.
    """
    if one.after is None:
        writing.remove(one.path)
    elif check.found(one.path).has_content(one):
        writing.chmod(one.path, one.mode)
    elif writing.write(one.path, check.content(one), mode=one.mode) != one.after:
        raise ValueError(
            f"nothing was written, since the content of {one.path!r} was not kept and in the "
            "workspace it is not as the changes left it: later calls or somebody else changed it"
        )


def _parts(place: Path) -> Iterator[bytes]:
    with place.open("rb") as file:
        while part := file.read(MAX_BLOB_BYTES):
            yield part
