"""Paths of this host: workspaces that no path leads out of, and temporary directories."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import tempfile
import time
from collections import deque
from collections.abc import Generator
from functools import cache
from pathlib import Path

from rath._core.dataclasses import dataclass
from rath._core.retention import mount_in
from rath.backend.file_tools import OutsideWorkspace

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a directory is opened that must be no link."""

MAX_DEPTH = 256
"""How deep directories may be nested that are scanned or copied: each level holds descriptors open;
a guess."""

MAX_LINKS = 40
"""Symbolic links followed in one path before it counts as a loop, as in the Linux kernel."""

MAX_PATH_BYTES = 4096
"""Longest path with its closing zero, `PATH_MAX` of Linux."""

PRUNE_SECONDS = 1.0
"""How long to go on removing what dead processes left; a guess. The next process does the rest."""

# O_PATH needs no right to list a directory, only to pass through it; Linux has it.
_PASS_THROUGH = OPEN_DIRECTORY | getattr(os, "O_PATH", 0)
_NAME = re.compile(r"rath-.+?-(\d+)-(\d+)-(\d+)-[0-9a-f]+")


@contextlib.contextmanager
def descriptor(fd: int) -> Generator[int]:
    """Give an open descriptor, and close it at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def write_all(fd: int, data: memoryview) -> None:
    """Write all of some bytes."""
    while data:
        data = data[os.write(fd, data) :]


@dataclass(frozen=True, slots=True)
class WorkspacePlace:
    """A name in an open directory of the workspace; the name itself is no link."""

    directory: int
    """Descriptor of the directory, closed when `Workspace.locate` ends."""

    name: str
    """What to open relative to `directory`; "." for the root itself."""

    relative: str
    """Path from the root, links resolved; "." for the root itself."""

    def open(self, flags: int) -> int:
        """Open what stands here and return its descriptor; a link that appears now is refused."""
        return os.open(self.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.directory)


@dataclass(frozen=True, slots=True)
class Workspace:
    """One directory of the host.

    Paths are walked one name at a time, each opened relative to the directory before it and never
    through a link; links are read and walked like the rest of the path. So what another process
    renames or links in the meantime cannot lead outside.
    """

    handle: str
    """The directory as it was given."""

    base: str
    """Its absolute form, links kept."""

    root: str
    """Its real path."""

    is_owned: bool
    """Whether it was made for this sandbox and ends with it."""

    door: str = ""
    """Path by which this process opens the root; `root` itself, or where a layer stands in."""

    def __post_init__(self) -> None:
        if not self.door:
            object.__setattr__(self, "door", self.root)

    @classmethod
    def inner(cls, door: str) -> Workspace:
        """Return the files behind a path of this process, which no command uses."""
        return cls(door, door, door, is_owned=False)

    @classmethod
    def at(cls, handle: str, *, is_owned: bool = False) -> Workspace:
        """Return the workspace in the directory `handle`, which exists; `~` is a home."""
        return cls(handle, os.path.abspath(os.path.expanduser(handle)), real_root(handle), is_owned)

    @contextlib.contextmanager
    def locate(self, path: str, *, make_parents: bool = False) -> Generator[WorkspacePlace]:
        """Find `path` and give its place, whether something stands there or not.

        Args:
            path: Relative to the root, or absolute and inside it. `..` and links are followed as
                the kernel would.
            make_parents: Make the missing directories above the last name.

        Raises:
            OutsideWorkspace: The path, or a link on it, leads out.
            OSError: A directory on the way is missing or closed to us, or the links never end.
            ValueError: The path holds a zero character.
        """
        if len(os.fsencode(path)) >= MAX_PATH_BYTES:
            # The walk could go on, and would make directories that no other program can reach.
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        walk = _PathWalk(self.door, make_parents)
        try:
            yield self._place(walk, path)
        finally:
            walk.close()

    def canonical(self, path: str) -> str:
        """Return the real path of what `path` means; what is no path inside is only normalised."""
        with contextlib.suppress(OSError, OutsideWorkspace, ValueError):  # also no valid Unicode
            with contextlib.suppress(FileNotFoundError), self.locate(path) as place:
                return os.path.normpath(os.path.join(self.root, place.relative))
            # A directory is missing, which a write would make: what is there is followed.
            names = self.names_inside(path) if path.startswith("/") else [path]
            real = os.path.realpath(os.path.join(self.door, *names))
            return os.path.normpath(os.path.join(self.root, os.path.relpath(real, self.door)))
        return os.path.normpath(os.path.join(self.root, path))

    def directory(self, path: str) -> str:
        """Return the real path of a directory inside; raises like `locate`."""
        with self.locate(path) as place:
            os.close(place.open(os.O_RDONLY | os.O_DIRECTORY))
            return os.path.normpath(os.path.join(self.root, place.relative))

    def entry_path(self, path: str, name: str) -> str:
        """Return the path under which an entry of the directory `path` is shown and found."""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        above = "/" if path.startswith("/") else self.base
        return os.path.join(above, *parts, name)

    def names_inside(self, path: str) -> list[str]:
        """Split an absolute path into the names below the root; raises `OutsideWorkspace`."""
        for root in (self.base, self.root):
            if is_below(path, root):
                return _names_below(path, root)
        real = os.path.realpath(path)
        if is_below(real, self.root):
            return _names_below(real, self.root)
        raise OutsideWorkspace(path, self.root)

    def _place(self, walk: _PathWalk, path: str) -> WorkspacePlace:
        if is_below(os.path.normpath(path).replace("//", "/"), "/proc"):
            # Its links mean something else for each process that follows them.
            raise OutsideWorkspace(path, self.root)
        try:
            return walk.along(self, path)
        except OutsideWorkspace:
            # It went out; it may come back in, and then it is the same as its real path.
            real = os.path.realpath(os.path.join(self.root, path))
            try:
                return walk.along(self, real)
            except OutsideWorkspace:
                raise OutsideWorkspace(path, self.root) from None


def real_root(handle: str) -> str:
    """Return the real path of the directory that a handle means; `~` at its begin is a home."""
    return os.path.realpath(os.path.expanduser(handle))


class _PathWalk:
    """A walk from the root along a path; holds one open directory for each name on the way."""

    def __init__(self, door: str, make_parents: bool) -> None:
        self._make_parents = make_parents
        self._names: list[str] = []
        self._open: list[int] = [os.open(door, _PASS_THROUGH)]

    def along(self, workspace: Workspace, path: str) -> WorkspacePlace:
        ahead: deque[str] = deque()
        self._turn(workspace, path, ahead)
        n_links = 0
        while ahead:
            name = ahead.popleft()
            if name in ("", "."):
                continue
            if name == "..":
                self._up(workspace, path)
                continue
            target = self._link_target(name)
            if target is not None:
                n_links += 1
                if n_links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                self._turn(workspace, target, ahead)
            elif any(each not in ("", ".") for each in ahead):
                self._down(name)
            else:
                return WorkspacePlace(self._open[-1], name, "/".join([*self._names, name]))
        return WorkspacePlace(self._open[-1], ".", "/".join(self._names) or ".")

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def _turn(self, workspace: Workspace, path: str, ahead: deque[str]) -> None:
        """Put the names of `path` ahead, starting at the root again when it is absolute."""
        names = path.split("/")
        if path.startswith("/"):
            names = workspace.names_inside(path)
            while self._names:
                self._up(workspace, path)
        ahead.extendleft(reversed(names))

    def _up(self, workspace: Workspace, path: str) -> None:
        if not self._names:
            raise OutsideWorkspace(path, workspace.root)
        self._names.pop()
        os.close(self._open.pop())

    def _down(self, name: str) -> None:
        above = self._open[-1]
        if self._make_parents:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=above)
        self._open.append(os.open(name, _PASS_THROUGH, dir_fd=above))
        self._names.append(name)

    def _link_target(self, name: str) -> str | None:
        """Return where the link `name` points, None for what is no link or not there."""
        try:
            return os.readlink(name, dir_fd=self._open[-1])
        except OSError as exc:
            if exc.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise


def is_below(path: str, root: str) -> bool:
    """Tell whether `path` is `root` or something in it; both absolute and normal."""
    return f"{path}/".startswith(root.rstrip("/") + "/")


def _names_below(path: str, root: str) -> list[str]:
    return path[len(root) :].split("/")


def new_name(kind: str) -> str:
    """Return a name for a directory of this process that no other directory has; Linux only."""
    namespace, pid = os.stat("/proc/self/ns/pid").st_ino, os.getpid()
    return f"rath-{kind}-{namespace}-{pid}-{_start_time(pid)}-{os.urandom(6).hex()}"


def new_directory(kind: str) -> str:
    """Make a private directory among the temporary ones and return its path.

    Raises:
        OSError: It cannot be made.
    """
    above = tempfile.gettempdir()
    try:
        path = os.path.join(above, new_name(kind))
    except FileNotFoundError:
        # No /proc, as on macOS: nobody will find out whether its process has ended.
        return tempfile.mkdtemp(prefix=f"rath-{kind}-", dir=above)
    os.mkdir(path, 0o700)
    return path


def is_stale(name: str) -> bool:
    """Tell whether `name` was made by `new_name` in a process that has ended.

    Of processes in another pid namespace nothing can be told from here: theirs are not stale.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    namespace, pid, started = (int(each) for each in match.groups())
    return os.stat("/proc/self/ns/pid").st_ino == namespace and _start_time(pid) != started


