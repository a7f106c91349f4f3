"""The state of a file tree at one moment, and what differs between two states."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_modules
from rath.backend.effects import Attribution, EffectKind, FileEffect
from rath.errors import BackendError

if TYPE_CHECKING:
    import hashlib
else:
    (hashlib,) = lazy_modules(__name__, "hashlib")


IGNORED_NAMES = frozenset(
    {
        ".git", ".hg", ".mypy_cache", ".nox", ".openrath", ".pytest_cache", ".ruff_cache", ".svn",
        ".tox", ".venv", "__pycache__", "node_modules", "venv",
    }
)  # fmt: skip
"""Directories that are not looked at: what tools keep there is theirs, and large."""

MAX_HASHED_BYTES = 256 << 20
"""Larger files are known by their `stat` only, so that a sparse file of a terabyte costs nothing;
a guess, about half a second of reading."""

MAX_GAP_PATHS = 5
"""How many paths one gap names."""


@dataclass(frozen=True, slots=True)
class EffectPolicy:
    """Policy of the scans around commands and code that tell what these changed."""

    is_on: bool = True
    """False: effects of commands and code are not looked for; file tools still tell theirs."""

    ignore: frozenset[str] = IGNORED_NAMES
    """Names of directories, at any depth, that are passed over."""

    max_files: int = 100_000
    """Above so many files nothing is looked for, and the record says so."""

    keep_contents: bool = True
    """Whether contents before and after are kept; digests and sizes are in any case."""


@dataclass(frozen=True, slots=True)
class FileState:
    """One file or symbolic link at one moment."""

    digest: str
    """sha256 of the content, of the target's text for a link; in hex."""

    size: int
    """Length of the content in bytes."""

    mode: int
    """Type and permission bits, `st_mode`."""


Manifest = Mapping[str, FileState]
"""Files and links by path relative to the root, `/` between names."""


