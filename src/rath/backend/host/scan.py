"""Scans of a directory tree by `stat` that read only what is new, and the contents they found."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from hashlib import sha256
from operator import attrgetter
from typing import Protocol, cast

from rath._core.blobs import MAX_BLOB_BYTES
from rath.backend.changes import (
    MAX_HASHED_BYTES,
    EffectPolicy,
    FileState,
    ScanCache,
    ScannedFile,
    StatKey,
    TreeState,
    manifest_digest,
)
from rath.backend.host.git import git_start
from rath.backend.host.paths import MAX_DEPTH, OPEN_DIRECTORY, descriptor, is_temporary
from rath.backend.start import MAX_START_FILES, WorkspaceStart, packed_start

RACY_NS = 20_000_000
"""A file that changed so shortly before it was read may change again within the same time stamp
(a tick of the kernel, 4 to 10 ms); it is read again the next time. See "racy git" in the technical
notes of git: https://git-scm.com/docs/racy-git"""

MAX_SCAN_BYTES = 4 << 30
"""How much one scan reads; what is left is read by the next one. A guess."""

MAX_STORE_BYTES = 512 << 20
"""How much the store of one workspace holds, in bytes; a guess: a large source tree fits."""

MIN_WASTE_BYTES = 32 << 20
"""Contents that nobody asks for any more are dropped once they fill so much, and half of it."""

_key = cast("Callable[[os.stat_result], StatKey]", attrgetter(
    "st_mode", "st_ino", "st_dev", "st_size", "st_mtime_ns", "st_ctime_ns"
))  # fmt: skip
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


class TreeSource(Protocol):
    """Looks at a tree as it is now; may block."""

    def __call__(
        self, policy: EffectPolicy, *, known: ScanCache, keep: Keep | None
    ) -> TreeState: ...


def scan(
    root: str,
    policy: EffectPolicy,
    *,
    known: ScanCache | None = None,
    keep: Keep | None = None,
) -> TreeState:
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
    return _Scan(policy, {} if known is None else known, keep).run(root)


def stat_scan(root: str, policy: EffectPolicy) -> TreeState:
    """Return what stands below `root` like `scan`, but read nothing; `fill` does that later."""
    return _Scan(policy, {}, None).run(root, reads=False)


def fill(
    root: str,
    state: TreeState,
    paths: Iterable[str],
    *,
    keep: Keep | None = None,
    max_bytes: int | None = MAX_HASHED_BYTES,
) -> None:
    """Read files of a scan that were not read; blocks.

    Only for a tree that nobody changes: what was seen and what is read are taken for one.

    Args:
        root: The directory that was scanned.
        state: What was seen there.
        paths: Which of it are read.
        keep: Gets contents.
        max_bytes: Larger files stay unread; None reads them all, however long that takes.
    """
    limit = sys.maxsize if max_bytes is None else max_bytes
    with descriptor(os.open(root, OPEN_DIRECTORY)) as fd:
        for path in paths:
            seen = state.files[path]
            if seen.state is None:
                above, slash, name = path.rpartition("/")
                with (
                    contextlib.suppress(OSError),
                    descriptor(_open_below(fd, above + slash)) as directory,
                ):
                    _, seen.state = _read(directory, name, seen.mode, limit, keep)


def start_of_tree(root: str, policy: EffectPolicy) -> WorkspaceStart:
    """Return the files that stand below `root` for the record, where they are few; blocks."""
    if (start := git_start(root, policy)) is not None:
        return start
    few = replace(policy, max_files=min(policy.max_files, MAX_START_FILES))
    state = stat_scan(root, few)
    if state.is_too_large:
        return WorkspaceStart(reason=f"it had more than {few.max_files} files")
    if sum(seen.size for seen in state.files.values()) > MAX_BLOB_BYTES:
        return WorkspaceStart(reason=f"its files had more than {MAX_BLOB_BYTES} bytes")
    contents: dict[str, bytes] = {}
    if state.files:
        fill(root, state, list(state.files), keep=contents.__setitem__)
    manifest = state.manifest()
    if manifest is None or state.others:
        return WorkspaceStart(reason="not all in it are files that can be read")
    if not policy.keep_contents and manifest:
        why = "the policy of effects says keep_contents=False"
        return WorkspaceStart(digest=manifest_digest(manifest), reason=why)
    return packed_start(manifest, contents)


class _Scan:
    """One walk; files to be read are collected first, so that giving up is cheap."""

    def __init__(self, policy: EffectPolicy, known: ScanCache, keep: Keep | None) -> None:
        self._policy = policy
        self._known = known
        self._keep = keep
        self._found = TreeState()
        self._unread: dict[str, list[str]] = {}
        self._budget = MAX_SCAN_BYTES

    def run(self, root: str, *, reads: bool = True) -> TreeState:
        try:
            fd = os.open(root, OPEN_DIRECTORY)
        except OSError as exc:
            self._miss("", exc)
            return self._found
        with descriptor(fd):
            self._walk(fd, "", 0)
            if self._found.is_too_large:
                return TreeState(is_too_large=True)
            for directory, names in self._unread.items() if reads else ():
                self._read_in(fd, directory, names)
        return self._found

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
                        files[prefix + entry.name] = ScannedFile(key, None, is_settled=False)
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
            fd = os.open(name, OPEN_DIRECTORY, dir_fd=above)
        except OSError as exc:
            self._miss(path, exc)
            return
        with descriptor(fd):
            self._walk(fd, path, depth + 1)

    def _miss(self, path: str, exc: OSError) -> None:
        # Gone since it was listed: then there is nothing to look at.
        if not isinstance(exc, FileNotFoundError | NotADirectoryError):
            self._found.unseen[path] = exc.strerror or str(exc)

    def _read_in(self, root: int, directory: str, names: list[str]) -> None:
        try:
            fd = _open_below(root, directory)
        except OSError:
            # Gone or replaced since the walk: as if the walk had come later.
            for name in names:
                del self._found.files[directory + name]
            return
        with descriptor(fd):
            for name in names:
                self._read(fd, name, directory + name)

    def _read(self, directory: int, name: str, path: str) -> None:
        seen = self._found.files[path]
        now = time.time_ns()
        try:
            limit = min(MAX_HASHED_BYTES, self._budget)
            key, state = _read(directory, name, seen.mode, limit, self._keep)
        except FileNotFoundError:
            del self._found.files[path]
            return
        except OSError:
            return
        if state is not None and stat.S_ISREG(key[0]):
            self._budget -= state.size
        is_settled = key == seen.key and now - key[5] > RACY_NS and state is not None
        self._found.files[path] = seen = ScannedFile(key, state, is_settled)
        if is_settled:
            self._known[key] = seen