@cache
def prune_once() -> None:
    """Call `prune` if this process has not done so yet."""
    prune()


def prune() -> None:
    """Remove the temporary directories of processes that have ended; blocks, about a second."""
    deadline = time.monotonic() + PRUNE_SECONDS
    above = tempfile.gettempdir()
    with contextlib.suppress(OSError):
        for name in filter(is_stale, os.listdir(above)):
            path = os.path.join(above, name)
            with contextlib.suppress(OSError):
                found = os.lstat(path)
                # Others may make names in a shared directory; theirs are not ours to remove.
                is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
                if is_ours and mount_in(Path(os.path.realpath(path))) is None:
                    if time.monotonic() >= deadline:
                        return
                    shutil.rmtree(path, ignore_errors=True)


def _start_time(pid: int) -> int | None:
    """Return when a process was started, in ticks since boot; None for one that is not there."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read()
        # The name of the program stands in brackets and may hold anything: fields after it.
        return int(fields[fields.rindex(b")") + 2 :].split()[19])
    return None


_temporary_names: set[str] = set()
"""Files that this process puts into workspaces for a moment, and that are no effects."""


def new_temporary(prefix: str, suffix: str) -> str:
    """Return a name that nobody can guess; scans pass over it until `forget_temporary`."""
    name = f"{prefix}{os.urandom(8).hex()}{suffix}"
    _temporary_names.add(name)
    return name


def forget_temporary(name: str) -> None:
    """Tell that the file is gone."""
    _temporary_names.discard(name)


def is_temporary(name: str) -> bool:
    """Tell whether this process made the name and still uses it."""
    return name in _temporary_names
