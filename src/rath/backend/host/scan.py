"""What a directory tree holds at one moment: a walk by `stat` that reads only what is new."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from operator import attrgetter
from typing import cast

from rath._core.blobs import MAX_BLOB_BYTES
from rath.backend.host.temporaries import is_temporary
from rath.backend.manifest import EffectPolicy, FileState, Manifest

RACY_NS = 20_000_000
"""A file that changed so shortly before it was read may change again within the same time stamp
(a tick of the kernel, 4 to 10 ms); it is read again the next time. See "racy git" in the technical
notes of git: https://git-scm.com/docs/racy-git"""

MAX_HASHED_BYTES = 256 << 20
"""Larger files are known by their `stat` only, so that a sparse file of a terabyte costs nothing;
a guess, about half a second of reading."""

MAX_SCAN_BYTES = 4 << 30
"""How much one scan reads; what is left is read by the next one. A guess."""

MAX_DEPTH = 256
"""Directories below each other that are walked; each holds a descriptor open."""

StatKey = tuple[int, int, int, int, int, int]
"""mode, inode, device, size, mtime and ctime in ns: equal keys, equal content."""

_key = cast("Callable[[os.stat_result], StatKey]", attrgetter(
    "st_mode", "st_ino", "st_dev", "st_size", "st_mtime_ns", "st_ctime_ns"
))  # fmt: skip
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 20
_OTHER_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

Keep = Callable[[str, bytes], object]
"""Is given the digest and the content of every file that is read and not too large."""


@dataclass(slots=True, eq=False)
class Seen:
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


Known = dict[StatKey, Seen]
"""Files whose content need not be read again."""


@dataclass(slots=True)
class Snapshot:
    """What a scan found."""

    files: dict[str, Seen] = field(default_factory=dict[str, Seen])
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
        is_whole = len(states) == len(self.files) and not self.unseen and not self.is_too_large
        return states if is_whole else None


def scan(
    root: str,
    policy: EffectPolicy,
    *,
    known: Known | None = None,
    keep: Keep | None = None,
) -> Snapshot:
    """Return what stands below `root`; blocks, O(files) `stat` calls.

    Links are never followed, also not those that appear meanwhile. What cannot be read is told and
    never raised; a root that is not there is empty.

    Args:
        root: A directory.
        policy: Which directories are passed over, and when to give up.
        known: What earlier scans saw; a file whose key is known is not read again, one that is
            read is added.
        keep: Gets contents.
    """
    return _Scan(policy, {} if known is None else known, keep).below(root)


def stat_scan(root: str, policy: EffectPolicy) -> Snapshot:
    """Return what stands below `root` like `scan`, but read nothing; `fill` does that later."""
    return _Scan(policy, {}, None).walked(root)


def fill(
    root: str,
    snapshot: Snapshot,
    paths: Iterable[str],
    *,
    keep: Keep | None = None,
    max_bytes: int | None = MAX_HASHED_BYTES,
) -> None:
    """Read files of a snapshot that were not read; blocks.

    Only for a tree that nobody changes: what was seen and what is read are taken for one.

    Args:
        root: The directory that was scanned.
        snapshot: What was seen there.
        paths: Which of it are read.
        keep: Gets contents.
        max_bytes: Larger files stay unread; None reads them all, however long that takes.
    """
    fd = os.open(root, _DIRECTORY)
    try:
        for path in paths:
            seen = snapshot.files[path]
            if seen.state is None:
                _fill(fd, path, seen, keep, sys.maxsize if max_bytes is None else max_bytes)
    finally:
        os.close(fd)


def _fill(root: int, path: str, seen: Seen, keep: Keep | None, max_bytes: int) -> None:
    directory, _, name = path.rpartition("/")
    with contextlib.suppress(OSError):
        fd = _opened_below(root, f"{directory}/" if directory else "")
        try:
            _, seen.state, content = _read(fd, name, seen.mode, max_bytes)
        finally:
            os.close(fd)
        if content is not None and seen.state is not None and keep is not None:
            keep(seen.state.digest, content)


