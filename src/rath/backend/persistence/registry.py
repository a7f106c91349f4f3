"""Sandboxes that outlive a process, by id: workspaces, remote sandboxes, and what forks left.

The index file of a remote sandbox:

    {"schema_version": 1, "id": ..., "backend": ..., "remote_id": ..., "spec": {...} or null,
     "created_at": ..., "last_used_at": ...}

A fork's directory `<forks>/<id>/` holds a file `lock`, and its owner holds the exclusive lock on
that. While it is made it is called `.<id>`, and may lack the lock for a moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable
from uuid import UUID, uuid4

from rath._core.dataclasses import dataclass
from rath._core.files import FileLock, atomic_write_json
from rath._core.persistent_dirs import PersistentDirectories, listed_ids
from rath._core.retention import empty_trash, move_to_trash
from rath._core.usage_locks import claimed, forget_unused, is_old, is_used, last_use, use_file
from rath.backend import registry as backends
from rath.backend.abc import BackendSandbox, BackendSandboxSpec
from rath.backend.persistence import paths
from rath.backend.persistence.spec_json import (
    SCHEMA_VERSION,
    spec_from_jsonable,
    spec_to_jsonable,
)
from rath.backend.workspace import SANDBOX
from rath.errors import BackendError

__all__ = [
    "LOCK_FILENAME",
    "PersistentSandboxRegistry",
    "RemoteSandboxRecord",
    "prunable_forks",
    "prune_forks",
    "write_last_use",
]

LOCK_FILENAME = "lock"

_PRIVATE_MODE = 0o600
_INDEX_LOCK = ".lock"
_INDEX_WAIT_SECONDS = 10.0
"""How long a writer waits for another one, which is the time of one small file."""
_AT_ONCE = timedelta()
_GIVEN_UP = timedelta(hours=1)
"""Age from which a directory that is still without a lock will not get one; a guess."""

_logger = logging.getLogger(__name__)


class BadIndex(ValueError):
    """An index file that cannot be believed."""


@dataclass(frozen=True, kw_only=True)
class RemoteSandboxRecord:
    """Entry of an index file about a remote sandbox."""

    schema_version: int
    id: UUID
    backend: str
    """Name of the backend that can attach to it."""

    remote_id: str
    """The id that the backend gave it."""

    spec: BackendSandboxSpec | None
    """The spec that it was opened with, without the values of its variables."""

    created_at: datetime
    last_used_at: datetime
    path: Path
    """The index file."""


@runtime_checkable
class Reattachable(Protocol):
    """A backend whose sandboxes outlive the process that opened them."""

    def attach(
        self, remote_id: str, *, spec: BackendSandboxSpec | None = None
    ) -> BackendSandbox: ...


class PersistentSandboxRegistry:
    """Finds again, from any process, what an earlier one left in the home directory.

    A workspace of this host is a directory that no backend ever removes: open a sandbox with
    `BackendSandboxSpec(working_dir=str(registry.local_path(sandbox_id)))`. A remote sandbox is
    known by an index file.

    While a sandbox is open on one of them, whichever process that is, nothing here removes it. A
    process that was killed holds nothing. Time of last use is the opening, the operations, to the
    minute, and the closing.

    Objects hold no state: all of them see the same directory.
    """

    def alloc_local_id(self) -> UUID:
        """Make a new, empty workspace and return its id.

        Raises:
            BackendError: It cannot be made.
        """
        return _workspaces().alloc()

    def ensure_local(self, sandbox_id: UUID | str) -> Path:
        """Make the workspace of that id where it is missing, and return its path; counts as a use.

        Raises:
            ValueError: `sandbox_id` is not a UUID.
            BackendError: It cannot be made.
        """
        return _workspaces().ensure(sandbox_id)

    def local_path(self, sandbox_id: UUID | str) -> Path:
        """Return where the workspace of that id is, or would be.

        Raises:
            ValueError: `sandbox_id` is not a UUID.
        """
        return paths.local_sandbox_dir(sandbox_id)

    def list_local(self) -> list[UUID]:
        """Return the ids of all workspaces, sorted."""
        return _workspaces().ids()

    def delete_local(self, sandbox_id: UUID | str) -> bool:
        """Remove a workspace with its files; return whether there was one.

        Raises:
            ValueError: `sandbox_id` is not a UUID.
            BackendError: A sandbox is open on it, or it cannot be moved away.
        """
        return _workspaces().delete(sandbox_id)

    def prunable_local(self, *, older_than: timedelta) -> list[UUID]:
        """Return the workspaces that `prune_local` would remove now."""
        return _workspaces().prunable(older_than=older_than)

    def prune_local(self, *, older_than: timedelta) -> list[UUID]:
        """Remove the workspaces that were last used longer ago, and return their ids.

        Those on which a sandbox is open are kept. For a workspace of OpenRath 1, which kept no
        time of use, the time of its directory counts. What an earlier removal left undone when
        its process was cut off is finished.
        """
        return _workspaces().prune(older_than=older_than)

    def record_remote(
        self,
        backend: str,
        remote_id: str,
        spec: BackendSandboxSpec | None = None,
        *,
        sandbox_id: UUID | None = None,
    ) -> UUID:
        """Remember a remote sandbox, so that any process can find it, and return its id here.

        Args:
            backend: Name of the backend that can attach to it.
            remote_id: What that backend calls it.
            spec: What it was opened with; values of variables are not written.
            sandbox_id: Id to give it, in place of what is known under that id; by default a new
                one.

        Raises:
            ValueError: `backend` or `remote_id` is empty.
            BackendError: It cannot be written.
        """
        if not backend or not remote_id:
            raise ValueError(
                f"a remote sandbox needs the name of its backend and its id there, got {backend!r} "
                f"and {remote_id!r}"
            )
        new_id = sandbox_id or uuid4()
        now = datetime.now(UTC)
        record = RemoteSandboxRecord(
            schema_version=SCHEMA_VERSION,
            id=new_id,
            backend=backend,
            remote_id=remote_id,
            spec=spec,
            created_at=now,
            last_used_at=now,
            path=paths.opensandbox_index_path(new_id),
        )
        paths.ensure_opensandbox_root()
        with _writing():
            atomic_write_json(record.path, _encode_record(record), mode=_PRIVATE_MODE)
        return new_id

    def touch_remote(self, sandbox_id: UUID | str) -> None:
        """Make now the last use of a remote sandbox; one that is not known is passed over.

        Raises:
            ValueError: `sandbox_id` is not a UUID.
        """
        path = paths.opensandbox_index_path(sandbox_id)
        if path.exists():
            with _writing(), contextlib.suppress(FileNotFoundError, BadIndex):
                write_last_use(path, datetime.now(UTC))

    def load_remote(self, sandbox_id: UUID | str) -> RemoteSandboxRecord | None:
        """Return what is known of a remote sandbox; None, logged if damaged, where nothing is.

        Raises:
            ValueError: `sandbox_id` is not a UUID.
        """
        path = paths.opensandbox_index_path(sandbox_id)
        try:
            return _with_uses(_read_index(path))
        except FileNotFoundError:
            return None
        except BadIndex as exc:
            _logger.warning("left out: %s", exc)
            return None

    def list_remote(self) -> list[RemoteSandboxRecord]:
        """Return the remote sandboxes, oldest first; damaged index files are logged and kept."""
        ids = listed_ids(paths.opensandbox_root(), suffix=paths.OPENSANDBOX_INDEX_SUFFIX)
        found = [record for each in ids if (record := self.load_remote(each)) is not None]
        return sorted(found, key=lambda record: record.created_at)

    def delete_remote(self, sandbox_id: UUID | str) -> bool:
        """Forget a remote sandbox, damaged index or not; return whether there was one.

        The sandbox itself is left alone.

        Raises:
            ValueError: `sandbox_id` is not a UUID.
            BackendError: A process is attached to it.
        """
        path = paths.opensandbox_index_path(sandbox_id)
        if not path.is_file():
            return False
        with _writing(), claimed(use_file(path), used_at=path.stat().st_mtime) as is_free:
            if not is_free:
                raise SANDBOX.in_use_error(path)
            return _forget(path)

    def prunable_remote(self, *, older_than: timedelta) -> list[UUID]:
        """Return the remote sandboxes that `prune_remote` would forget now."""
        return [
            record.id
            for record in self.list_remote()
            if is_old(record.last_used_at.timestamp(), older_than)
            and not is_used(use_file(record.path))
        ]

    def prune_remote(self, *, older_than: timedelta) -> list[UUID]:
        """Forget the remote sandboxes that were last used longer ago, and return their ids.

        The sandboxes themselves are left alone: they end by their own timeout. Those to which a
        process is attached are kept, and damaged index files.
        """
        pruned = [
            record.id
            for record in self.list_remote()
            if is_old(record.last_used_at.timestamp(), older_than)
            and self._prune_index(record, older_than)
        ]
        forget_unused(paths.opensandbox_root(), paths.OPENSANDBOX_INDEX_SUFFIX)
        return pruned

    def reattach_remote(self, sandbox_id: UUID | str) -> BackendSandbox:
        """Attach to a remote sandbox by its id here, and wait for it; counts as a use.

        Raises:
            KeyError: No remote sandbox has that id.
            AttributeError: Its backend cannot attach.
            BackendNotFound: Its backend is not known here.
            ValueError: `sandbox_id` is not a UUID.
        """
        record = self.load_remote(sandbox_id)
        if record is None:
            raise KeyError(
                f"no remote sandbox with id {str(sandbox_id)!r}; list_remote() tells which are "
                "known"
            )
        backend = backends.get(record.backend)
        if not isinstance(backend, Reattachable):
            raise AttributeError(  # noqa: TRY004  # the documented class
                f"the {record.backend!r} backend does not support reattach: it has no "
                "attach(remote_id, *, spec=None)"
            )
        use = SANDBOX.begin_use(use_file(record.path))
        try:
            sandbox = backend.attach(record.remote_id, spec=record.spec)
        except BaseException:
            use.end()
            raise
        sandbox.hold(use)
        sandbox.registry_id = str(record.id)
        self.touch_remote(record.id)
        return sandbox

    def ensure_dirs(self) -> None:
        """Create the directories of both kinds where they are missing.

        Raises:
            BackendError: They cannot be created.
        """
        paths.ensure_local_root()
        paths.ensure_opensandbox_root()

    def _prune_index(self, record: RemoteSandboxRecord, older_than: timedelta) -> bool:
        known = record.last_used_at.timestamp()
        with _writing(), claimed(use_file(record.path), used_at=known) as is_free:
            current = self.load_remote(record.id)
            if not is_free or current is None:
                return False
            return is_old(current.last_used_at.timestamp(), older_than) and _forget(record.path)


def _workspaces() -> PersistentDirectories:
    return PersistentDirectories(paths.local_root(), SANDBOX)


@contextlib.contextmanager
def _writing() -> Generator[None]:
    """Be the only one who writes index files.

    Raises:
        BackendError: That cannot be, or what is done meanwhile raises an OSError.
    """
    root = paths.opensandbox_root()
    lock = FileLock(root / _INDEX_LOCK)
    try:
        if not lock.acquire(timeout=_INDEX_WAIT_SECONDS):
            raise BackendError(
                f"another program has been writing below {str(root)!r} for "
                f"{_INDEX_WAIT_SECONDS:g} s; end it, then try again"
            )
        yield
    except OSError as exc:
        raise BackendError(f"cannot write below {str(root)!r}: {exc.strerror or exc}") from exc
    finally:
        lock.release()


def _forget(index: Path) -> bool:
    """Remove an index file, and its file of uses, which the caller has claimed; tell if it was."""
    was_known = index.exists()
    index.unlink(missing_ok=True)
    use_file(index).unlink(missing_ok=True)
    return was_known


def _with_uses(record: RemoteSandboxRecord) -> RemoteSandboxRecord:
    """Return a record that knows the uses since its index file was written."""
    used_at = last_use(use_file(record.path))
    if used_at is None or used_at <= record.last_used_at.timestamp():
        return record
    return dataclasses.replace(record, last_used_at=datetime.fromtimestamp(used_at, UTC))


# ---------------------------------------------------------------- index files


def _read_index(path: Path) -> RemoteSandboxRecord:
    """Return what an index file says.

    Raises:
        FileNotFoundError: There is none.
        BadIndex: It cannot be believed.
    """
    return _decode_record(_read_json(path), path)


def write_last_use(path: Path, time: datetime) -> None:
    """Write another time of last use into an index file; all else in it stays.

    Raises:
        FileNotFoundError: There is none.
        BadIndex: It cannot be believed.
    """
    raw = _read_json(path)
    _decode_record(raw, path)
    atomic_write_json(path, {**raw, "last_used_at": time.isoformat()}, mode=_PRIVATE_MODE)


def _encode_record(record: RemoteSandboxRecord) -> dict[str, Any]:
    return {
        "schema_version": record.schema_version,
        "id": str(record.id),
        "backend": record.backend,
        "remote_id": record.remote_id,
        "spec": spec_to_jsonable(record.spec),
        "created_at": record.created_at.isoformat(),
        "last_used_at": record.last_used_at.isoformat(),
    }


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw: object = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as exc:
        raise BadIndex(f"{path} cannot be read: {exc}") from exc
    if not isinstance(raw, dict):
        raise BadIndex(f"{path} holds no JSON object")
    return cast("dict[str, Any]", raw)


def _decode_record(raw: dict[str, Any], path: Path) -> RemoteSandboxRecord:
    try:
        version = int(raw["schema_version"])
        if version > SCHEMA_VERSION:
            raise ValueError(f"it was written by a newer rath, as version {version}")
        record = RemoteSandboxRecord(
            schema_version=version,
            id=UUID(raw["id"]),
            backend=_checked_name(raw["backend"]),
            remote_id=_checked_name(raw["remote_id"]),
            spec=spec_from_jsonable(raw.get("spec")),
            created_at=_utc(raw["created_at"]),
            last_used_at=_utc(raw["last_used_at"]),
            path=path,
        )
        if str(record.id) != path.stem:
            raise ValueError(f"it is the index of {record.id}")
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as exc:
        raise BadIndex(f"{path} cannot be used: {type(exc).__name__}: {exc}") from exc
    return record


def _checked_name(raw: object) -> str:
    if not isinstance(raw, str) or not raw:
        raise ValueError(f"expected a name, found {raw!r}")
    return raw


def _utc(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


# ---------------------------------------------------------------- forks


def prunable_forks(*, older_than: timedelta = _AT_ONCE) -> list[UUID]:
    """Return the forks that `prune_forks` would remove now."""
    return [
        fork_id
        for fork_id in listed_ids(paths.forks_root())
        if _is_fork_left(paths.fork_dir(fork_id), older_than)
    ]


def prune_forks(*, older_than: timedelta = _AT_ONCE) -> list[UUID]:
    """Remove what is left of forks whose process has gone, and return their ids.

    A fork in which a file system is still mounted is kept, with a warning.

    Args:
        older_than: How long ago a fork must have been made.
    """
    removed = [
        fork_id
        for fork_id in prunable_forks(older_than=older_than)
        if _remove_fork(paths.fork_dir(fork_id), older_than)
    ]
    for unfinished in listed_ids(paths.forks_root(), prefix="."):
        _remove_fork(paths.forks_root() / f".{unfinished}", max(older_than, _GIVEN_UP))
    empty_trash(paths.forks_root())
    return removed


def _remove_fork(path: Path, older_than: timedelta) -> bool:
    if not _is_fork_left(path, older_than):
        return False
    with _fork_claimed(path) as is_free:
        return is_free and move_to_trash(path) is not None


def _is_fork_left(path: Path, older_than: timedelta) -> bool:
    made_at = last_use(path / LOCK_FILENAME)
    if made_at is None:
        made_at, older_than = last_use(path), max(older_than, _GIVEN_UP)
    if not is_old(made_at, older_than):
        return False
    with _fork_claimed(path) as is_free:
        return is_free


@contextlib.contextmanager
def _fork_claimed(path: Path) -> Generator[bool]:
    """Try to take the lock of a fork; gives whether nobody holds it."""
    try:
        fd = os.open(path / LOCK_FILENAME, os.O_RDWR)
    except OSError as exc:
        # Without a file there is no owner; what cannot be opened may have one.
        yield isinstance(exc, FileNotFoundError)
        return
    try:
        lock = FileLock(fd)
        yield lock.acquire()
        lock.release()
    finally:
        os.close(fd)
