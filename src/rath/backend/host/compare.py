"""What differs between two scans of a tree, less what is known exactly."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rath._core.blobs import Blob
from rath.backend.effects import Attribution, EffectKind, FileEffect
from rath.backend.host.scan import MAX_HASHED_BYTES, Seen, Snapshot
from rath.backend.manifest import FileState

ToBlob = Callable[[FileState], Blob]
"""Gives the content that a scan saw, with its bytes where they were kept."""

MAX_GAP_PATHS = 5
"""How many paths one gap names."""

_Side = tuple[Blob | None, int | None]
"""Content and mode; None for no file, and for a mode that is not known."""

_NOTHING: _Side = (None, None)


@dataclass(slots=True)
class Difference:
    """What changed between two scans, by whomever."""

    effects: list[FileEffect] = field(default_factory=list[FileEffect])
    gaps: list[str] = field(default_factory=list[str])


def compare(
    before: Snapshot,
    after: Snapshot,
    exact: Mapping[str, Sequence[FileEffect]],
    *,
    to_blob: ToBlob,
    attribution: Attribution,
) -> Difference:
    """Return what changed, beyond the effects that are known exactly.

    A deleted and a created file of equal content are one that was renamed if they share inode and
    time of change, or if no others have that content and it is not empty. O(files).

    Args:
        before: The scan before.
        after: The scan after.
        exact: What file tools did between both scans, by path, in order.
        to_blob: Gives contents.
        attribution: What the effects say.
    """
    if before.is_too_large or after.is_too_large:
        return Difference()
    found = Difference()
    found.gaps += _gaps(before, after)
    changed = _changed_paths(before, after)
    hidden = tuple({*before.unseen, *after.unseen})
    known = [path for path in {*changed, *exact} if not path.startswith(hidden)]
    unread = [path for path in known if not _is_read(path, before, after)]
    large = [path for path in unread if _is_large(path, before, after)]
    if large:
        limit = f"over {MAX_HASHED_BYTES >> 20} MiB: files so large are not read"
        found.gaps.append(f"what changed in {_listed(large)} is not known: {limit}")
    unreadable = sorted({*unread} - {*large})
    if unreadable:
        found.gaps.append(
            f"what changed in {_listed(unreadable)} is not known: it could not be read"
        )
    odd = [path for path in known if shown_path(path) != path]
    if odd:
        found.gaps.append(f"names that are not UTF-8 are shown with escapes: {_listed(odd)}")
    known = sorted({*known} - {*unread})
    rest = [path for path in known if path not in exact]
    renamed = _renames(rest, before.files, after.files)
    gone = set(renamed.values())
    maker = _Maker(to_blob, attribution)
    for path in known:
        if path in gone:
            continue
        old_path = renamed.get(path)
        old = before.files.get(old_path or path)
        new = after.files.get(path)
        if path not in exact:
            found.effects.append(maker.effect(path, old, new, old_path))
        else:
            found.effects += maker.beside(path, old, new, exact[path])
    return found


def shown_path(path: str) -> str:
    r"""Return the path as valid Unicode: bytes that are not UTF-8 as `\xNN`."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class _Maker:
    to_blob: ToBlob
    attribution: Attribution

    def effect(
        self, path: str, old: Seen | None, new: Seen | None, old_path: str | None
    ) -> FileEffect:
        return self._between(path, self._side(old), self._side(new), old_path)

    def beside(
        self, path: str, old: Seen | None, new: Seen | None, exact: Sequence[FileEffect]
    ) -> Iterator[FileEffect]:
        """Give what others did before, between and after the exact effects on one path."""
        at = self._side(old)
        for each in exact:
            found = (each.before, each.before_mode)
            if not _is_same(at, found):
                yield self._between(path, at, found, None)
            at = (each.after, each.after_mode)
        now = self._side(new)
        if not _is_same(at, now):
            yield self._between(path, at, now, None)

    def _between(self, path: str, old: _Side, new: _Side, old_path: str | None) -> FileEffect:
        kind: EffectKind = "changed"
        if old_path is not None:
            kind = "renamed"
        elif old[0] is None:
            kind = "created"
        elif new[0] is None:
            kind = "deleted"
        from_path = None if old_path is None else shown_path(old_path)
        return FileEffect(
            shown_path(path), kind, old[0], new[0], self.attribution, from_path, old[1], new[1]
        )

    def _side(self, seen: Seen | None) -> _Side:
        if seen is None or seen.state is None:
            return _NOTHING
        return self.to_blob(seen.state), seen.mode


