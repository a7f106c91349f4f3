"""Persistent directories, known by their id and removed by their last use."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_modules
from rath.errors import RathError

if TYPE_CHECKING:
    import logging

    from rath._core import files, retention, usage_locks
    from rath._core.usage_locks import Use
else:
    logging, files, retention, usage_locks = lazy_modules(
        __name__, "logging", "rath._core.files", "rath._core.retention", "rath._core.usage_locks"
    )


_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, slots=True)
class PersistentKind:
    """A kind of persistent directory: its words and its error."""

    noun: str
    """As in "sandbox"."""

    error: Callable[[str], RathError]
    """Class of its errors."""

    release_advice: str
    """What ends its uses, as in "close the sessions that are placed on it"."""

    def checked_id(self, value: UUID | str) -> UUID:
        """Return an id as a UUID: nothing else ever becomes part of a path.

        Raises:
            ValueError: It is not one.
        """
        if isinstance(value, UUID):
            return value
        try:
            return UUID(value)
        except (ValueError, AttributeError, TypeError):
            raise ValueError(f"{value!r} is not a {self.noun} id; expected a UUID") from None

    def ensure_private(self, directory: Path) -> Path:
        """Create a directory for its owner alone, where it is missing, and return it.

        Raises:
            RathError: It cannot be created.
        """
        try:
            files.make_private_directory(directory)
        except OSError as exc:
            raise self.error(
                f"{str(directory)!r} cannot be created: {exc.strerror or exc}; make the directory "
                "above it writable, or name another one in OPENRATH_HOME"
            ) from exc
        return directory

    def begin_use(self, file: Path) -> Use:
        """Hold that whose file of uses is `file`; waits a moment for one who removes it.

        Raises:
            RathError: It is still being removed after that, or the file cannot be locked.
        """
        try:
            return self._begin(file)
        except OSError as exc:
            raise self._lock_error(file, exc) from exc

    def hold(self, directory: Path) -> Use | None:
        """Hold a directory; None, with a warning, where nothing can be written beside it.

        Raises:
            RathError: See `begin_use`.
        """
        file = usage_locks.use_file(directory)
        try:
            return self._begin(file)
        except OSError as exc:
            if exc.errno not in _NOT_WRITABLE:
                raise self._lock_error(file, exc) from exc
            # Who may not write beside it cannot keep its owner from removing it.
            logging.getLogger(__name__).warning("%s is used without a lock: %s", directory, exc)
            return None

    def in_use_error(self, directory: Path) -> RathError:
        """Return the error of removing what somebody uses."""
        return self.error(
            f"the {self.noun} {directory.stem!r} is in use, by this program or another one; "
            f"{self.release_advice}, then try again"
        )

    def _begin(self, file: Path) -> Use:
        use = usage_locks.begin(file)
        if use is None:
            raise self.error(
                f"the {self.noun} {file.stem!r} is being removed by another program; try again, or "
                "take another one"
            )
        return use

    def _lock_error(self, file: Path, exc: OSError) -> RathError:
        return self.error(
            f"the {self.noun} {file.stem!r} cannot be marked as in use by {str(file)!r}: "
            f"{exc.strerror or exc}"
        )


def no_recorded_use(directory: Path) -> float | None:
    """Return no time of use: a directory tells none itself."""
    del directory
    return None


def nobody_wants(directory: Path) -> bool:
    """Tell that a directory is wanted by nobody but its users."""
    del directory
    return False


@dataclass(frozen=True, slots=True)
class PersistentDirectories:
    """Directories `<id>` below a root, removed by last use and never from under somebody.

    Where no time of use is kept, that of the directory counts, as for what OpenRath 1 made.
    """

    root: Path
    kind: PersistentKind
    recorded_use: Callable[[Path], float | None] = no_recorded_use
    """What a directory itself tells of its last use, in seconds since 1970."""

    is_wanted: Callable[[Path], bool] = nobody_wants
    """Whether a directory is not pruned, however old."""

    def alloc(self) -> UUID:
        """Make a new, empty directory and return its id."""
        new_id = uuid4()
        self.ensure(new_id)
        return new_id

    def ensure(self, known: UUID | str) -> Path:
        """Make the directory of that id where it is missing; counts as a use.

        Raises:
            ValueError: `known` is not a UUID.
            RathError: It cannot be made.
        """
        path = self.path(known)
        self.kind.ensure_private(self.root)
        use = self.kind.begin_use(usage_locks.use_file(path))
        try:
            path.mkdir(mode=0o700, exist_ok=True)
        except OSError as exc:
            raise self.kind.error(
                f"the directory {str(path)!r} of a {self.kind.noun} cannot be made: "
                f"{exc.strerror or exc}"
            ) from exc
        finally:
            use.end()
        return path

    def path(self, known: UUID | str) -> Path:
        """Return the directory of that id.

        Raises:
            ValueError: `known` is not a UUID.
        """
        return self.root / str(self.kind.checked_id(known))

    def ids(self) -> list[UUID]:
        """Return the ids of all that are there, sorted."""
        return listed_ids(self.root)

    def delete(self, known: UUID | str) -> bool:
        """Remove a directory with all in it; return whether there was one.

        Raises:
            ValueError: `known` is not a UUID.
            RathError: Somebody uses it, or it cannot be moved away.
        """
        path = self.path(known)
        used_at = self.last_use(path) if self.kind.checked_id(known) in self.ids() else None
        if used_at is None:
            return False
        with usage_locks.claimed(usage_locks.use_file(path), used_at=used_at) as is_free:
            if not is_free:
                raise self.kind.in_use_error(path)
            if not _move_away(path) and path.exists():
                raise self.kind.error(
                    f"the directory {str(path)!r} of a {self.kind.noun} cannot be moved away; the "
                    "log says why"
                )
        retention.empty_trash(self.root)
        return True

    def prunable(self, *, older_than: timedelta) -> list[UUID]:
        """Return what `prune` would remove now."""
        return [each for each in self.ids() if self._is_prunable(self.path(each), older_than)]

    def prune(self, *, older_than: timedelta) -> list[UUID]:
        """Remove what was last used longer ago and is used by nobody; return the ids.

        What an earlier removal left undone when its process was cut off is finished.
        """
        pruned = [each for each in self.ids() if self._prune(self.path(each), older_than)]
        usage_locks.forget_unused(self.root, "")
        retention.empty_trash(self.root)
        return pruned

    def last_use(self, path: Path) -> float | None:
        """Return when a directory was last used; None where it is not there any more."""
        times = [
            each
            for each in (usage_locks.last_use(usage_locks.use_file(path)), self.recorded_use(path))
            if each is not None
        ]
        return max(times) if times else usage_locks.last_use(path)

    def _is_prunable(self, path: Path, older_than: timedelta) -> bool:
        return self._is_left(path, older_than) and not usage_locks.is_used(
            usage_locks.use_file(path)
        )

    def _is_left(self, path: Path, older_than: timedelta) -> bool:
        return usage_locks.is_old(self.last_use(path), older_than) and not self.is_wanted(path)

    def _prune(self, path: Path, older_than: timedelta) -> bool:
        used_at = self.last_use(path)
        if used_at is None or not self._is_left(path, older_than):
            return False
        try:
            with usage_locks.claimed(usage_locks.use_file(path), used_at=used_at) as is_free:
                # Somebody may have come and gone between the look and the claim.
                return is_free and self._is_left(path, older_than) and _move_away(path)
        except OSError as exc:
            logging.getLogger(__name__).warning("%s is kept: %s", path, exc)
            return False


def listed_ids(root: Path, *, prefix: str = "", suffix: str = "") -> list[UUID]:
    """Return the ids of the directories in `root`, or of the files where a suffix is given."""
    try:
        entries = list(os.scandir(root))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found: list[UUID] = []
    for entry in entries:
        is_kind = entry.is_file if suffix else entry.is_dir
        with contextlib.suppress(ValueError):
            known = UUID(entry.name.removeprefix(prefix).removesuffix(suffix))
            if entry.name == f"{prefix}{known}{suffix}" and is_kind(follow_symlinks=False):
                found.append(known)
    return sorted(found)


def _move_away(path: Path) -> bool:
    if retention.move_to_trash(path) is None:
        return False
    usage_locks.use_file(path).unlink(missing_ok=True)
    return True