def manifest_digest(manifest: Manifest) -> str:
    """Return the sha256 over paths, modes and digests, in hex: equal trees, equal digests."""
    digest = hashlib.sha256()
    for path in sorted(manifest):
        state = manifest[path]
        digest.update(f"{path}\0{state.mode:o}\0{state.digest}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


StatKey = tuple[int, int, int, int, int, int]
"""mode, inode, device, size, mtime and ctime in ns: equal keys, equal content."""


@dataclass(slots=True, eq=False)
class ScannedFile:
    """One file or link as a scan saw it; the next scan uses it again if nothing changed."""

    key: StatKey
    state: FileState | None
    """None where the content was not read, could not be read or is too large to be looked at."""

    is_settled: bool
    """Whether a later change must give it another key."""

    @property
    def mode(self) -> int:
        """Type and permission bits."""
        return self.key[0]

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.key[3]


ScanCache = dict[StatKey, ScannedFile]
"""Files whose content need not be read again."""


@dataclass(slots=True)
class TreeState:
    """The result of a scan."""

    files: dict[str, ScannedFile] = field(default_factory=dict[str, ScannedFile])
    """Files and links by path; names that are not UTF-8 hold surrogate escapes."""

    others: dict[str, str] = field(default_factory=dict[str, str])
    """Pipes, sockets and devices, with their kind in words."""

    unseen: dict[str, str] = field(default_factory=dict[str, str])
    """Directories that could not be looked at, `/` at their end, with the reason."""

    is_too_large: bool = False
    """Whether it was given up at `max_files`."""

    def manifest(self) -> Manifest | None:
        """Return digests by path; None where something could not be looked at."""
        states = {path: seen.state for path, seen in self.files.items() if seen.state is not None}
        is_complete = len(states) == len(self.files) and not self.unseen and not self.is_too_large
        return states if is_complete else None

    def required_manifest(self, policy: EffectPolicy) -> Manifest:
        """Return digests by path, for who needs all of them.

        Args:
            policy: That of the scan.

        Raises:
            BackendError: Something could not be looked at.
        """
        manifest = self.manifest()
        if manifest is None:
            unread = [path for path, seen in self.files.items() if seen.state is None]
            missing = ", ".join([*unread, *self.unseen][:3])
            where = missing or f"it has more than {policy.max_files} files"
            raise BackendError(
                "the files of a workspace cannot be told apart: not all can be looked at "
                f"({where}); make them readable, or remove them"
            )
        return manifest


@dataclass(slots=True)
class TreeDiff:
    """Changes between two scans, by whomever."""

    effects: list[FileEffect] = field(default_factory=list[FileEffect])
    gaps: list[str] = field(default_factory=list[str])


_Side = tuple[Blob | None, int | None]
"""Content and mode; None for no file, and for a mode that is not known."""


def diff(
    before: TreeState,
    after: TreeState,
    exact: Mapping[str, Sequence[FileEffect]],
    *,
    to_blob: Callable[[FileState], Blob],
    attribution: Attribution,
) -> TreeDiff:
    """Return what changed, beyond the effects that are known exactly.

    A deleted and a created file of equal content are one that was renamed if they share inode and
    time of change, or if no others have that content and it is not empty. O(files).

    Args:
        before: The scan before.
        after: The scan after.
        exact: What file tools did between both scans, by path, in order.
        to_blob: Gives the content that a scan saw, with its bytes where they were kept.
        attribution: What the effects say.
    """
    if before.is_too_large or after.is_too_large:
        return TreeDiff()
    old, new = before.files, after.files
    changed = _changed_paths(old, new)
    unseen = tuple({*before.unseen, *after.unseen})
    if not (changed or exact or unseen) and before.others == after.others:
        return TreeDiff()
    paths = sorted(path for path in {*changed, *exact} if not path.startswith(unseen))
    unread = {
        path
        for path in paths
        if any(each is not None and each.state is None for each in (old.get(path), new.get(path)))
    }
    found = TreeDiff(gaps=list(_gaps(before, after, paths, unread)))
    paths = [path for path in paths if path not in unread]
    renamed = _renames([path for path in paths if path not in exact], old, new)
    gone = set(renamed.values())

    def side(seen: ScannedFile | None) -> _Side:
        return (
            (None, None) if seen is None or seen.state is None else (to_blob(seen.state), seen.mode)
        )

    for path in paths:
        if path in gone:
            continue
        # What others did before, between and after the exact effects.
        at = side(old.get(renamed.get(path, path)))
        for each in exact.get(path, ()):
            if not _is_same(at, (each.before, each.before_mode)):
                found.effects.append(
                    _effect(path, at, (each.before, each.before_mode), attribution)
                )
            at = (each.after, each.after_mode)
        now = side(new.get(path))
        if path not in exact or not _is_same(at, now):
            found.effects.append(_effect(path, at, now, attribution, renamed.get(path)))
    return found


def _effect(
    path: str, old: _Side, new: _Side, attribution: Attribution, old_path: str | None = None
) -> FileEffect:
    kind: EffectKind = "changed"
    if old_path is not None:
        kind, old_path = "renamed", display_path(old_path)
    elif old[0] is None:
        kind = "created"
    elif new[0] is None:
        kind = "deleted"
    return FileEffect(
        display_path(path), kind, old[0], new[0], attribution, old_path, old[1], new[1]
    )


def display_path(path: str) -> str:
    r"""Return the path as valid Unicode: bytes that are not UTF-8 as `\xNN`."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _changed_paths(old: Mapping[str, ScannedFile], new: Mapping[str, ScannedFile]) -> list[str]:
    # The very same object for every file that did not change: no more is looked at.
    changed = [
        path
        for path, now in new.items()
        if old.get(path) is not now and _differs(old.get(path), now)
    ]
    return [*changed, *(old.keys() - new.keys())]


def _differs(old: ScannedFile | None, new: ScannedFile) -> bool:
    if old is None or old.state is None or new.state is None:
        return old is None or old.key != new.key
    return old.state != new.state


def _is_same(one: _Side, other: _Side) -> bool:
    return one[0] == other[0] and (one[1] == other[1] or None in (one[1], other[1]))


def _renames(
    changed: Sequence[str], old: Mapping[str, ScannedFile], new: Mapping[str, ScannedFile]
) -> dict[str, str]:
    """Return where the files that were renamed stood before, by their path now."""
    deleted = {path: old[path] for path in changed if path not in new}
    created = {path: new[path] for path in changed if path not in old}
    renamed: dict[str, str] = {}
    for mark_of in (_file_mark, _content_mark):
        marks = _unique(deleted, mark_of)
        for mark, path in _unique(created, mark_of).items():
            if mark in marks:
                renamed[path] = marks[mark]
                del created[path], deleted[marks[mark]]
    return renamed


def _file_mark(seen: ScannedFile) -> tuple[object, ...] | None:
    # Not the inode alone: a file system gives that of a deleted file to the next one.
    digest = None if seen.state is None else seen.state.digest
    return (*seen.key[1:3], seen.key[4], stat.S_IFMT(seen.mode), digest)


def _content_mark(seen: ScannedFile) -> tuple[object, ...] | None:
    if seen.state is None or not seen.state.size:
        return None
    return (seen.state.digest, stat.S_IFMT(seen.mode))


def _unique(
    files: Mapping[str, ScannedFile], mark_of: Callable[[ScannedFile], tuple[object, ...] | None]
) -> dict[tuple[object, ...], str]:
    """Return the paths of files by a mark that no other of them has."""
    by_mark: dict[tuple[object, ...], list[str]] = {}
    for path, seen in files.items():
        mark = mark_of(seen)
        if mark is not None:
            by_mark.setdefault(mark, []).append(path)
    return {mark: paths[0] for mark, paths in by_mark.items() if len(paths) == 1}


def _gaps(
    before: TreeState, after: TreeState, changed: Sequence[str], unread: set[str]
) -> Iterator[str]:
    for directory, reason in {**before.unseen, **after.unseen}.items():
        yield f"{display_path(directory) or './'!r} could not be looked at: {reason}"
    for path in sorted(before.others.keys() | after.others.keys()):
        if before.others.get(path) != after.others.get(path):
            kind = after.others.get(path) or before.others[path]
            yield f"{display_path(path)!r} is {kind}: only files and links are recorded"
    large = {
        path
        for path in unread
        if any(
            state.files[path].size > MAX_HASHED_BYTES
            for state in (before, after)
            if path in state.files
        )
    }
    if large:
        limit = f"over {MAX_HASHED_BYTES >> 20} MiB: files so large are not read"
        yield f"what changed in {_listed(large)} is not known: {limit}"
    if unread - large:
        yield f"what changed in {_listed(unread - large)} is not known: it could not be read"
    escaped = {path for path in changed if display_path(path) != path}
    if escaped:
        yield f"names that are not UTF-8 are shown with escapes: {_listed(escaped)}"


def _listed(paths: set[str]) -> str:
    shown = ", ".join(repr(display_path(path)) for path in sorted(paths)[:MAX_GAP_PATHS])
    return shown + (f" and {len(paths) - MAX_GAP_PATHS} more" if len(paths) > MAX_GAP_PATHS else "")
