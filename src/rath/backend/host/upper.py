"""What was changed on top of a directory, read from the upper directory of an overlay alone.

Format: https://docs.kernel.org/filesystems/overlayfs.html (whiteouts, opaque directories).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from rath._core.blobs import MAX_BLOB_BYTES, Blob
from rath.backend.host.compare import Difference, compare
from rath.backend.host.contents import ContentStore
from rath.backend.host.scan import MAX_DEPTH, Keep, Known, Snapshot, fill, scan, stat_scan
from rath.backend.manifest import EffectPolicy, FileState

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Namespace = Literal["trusted", "user"]
"""Where the kernel puts its marks: "user" for an overlay that was mounted in a user namespace. A
command could forge those of the other one."""


class NotPlain(Exception):
    """The upper directory says something that only the kernel resolves, as redirects do."""


@dataclass(slots=True)
class _Marks:
    """What an upper directory says of the one below, besides its files."""

    hidden: list[str] = field(default_factory=list[str])
    """Paths at which nothing of the lower directory is seen, nor below them."""

    replaced: list[str] = field(default_factory=list[str])
    """Directories, which merge with one below and hide a file."""

    whiteouts: set[str] = field(default_factory=set[str])
    """Entries that only say that something was removed."""


class OverlaySource:
    """Looks at an overlay by its two directories; O(what was changed) after the first look.

    Args:
        lower: The files below, which nobody changes any more.
        upper: What was changed.
        door: The merged files, looked at instead if the upper directory cannot be understood.
        namespace: Where the marks of the kernel are.
    """

    def __init__(self, lower: str, upper: str, door: str, namespace: Namespace) -> None:
        self._lower = lower
        self._upper = upper
        self._door = door
        self.namespace: Namespace = namespace
        self._below: dict[EffectPolicy, Snapshot] = {}
        self._directories_below: dict[EffectPolicy, set[str]] = {}
        self._is_plain = True

    def __call__(self, policy: EffectPolicy, *, known: Known, keep: Keep | None) -> Snapshot:
        lower = self.below(policy)
        if lower.is_too_large or not self._is_plain:
            return scan(self._door, policy, known=known, keep=keep)
        try:
            marks = _marks(self._upper, policy, self.namespace)
        except NotPlain:
            self._is_plain = False
            fill(self._lower, lower, lower.files, keep=keep)
            return scan(self._door, policy, known=known, keep=keep)
        found = scan(self._upper, policy, known=known, keep=keep)
        if found.is_too_large:
            return found
        gone = _gone(lower, self._directories(policy), marks)
        fill(self._lower, lower, gone & lower.files.keys(), keep=keep)
        files = {path: seen for path, seen in lower.files.items() if path not in gone}
        files.update(found.files)
        if len(files) > policy.max_files:
            return Snapshot(is_too_large=True)
        others = {path: kind for path, kind in lower.others.items() if path not in gone}
        others.update(
            (path, kind) for path, kind in found.others.items() if path not in marks.whiteouts
        )
        return Snapshot(files, others, {**lower.unseen, **found.unseen})

    def below(self, policy: EffectPolicy) -> Snapshot:
        """Return the files below as they were in the beginning; most of them are not read."""
        if policy not in self._below:
            self._below[policy] = stat_scan(self._lower, policy)
        return self._below[policy]

    def _directories(self, policy: EffectPolicy) -> set[str]:
        if policy not in self._directories_below:
            lower = self.below(policy)
            found: set[str] = set()
            for path in (*lower.files, *lower.others):
                found.update(_above(path))
            self._directories_below[policy] = found
        return self._directories_below[policy]

    def read_all(self, policy: EffectPolicy, *, keep: Keep | None) -> None:
        """Read all files below, for who needs their digests."""
        lower = self.below(policy)
        fill(self._lower, lower, lower.files, keep=keep)


def _gone(lower: Snapshot, directories: set[str], marks: _Marks) -> set[str]:
    """Return what the upper directory hides; O(files below) only if it hides a directory.

    Args:
        lower: The files below.
        directories: The directories below that hold any of them.
        marks: What the upper directory says.
    """
    entries = lower.files.keys() | lower.others.keys()
    gone = {path for path in (*marks.hidden, *marks.replaced) if path in entries}
    hidden = directories.intersection(marks.hidden)
    if hidden:
        gone.update(path for path in entries if not hidden.isdisjoint(_above(path)))
    return gone


def _above(path: str) -> Iterator[str]:
    """Yield the directories in which a path lies."""
    while end := path.rpartition("/")[0]:
        yield end
        path = end


def effects_from_upper(
    upper: str,
    lower: str,
    policy: EffectPolicy | None = None,
    *,
    namespace: Namespace = "trusted",
) -> Difference:
    """Return all that was changed on top of `lower`, without looking at the rest of it; blocks.

    Args:
        upper: Upper directory of an overlay that was mounted over `lower` alone.
        lower: The directory below, unchanged since.
        policy: What is passed over.
        namespace: Where the marks of the kernel are.

    Raises:
        NotPlain: It holds redirects or files of metadata only; look at the merged files instead.
    """
    policy = policy or EffectPolicy()
    store = ContentStore()
    source = OverlaySource(lower, upper, lower, namespace)
    before = source.below(policy)
    _marks(upper, policy, namespace)
    after = source(policy, known={}, keep=store.put if policy.keep_contents else None)

    def blob(state: FileState) -> Blob:
        content = store.get(state.digest) if state.size <= MAX_BLOB_BYTES else None
        return Blob(state.digest, state.size, content)

    found = compare(before, after, {}, to_blob=blob, attribution="window")
    store.close()
    return found


def _marks(upper: str, policy: EffectPolicy, namespace: Namespace) -> _Marks:
    """Walk an upper directory; raises `NotPlain`."""
    found = _Marks()
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(upper, _DIRECTORY)
        try:
            _Walk(policy, namespace, found).through(fd, "")
        finally:
            os.close(fd)
    return found


@dataclass(slots=True)
class _Walk:
    policy: EffectPolicy
    namespace: Namespace
    found: _Marks

    def through(self, fd: int, prefix: str) -> None:
        directories: list[str] = []
        with os.scandir(fd) as entries:
            for entry in entries:
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    self.found.replaced.append(path)
                    if entry.name not in self.policy.ignore:
                        directories.append(entry.name)
                    continue
                self.found.hidden.append(path)
                if entry.is_file(follow_symlinks=False):
                    if self._mark(fd, entry.name, "metacopy") is not None:
                        raise NotPlain(f"{path!r} holds metadata only")
                elif _is_whiteout(entry):
                    self.found.whiteouts.add(path)
        for name in directories:
            self._enter(fd, prefix, name)

    def _enter(self, above: int, prefix: str, name: str) -> None:
        path = prefix + name
        if path.count("/") >= MAX_DEPTH:
            return  # no scan goes there, and each tells so
        if self._mark(above, name, "redirect") is not None:
            raise NotPlain(f"{path!r} is redirected")
        opaque = self._mark(above, name, "opaque")
        if opaque == b"y":
            self.found.hidden.append(path)
        elif opaque is not None:
            raise NotPlain(f"{path!r} is marked as {opaque!r}")
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=above)
        except OSError:
            return  # gone, or closed to us: then the scan of the upper directory tells so
        try:
            self.through(fd, f"{path}/")
        finally:
            os.close(fd)

    def _mark(self, directory: int, name: str, kind: str) -> bytes | None:
        """Return an attribute that the kernel put on an entry, None where there is none."""
        path = f"/proc/self/fd/{directory}/{name}"
        try:
            return os.getxattr(path, f"{self.namespace}.overlay.{kind}", follow_symlinks=False)
        except OSError as exc:
            if exc.errno in (errno.ENODATA, errno.ENOTSUP, errno.ENOENT):
                return None
            raise NotPlain(f"the marks of {name!r} cannot be read: {exc.strerror}") from exc


def _is_whiteout(entry: os.DirEntry[str]) -> bool:
    try:
        state = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISCHR(state.st_mode) and state.st_rdev == 0