class _Scan:
    """One walk; files to be read are collected first, so that giving up is cheap."""

    def __init__(self, policy: EffectPolicy, known: Known, keep: Keep | None) -> None:
        self._policy = policy
        self._known = known
        self._keep = keep
        self._found = Snapshot()
        self._unread: dict[str, list[str]] = {}
        self._budget = MAX_SCAN_BYTES

    def walked(self, root: str) -> Snapshot:
        try:
            fd = os.open(root, _DIRECTORY)
        except OSError as exc:
            self._miss("", exc)
            return self._found
        try:
            self._walk(fd, "", 0)
        finally:
            os.close(fd)
        return Snapshot(is_too_large=True) if self._found.is_too_large else self._found

    def below(self, root: str) -> Snapshot:
        found = self.walked(root)
        if self._unread and not found.is_too_large:
            with contextlib.suppress(OSError):
                fd = os.open(root, _DIRECTORY)
                try:
                    for directory, names in self._unread.items():
                        self._read_in(fd, directory, names)
                finally:
                    os.close(fd)
        return found

    def _walk(self, fd: int, prefix: str, depth: int) -> None:
        directories: list[str] = []
        files, known, unread = self._found.files, self._known, list[str]()
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(entry.name)
                        continue
                    if is_temporary(entry.name):
                        continue
                    try:
                        key = _key(entry.stat(follow_symlinks=False))
                    except FileNotFoundError:
                        continue
                    seen = known.get(key)
                    if seen is not None and seen.is_settled:
                        files[prefix + entry.name] = seen
                    elif stat.S_IFMT(key[0]) in (stat.S_IFREG, stat.S_IFLNK):
                        files[prefix + entry.name] = Seen(key, None, is_settled=False)
                        unread.append(entry.name)
                    else:
                        kind = _OTHER_KINDS.get(stat.S_IFMT(key[0]), "no file")
                        self._found.others[prefix + entry.name] = kind
                    if len(files) > self._policy.max_files:
                        self._found.is_too_large = True
                        return
        except OSError as exc:
            self._miss(prefix, exc)
        if unread:
            self._unread[prefix] = unread
        for name in directories:
            if name not in self._policy.ignore and not self._found.is_too_large:
                self._enter(fd, prefix, name, depth)

    def _enter(self, above: int, prefix: str, name: str, depth: int) -> None:
        path = f"{prefix}{name}/"
        if depth >= MAX_DEPTH:
            self._found.unseen[path] = f"it lies more than {MAX_DEPTH} directories deep"
            return
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=above)
        except OSError as exc:
            self._miss(path, exc)
            return
        try:
            self._walk(fd, path, depth + 1)
        finally:
            os.close(fd)

    def _miss(self, path: str, exc: OSError) -> None:
        # Gone since it was listed: then there is nothing to look at.
        if not isinstance(exc, FileNotFoundError | NotADirectoryError):
            self._found.unseen[path] = exc.strerror or str(exc)

    def _read_in(self, root: int, directory: str, names: list[str]) -> None:
        try:
            fd = _opened_below(root, directory)
        except OSError:
            # Gone or replaced since the walk: as if the walk had come later.
            for name in names:
                del self._found.files[directory + name]
            return
        try:
            for name in names:
                self._read(fd, name, directory + name)
        finally:
            os.close(fd)

    def _read(self, directory: int, name: str, path: str) -> None:
        seen = self._found.files[path]
        now = time.time_ns()
        try:
            budget = min(MAX_HASHED_BYTES, self._budget)
            key, state, content = _read(directory, name, seen.mode, budget)
        except FileNotFoundError:
            del self._found.files[path]
            return
        except OSError:
            return
        if content is not None and state is not None and self._keep is not None:
            self._keep(state.digest, content)
        if state is not None and stat.S_ISREG(key[0]):
            self._budget -= state.size
        is_settled = key == seen.key and now - key[5] > RACY_NS and state is not None
        self._found.files[path] = seen = Seen(key, state, is_settled)
        if is_settled:
            self._known[key] = seen


def _opened_below(root: int, directory: str) -> int:
    """Open a directory name by name, never through a link."""
    fd = os.dup(root)
    for name in directory.split("/")[:-1]:
        try:
            below = os.open(name, _DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


_Read = tuple[StatKey, FileState | None, bytes | None]


def _read(directory: int, name: str, mode: int, max_bytes: int) -> _Read:
    if stat.S_ISLNK(mode):
        return _read_link(directory, name)
    return _read_file(directory, name, max_bytes)


def _read_link(directory: int, name: str) -> _Read:
    target = os.fsencode(os.readlink(name, dir_fd=directory))
    key = _key(os.stat(name, dir_fd=directory, follow_symlinks=False))
    return key, FileState(sha256(target).hexdigest(), len(target), key[0]), target


def _read_file(directory: int, name: str, max_bytes: int) -> _Read:
    fd = os.open(name, _FILE, dir_fd=directory)
    try:
        before = _key(os.fstat(fd))
        if not stat.S_ISREG(before[0]) or before[3] > max_bytes:
            return before, None, None
        state, content = _content(fd, before, max_bytes)
        # Changed while it was read: the caller sees a key that is not the one of the walk.
        return (before if _key(os.fstat(fd)) == before else (*before[:5], -1)), state, content
    finally:
        os.close(fd)


def _content(fd: int, key: StatKey, max_bytes: int) -> tuple[FileState | None, bytes | None]:
    """Read to the end, a growing file at most up to `max_bytes`."""
    whole, size, kept = sha256(), 0, list[bytes]()
    while chunk := os.read(fd, min(max(key[3] - size, 1), _CHUNK_BYTES)):
        whole.update(chunk)
        size += len(chunk)
        if size <= MAX_BLOB_BYTES:
            kept.append(chunk)
        if size > max_bytes:
            return None, None
        if size == key[3]:
            break  # if it has grown, its key tells
    state = FileState(whole.hexdigest(), size, key[0])
    return state, b"".join(kept) if size <= MAX_BLOB_BYTES else None
