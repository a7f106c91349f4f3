"""Workspaces of sandboxes: their names in session logs, whether they are there, who uses them."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_modules
from rath._core.persistent_dirs import PersistentKind
from rath._core.usage_locks import Use, begin, use_file
from rath.errors import BackendError, WorkspaceLost

if TYPE_CHECKING:
    import hashlib
    import logging

    from rath.backend.abc import BackendSandbox
    from rath.config import paths
else:
    hashlib, logging, paths = lazy_modules(__name__, "hashlib", "logging", "rath.config.paths")

__all__ = [
    "LOCAL_SUBDIR",
    "SANDBOX",
    "SANDBOXES_DIR_NAME",
    "StoredWorkspace",
    "Use",
    "WorkspaceRef",
    "begin_use_of",
    "live_sandbox",
    "machine",
    "new_ref",
    "register_live",
    "try_use_of",
]

SANDBOXES_DIR_NAME = "sandboxes"
LOCAL_SUBDIR = "local"
SANDBOX = PersistentKind("sandbox", BackendError, "close the sessions that are placed on it")

_MACHINE_ID = Path("/etc/machine-id")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWorkspace:
    """The workspace of a stored session."""

    id: UUID
    """Of the sandbox; all sessions that work in it name the same one."""

    machine: str
    """Digest that tells machines apart."""

    directory: str | None = None
    """Absolute path on that machine; None for a workspace that ends with its sandbox."""

    root: str | None = None
    """Real path of the directory when it was last looked at; None before it was made."""

    inode: int | None = None
    kept: str | None = None
    """Path below the workspaces of the home, so that a home can be moved."""

    handle: str | None = None
    """Handle of the sandbox once one was opened; None where none was ever opened."""

    is_copy: bool = False
    """Whether it begins with files of other sessions."""

    was_empty: bool = True
    """Whether the directory held nothing when it was last looked at."""

    @property
    def has_files(self) -> bool:
        """Whether a session that goes on may expect files there."""
        return self.handle is not None or self.is_copy or not self.was_empty

    def required_directory(self, backend: str) -> str | None:
        """Return the directory to go on in, None where there is none; blocks.

        Args:
            backend: Name of the backend, for the message.

        Raises:
            WorkspaceLost: The directory is not there, or is another one.
        """
        directory = self._current_directory()
        if not self.has_files:
            return directory
        expected, problem = self._problem(directory)
        if problem is not None:
            named = self.directory or self.handle or str(self.id)
            raise WorkspaceLost(named, backend, expected, problem)
        return directory

    def _current_directory(self) -> str | None:
        """Return the path where the directory is now: a home that was moved took it along."""
        if self.directory is None or self.kept is None or os.path.lexists(self.directory):
            return self.directory
        return os.path.join(_sandboxes_root(), self.kept)

    def _problem(self, directory: str | None) -> tuple[str, str | None]:
        """Return what was expected, and what is there instead, None where it is that."""
        if directory is None:
            what = "a copy of the files of another session" if self.is_copy else "a temporary one"
            return f"{what}, which ended with its sandbox", "no directory"
        expected = f"the directory {self.directory!r} that the session worked in"
        here = self.machine == machine()
        if not here:
            expected += " on another machine"
        try:
            inode, is_empty = os.stat(directory).st_ino, _is_empty(directory)
        except NotADirectoryError:
            return expected, "a file of that name"
        except FileNotFoundError:
            return expected, "nothing of that name"
        except OSError as exc:
            return expected, f"a directory that cannot be read ({exc.strerror})"
        is_same = inode == self.inode
        is_moved = directory != self.directory
        root, real = directory if is_moved else self.root, os.path.realpath(directory)
        if real != root:
            return f"{expected}, in {root!r}", f"a link to {real!r}"
        if is_empty and not (is_same and self.was_empty):
            return f"{expected}, with its files", "an empty directory of that name"
        if not is_same and not here:
            return expected, "another directory of that name on this machine"
        if not is_same and not is_moved:
            logging.getLogger("rath.backend").warning(
                "the directory %r was replaced since a stored session worked in it; what is there "
                "now is taken for its files, put back. If it is not, place the session elsewhere",
                directory,
            )
        return expected, None


class WorkspaceRef:
    """The workspace of one sandbox, known without holding the sandbox."""

    __slots__ = ("__weakref__", "_is_here", "_lock", "_stored", "_tell")

    def __init__(self, stored: StoredWorkspace, *, is_here: bool = False) -> None:
        self._stored = stored
        self._is_here = is_here  # else the directory may be another one by now
        self._lock = threading.Lock()
        self._tell: dict[Hashable, Callable[[], None]] = {}

    @property
    def has_files(self) -> bool:
        """Whether a session that works there may expect files."""
        return self._stored.has_files

    @property
    def id(self) -> UUID:
        """The one by which logs name it."""
        return self._stored.id

    @property
    def is_watched(self) -> bool:
        """Whether looking at the directory may tell somebody something."""
        return bool(self._tell) and self._stored.directory is not None

    def opened(self, handle: str, directory: str | None) -> None:
        """Note that a sandbox was opened on it; never waits."""
        self._is_here = True
        self._change(handle=handle, directory=directory)

    def replaced(self) -> None:
        """Note that its files are in a workspace of their own now, which ends with its sandbox."""
        self._change(directory=None, is_copy=True)

    def look(self) -> StoredWorkspace:
        """Return what a log shall say of it now; looks at the directory, and blocks."""
        known = self._stored
        if known.directory is None or not self._is_here:
            return known
        try:
            inode, is_empty = os.stat(known.directory).st_ino, _is_empty(known.directory)
        except OSError:
            inode, is_empty = None, True
        root = os.path.realpath(known.directory)
        kept = _below(root, _sandboxes_root())
        return self._change(
            machine=machine(), root=root, inode=inode, kept=kept, was_empty=is_empty
        )

    def when_changed(
        self, since: StoredWorkspace, tell: Callable[[], None], *, whom: Hashable
    ) -> None:
        """Have `tell` called once logs shall say something else; at once where they shall now.

        Args:
            since: What they say.
            tell: Must not wait.
            whom: Of one only the last call is kept.
        """
        with self._lock:
            is_changed = self._stored != since
            if not is_changed:
                self._tell[whom] = tell
        if is_changed:
            tell()

    def _change(self, **fields: Any) -> StoredWorkspace:
        with self._lock:
            before, self._stored = self._stored, replace(self._stored, **fields)
            now, tell = self._stored, dict[Hashable, Callable[[], None]]()
            if now != before:
                tell, self._tell = self._tell, {}
        for each in tell.values():
            each()
        return now


_live: weakref.WeakValueDictionary[UUID, BackendSandbox] = weakref.WeakValueDictionary()
"""The sandboxes of this process whose workspaces have an id."""


def new_ref(sandbox: BackendSandbox, directory: str | None) -> WorkspaceRef:
    """Return how logs name the workspace of a sandbox; see `live_sandbox`."""
    stored = StoredWorkspace(
        id=uuid4(),
        machine=machine(),
        directory=directory,
        handle=sandbox.handle or None,
        is_copy=sandbox.origin is not None,
    )
    _live[stored.id] = sandbox
    return WorkspaceRef(stored, is_here=True)


def register_live(workspace: UUID, sandbox: BackendSandbox) -> None:
    """Have `live_sandbox` find a sandbox of this process by a workspace that has an id already."""
    _live[workspace] = sandbox


def live_sandbox(workspace: UUID) -> BackendSandbox | None:
    """Return the sandbox of this process that has a workspace, None where there is none."""
    sandbox = _live.get(workspace)
    return None if sandbox is None or sandbox.closed else sandbox


@cache
def machine() -> str:
    """Return a digest that tells this machine from others, without saying which it is."""
    try:
        said = _MACHINE_ID.read_text().strip()
    except OSError:
        said = ""
    return hashlib.sha256(f"rath workspace {said or platform.node()}".encode()).hexdigest()[:16]


def _is_empty(directory: str) -> bool:
    """Tell whether a directory holds nothing; one that cannot be listed may hold something."""
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is None
    except PermissionError:
        return False


def _sandboxes_root() -> str:
    """Return the real path of the workspaces of the home."""
    return os.path.realpath(paths.resolve_config_dir() / SANDBOXES_DIR_NAME / LOCAL_SUBDIR)


def _below(path: str, above: str) -> str | None:
    """Return the path relative to a directory above it, None where that is not above it."""
    relative = os.path.relpath(path, above)
    return None if relative.startswith(os.pardir) or relative == os.curdir else relative


if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    # What is open belongs to the parent.
    os.register_at_fork(after_in_child=_live.clear)


def begin_use_of(directory: str) -> Use | None:
    """Hold the kept sandbox that `directory` is, or is in; None where it is in none.

    `~` at its begin is a home directory.

    Raises:
        BackendError: It is being removed and that does not end, or it cannot be locked.
    """
    sandbox = _sandbox_above(Path(os.path.realpath(os.path.expanduser(directory))))
    return None if sandbox is None else SANDBOX.hold(sandbox)


def try_use_of(directory: str) -> Use | None:
    """Hold the kept sandbox that `directory`, a real path, is or is in, if that is possible now.

    None where it is in none, or where somebody removes it; never waits.
    """
    sandbox = _sandbox_above(Path(directory))
    if sandbox is None:
        return None
    with contextlib.suppress(OSError):
        return begin(use_file(sandbox), timeout=0.0)
    return None


def _sandbox_above(real: Path) -> Path | None:
    for path in (real, *real.parents):
        above = path.parent
        if above.name == LOCAL_SUBDIR and above.parent.name == SANDBOXES_DIR_NAME:
            with contextlib.suppress(ValueError):
                UUID(path.name)
                return path
    return None