def _is_same(one: _Side, other: _Side) -> bool:
    return one[0] == other[0] and (one[1] == other[1] or None in (one[1], other[1]))


def _changed_paths(before: Snapshot, after: Snapshot) -> list[str]:
    old_files, new_files = before.files, after.files
    changed: list[str] = []
    for path, new in new_files.items():
        old = old_files.get(path)
        # The very same object for every file that did not change: no more is looked at.
        if old is not new and (old is None or _differs(old, new)):
            changed.append(path)
    changed += old_files.keys() - new_files.keys()
    return changed


def _differs(old: Seen, new: Seen) -> bool:
    if old.state is None or new.state is None:
        return old.key != new.key
    return old.state != new.state


def _is_read(path: str, before: Snapshot, after: Snapshot) -> bool:
    seen = (before.files.get(path), after.files.get(path))
    return all(each is None or each.state is not None for each in seen)


def _is_large(path: str, before: Snapshot, after: Snapshot) -> bool:
    seen = (before.files.get(path), after.files.get(path))
    return any(each is not None and each.size > MAX_HASHED_BYTES for each in seen)


def _renames(
    changed: Sequence[str], before: Mapping[str, Seen], after: Mapping[str, Seen]
) -> dict[str, str]:
    """Return where the files that were renamed stood before, by their path now."""
    deleted = {path: before[path] for path in changed if path not in after}
    created = {path: after[path] for path in changed if path not in before}
    renamed: dict[str, str] = {}
    for alike in (_same_file, _same_content):
        pairs = _pairs(deleted, created, alike)
        renamed.update(pairs)
        for new_path, old_path in pairs.items():
            del created[new_path], deleted[old_path]
    return renamed


def _same_file(seen: Seen) -> tuple[object, ...] | None:
    # Not the inode alone: a file system gives that of a deleted file to the next one.
    digest = None if seen.state is None else seen.state.digest
    return (*seen.key[1:3], seen.key[4], stat.S_IFMT(seen.mode), digest)


def _same_content(seen: Seen) -> tuple[object, ...] | None:
    if seen.state is None or not seen.state.size:
        return None
    return (seen.state.digest, stat.S_IFMT(seen.mode))


def _pairs(
    deleted: Mapping[str, Seen],
    created: Mapping[str, Seen],
    alike: Callable[[Seen], tuple[object, ...] | None],
) -> dict[str, str]:
    """Pair those of both that are alike, where only one of each is."""
    by_mark = _unique(created, alike)
    olds = _unique(deleted, alike)
    return {new: olds[mark] for mark, new in by_mark.items() if mark in olds}


def _unique(
    files: Mapping[str, Seen], alike: Callable[[Seen], tuple[object, ...] | None]
) -> dict[tuple[object, ...], str]:
    found: dict[tuple[object, ...], str] = {}
    twice: set[tuple[object, ...]] = set()
    for path, seen in files.items():
        mark = alike(seen)
        if mark is None:
            continue
        if mark in found:
            twice.add(mark)
        found[mark] = path
    return {mark: path for mark, path in found.items() if mark not in twice}


def _gaps(before: Snapshot, after: Snapshot) -> Iterator[str]:
    for directory, reason in {**before.unseen, **after.unseen}.items():
        yield f"{shown_path(directory) or './'!r} could not be looked at: {reason}"
    for path in sorted(before.others.keys() | after.others.keys()):
        if before.others.get(path) != after.others.get(path):
            kind = after.others.get(path) or before.others[path]
            yield f"{shown_path(path)!r} is {kind}: only files and links are recorded"


def _listed(paths: Sequence[str]) -> str:
    shown = ", ".join(repr(shown_path(path)) for path in sorted(paths)[:MAX_GAP_PATHS])
    return shown + (f" and {len(paths) - MAX_GAP_PATHS} more" if len(paths) > MAX_GAP_PATHS else "")