def _open_below(root: int, directory: str) -> int:
    """Open a directory name by name, never through a link."""
    fd = os.dup(root)
    for name in directory.split("/")[:-1]:
        with descriptor(fd) as above:
            fd = os.open(name, OPEN_DIRECTORY, dir_fd=above)
    return fd


def _read(
    directory: int, name: str, mode: int, max_bytes: int, keep: Keep | None
) -> tuple[StatKey, FileState | None]:
    """Read a link or a file to the end, a growing file at most up to `max_bytes`."""
    if stat.S_ISLNK(mode):
        target = os.fsencode(os.readlink(name, dir_fd=directory))
        key = _key(os.stat(name, dir_fd=directory, follow_symlinks=False))
        state = FileState(sha256(target).hexdigest(), len(target), key[0])
        if keep is not None:
            keep(state.digest, target)
        return key, state
    with descriptor(os.open(name, _FILE, dir_fd=directory)) as fd:
        key = _key(os.fstat(fd))
        if not stat.S_ISREG(key[0]) or key[3] > max_bytes:
            return key, None
        digest, size, chunks = sha256(), 0, list[bytes]()
        while chunk := os.read(fd, min(max(key[3] - size, 1), _CHUNK_BYTES)):
            digest.update(chunk)
            size += len(chunk)
            if size <= MAX_BLOB_BYTES:
                chunks.append(chunk)
            if size > max_bytes or size == key[3]:
                break  # if it has grown, its key tells
        # Changed while it was read: the caller sees a key that is not the one of the walk.
        key = key if _key(os.fstat(fd)) == key else (*key[:5], -1)
    if size > max_bytes:
        return key, None
    state = FileState(digest.hexdigest(), size, key[0])
    if keep is not None and size <= MAX_BLOB_BYTES:
        keep(state.digest, b"".join(chunks))
    return key, state


class ContentStore:
    """Contents in a file without a name: it goes with the process, however that ends.

    The file lies in the directory for temporary files. All methods may be called on any thread
    and block on the disk.

    Raises:
        OSError: No temporary file can be made.
    """

    def __init__(self, max_bytes: int = MAX_STORE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._fd, self._close = self._open_temporary()
        self._ranges: dict[str, tuple[int, int]] = {}
        self._end = 0

    @property
    def n_bytes(self) -> int:
        """Length of the file."""
        return self._end

    def put(self, digest: str, content: bytes) -> bool:
        """Store `content`; False where the store or the disk is full."""
        with self._lock:
            return digest in self._ranges or self._append(digest, content)

    def get(self, digest: str) -> bytes | None:
        """Return the content of `digest`, None if it is not stored."""
        with self._lock:
            start, size = self._ranges.get(digest, (0, -1))
            content = os.pread(self._fd, size, start) if size >= 0 else b""
        return content if len(content) == size else None

    def keep_only(self, wanted: AbstractSet[str]) -> None:
        """Drop what is not `wanted`, once it is worth the copying."""
        with self._lock:
            ranges = {digest: at for digest, at in self._ranges.items() if digest in wanted}
            n_bytes = sum(size for _, size in ranges.values())
            if self._end - n_bytes < max(MIN_WASTE_BYTES, self._end // 2):
                return
            old = self._fd, self._close, self._ranges, self._end
            try:
                self._fd, self._close = self._open_temporary()
            except OSError:
                return
            self._ranges, self._end = {}, 0
            for digest, (start, size) in ranges.items():
                if not self._append(digest, os.pread(old[0], size, start)):
                    # No room for two: the old file is still complete.
                    self._close()
                    self._fd, self._close, self._ranges, self._end = old
                    return
            old[1]()

    def close(self) -> None:
        """Free the disk; the contents are gone."""
        with self._lock:
            self._ranges = {}
            self._close()

    def _open_temporary(self) -> tuple[int, Callable[[], object]]:
        fd, path = tempfile.mkstemp(prefix="rath-contents-")
        os.unlink(path)
        return fd, weakref.finalize(self, os.close, fd)

    def _append(self, digest: str, content: bytes) -> bool:
        if self._end + len(content) > self._max_bytes:
            return False
        view, at = memoryview(content), self._end
        try:
            while view:
                n_written = os.pwrite(self._fd, view, at)
                view, at = view[n_written:], at + n_written
        except OSError:
            return False
        self._ranges[digest] = (self._end, len(content))
        self._end = at
        return True
