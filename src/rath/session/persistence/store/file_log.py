"""The log of one session as a file, which takes its final name when it is finished."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Self
from uuid import UUID

from rath._core.blobs import Blob
from rath._core.files import atomic_write_bytes, sync_directory
from rath.errors import PersistenceError
from rath.session.persistence.blobs import BlobStore
from rath.session.persistence.paths import ensure_private, partial_beside
from rath.session.persistence.store.abc import SessionLog
from rath.session.persistence.store.claim import (
    Claim,
    claim_finished,
    claim_partial,
    claimed,
)
from rath.session.persistence.store.file_trash import FileTrash

__all__ = ["FileLog", "append_to_finished", "read_whole", "rewrite_file"]

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_logger = logging.getLogger(__name__)


class FileLog(SessionLog):
    """A log that is appended to `<path>.__partial__`, and is renamed to `path` when it is finished.

    Made by `create`, `replace` or `reopen`. A log to which nothing was appended leaves no file.
    """

    def __init__(self, session: UUID, path: Path, claim: Claim, *, backs_up: bool = False) -> None:
        self.session = session
        self.path = path
        """Where it stands when it is finished."""

        self.partial_path = claim.path
        """Where it stands until then."""

        self.where = str(claim.path)
        self._blobs = BlobStore(path.parent)
        self._claim = claim
        self._backs_up = backs_up
        self._is_broken = False
        self._is_named = False
        # A run that is cancelled abandons its log while another thread may be writing a line.
        self._busy = threading.RLock()

    @classmethod
    def create(cls, session: UUID, path: Path) -> Self:
        """Begin a log; directories that are missing are made.

        Raises:
            PersistenceError: There is one already, or it is being written, or it cannot be.
        """
        ensure_private(path.parent)
        claim = claim_partial(path)
        try:
            if path.exists() or claim.size:
                there = path if path.exists() else claim.path
                raise PersistenceError(
                    f"{there} is there already; go on with it, delete it first, or take another "
                    "id or path"
                )
        except BaseException:
            claim.release()
            raise
        return cls(session, path, claim)

    @classmethod
    def replace(cls, session: UUID, path: Path, *, backs_up: bool = False) -> Self:
        """Begin a log that takes the place of the one at `path` once it is finished.

        What a writer that was cut off has left beside it is kept as `<path>.__partial__.<number>`.

        Args:
            session: Whose log.
            path: Where it stands when it is finished.
            backs_up: Keep the finished file that it replaces as `<path>.<number>`, and log a
                warning; by default that file is gone.

        Raises:
            PersistenceError: It is being written, or it cannot be.
        """
        ensure_private(path.parent)
        claim = claim_partial(path)
        try:
            _cut(claim, 0)
        except BaseException:
            claim.release()
            raise
        return cls(session, path, claim, backs_up=backs_up)

    @classmethod
    def reopen(cls, session: UUID, path: Path, keep: int, *, size: int | None = None) -> Self:
        """Go on with a log, finished or not.

        Args:
            session: Whose log.
            path: Where it stands when it is finished.
            keep: How many bytes at its beginning stay; the rest is moved to
                `<path>.__partial__.<number>`.
            size: How many bytes it had when it was read; None where that is not asked.

        Raises:
            PersistenceError: There is none, or somebody writes it, or its size is another.
        """
        if not path.exists() and not partial_beside(path).exists():
            raise _missing(path)
        claim = claim_partial(path)
        try:
            claim = _taken_back(claim, path, keep, size)
            _cut(claim, keep)
        except BaseException as exc:
            claim.release()
            if isinstance(exc, OSError):
                raise PersistenceError(
                    f"{path} cannot be gone on with: {exc.strerror or exc}; it can still be read"
                ) from exc
            raise
        return cls(session, path, claim)

    @classmethod
    def restart(
        cls,
        session: UUID,
        path: Path,
        data: bytes,
        size: int,
        *,
        blobs: Collection[Blob],
        trash: FileTrash,
    ) -> Self:
        """Put the first lines of another log in the place of a finished one; see `SessionStore`.

        The new lines are on disk before the old file goes to the trash: as long as it is there it
        is the one that is read.

        Raises:
            PersistenceError: It is not finished, or somebody writes it, or its size is another.
        """
        if not path.exists():
            raise _missing(path)
        claim = claim_partial(path)
        try:
            finished = claim_finished(path)
            if finished is None:
                raise _missing(path)
            try:
                _check_size(finished, size, size)
                _cut(claim, 0)
                log = cls(session, path, claim)
                log.append(data, blobs=blobs, durable=True)
                if sys.platform == "win32":  # What is open cannot be renamed there.
                    finished.release()
                trash.put(path, [path])
            finally:
                finished.release()
        except BaseException as exc:
            claim.release()
            if isinstance(exc, OSError):
                raise PersistenceError(
                    f"{path} cannot be written: {exc.strerror or exc}; it is as it was"
                ) from exc
            raise
        return log

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more."""
        return self._claim.is_released

    @property
    def is_lost(self) -> bool:
        """Whether the open file was renamed or removed by somebody else."""
        with self._busy:
            return not self.closed and not self._claim.is_still_there()

    def append(self, data: bytes, *, blobs: Collection[Blob] = (), durable: bool = False) -> None:
        with self._busy:
            if self.closed:
                raise RuntimeError(f"the log {self.path} is closed; reopen it to write more")
            if self._is_broken:
                raise self._broken()
            try:
                with self._blobs.holding(blobs):
                    self._write(data)
                if durable:
                    self._force()
            except BaseException as exc:
                # An interrupt, too, may have cut a line in two.
                self._is_broken = True
                if isinstance(exc, OSError):
                    raise self._unwritable(exc) from exc
                raise

    def finish(self) -> None:
        """Force the log to disk and give it its final name; see `SessionLog.finish`.

        Raises:
            PersistenceError: A write failed, now or before, or the file was renamed or removed
                meanwhile; the log stays unfinished.
        """
        with self._busy:
            if self.closed:
                return
            try:
                self._finish()
            except OSError as exc:
                raise self._unwritable(exc) from exc
            finally:
                self._claim.release()

    def abandon(self) -> None:
        with self._busy:
            self._claim.release()

    def _finish(self) -> None:
        if self._is_broken:
            raise self._broken()
        if not self._claim.is_still_there():
            raise PersistenceError(
                f"{self.partial_path} was renamed or removed by another program while it was "
                "written; what was written is where that program put it, or lost"
            )
        if self._claim.size == 0:
            return
        os.fsync(self._claim.fd)
        backup = _back_up(self.path) if self._backs_up else None
        self._claim.rename(self.path)
        if backup is not None:
            _logger.warning(
                "%s was written again; the finished file that stood there is kept as %s",
                self.path,
                backup,
            )
        sync_directory(self.path.parent)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._claim.fd, rest) :]

    def _force(self) -> None:
        os.fsync(self._claim.fd)
        if not self._is_named:
            sync_directory(self.path.parent)
            self._is_named = True

    def _broken(self) -> PersistenceError:
        return PersistenceError(
            f"{self.partial_path} stays unfinished: an earlier write to it failed; what was "
            "written before that can still be read"
        )

    def _unwritable(self, exc: OSError) -> PersistenceError:
        return PersistenceError(
            f"{self.partial_path} cannot be written: {exc.strerror or exc}; what was written "
            "before can still be read"
        )


def read_whole(path: Path) -> bytes:
    """Return what a file holds that may be gone on with meanwhile.

    A log that gets another name while it is read has grown by then: what was read is not what it
    was under the name that was asked for.

    Raises:
        OSError: It is not there, or cannot be read.
    """
    while True:
        before, data, after = path.stat(), path.read_bytes(), path.stat()
        if os.path.samestat(before, after) and after.st_size == len(data):
            return data


def append_to_finished(path: Path, size: int, data: bytes, *, blobs: Collection[Blob] = ()) -> bool:
    """Add lines to the finished log at `path`, durably; False when it has not `size` bytes.

    Raises:
        PersistenceError: There is none, or it cannot be written; then it is as it was.
    """
    claim = claim_finished(path)
    if claim is None:
        raise (
            _missing(path)
            if not partial_beside(path).exists()
            else PersistenceError(f"{path} is not finished: it goes on in {partial_beside(path)}")
        )
    try:
        if claim.size != size:
            return False
        with BlobStore(path.parent).holding(blobs):
            _append_whole(claim, size, data)
    except OSError as exc:
        raise PersistenceError(
            f"{path} cannot be written: {exc.strerror or exc}; it is as it was"
        ) from exc
    finally:
        claim.release()
    return True


def _append_whole(claim: Claim, size: int, data: bytes) -> None:
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(claim.fd, rest) :]
        os.fsync(claim.fd)
    except BaseException:
        os.ftruncate(claim.fd, size)
        raise


def rewrite_file(path: Path, data: bytes, size: int) -> None:
    """Put `data` in the place of a log of `size` bytes whose finished file is `path`, at once.

    Raises:
        PersistenceError: There is none, or somebody writes it, or its size is another, or it
            cannot be written.
    """
    with claimed(path) as claim:
        finished = claim_finished(path)
        held = claim if finished is None else finished
        try:
            if held.size == 0:
                raise _missing(path)
            _check_size(held, 0, size)
            if sys.platform == "win32":  # What is open cannot be replaced there.
                held.release()
            atomic_write_bytes(held.path, data, mode=0o600)
        except OSError as exc:
            raise PersistenceError(
                f"{held.path} cannot be written: {exc.strerror or exc}; it is as it was"
            ) from exc
        finally:
            if finished is not None:
                finished.release()


def _taken_back(claim: Claim, path: Path, keep: int, size: int | None) -> Claim:
    """Return the claim on what is to be gone on with: a finished file is an unfinished one again.

    Whoever has the unfinished file, be it an empty one, is the only one who renames the other.
    """
    finished = claim_finished(path)
    if finished is None:
        if claim.size == 0:
            raise _missing(path)
        _check_size(claim, keep, size)
        return claim
    try:
        _check_size(finished, keep, size)
        _cut(claim, 0)
        if sys.platform == "win32":  # What is open cannot be renamed there.
            finished.release()
            claim.release()
            path.replace(claim.path)
            return claim_partial(path)
        path.replace(claim.path)
        # Before anything is added: under its final name a log without an end is damaged.
        sync_directory(path.parent)
    except BaseException:
        finished.release()
        raise
    finished.path = claim.path
    claim.release()
    return finished


def _check_size(claim: Claim, keep: int, size: int | None) -> None:
    if claim.size < keep or size not in {None, claim.size}:
        raise PersistenceError(
            f"{claim.path} has {claim.size} bytes, not the {keep if size is None else size} that "
            "it had when it was read; somebody has changed it meanwhile: load it again"
        )


def _cut(claim: Claim, keep: int) -> None:
    """Cut off what follows `keep` bytes, and keep it under the first name that is free."""
    try:
        with claim.path.open("rb") as file:
            file.seek(keep)
            rest = file.read()
        if not rest:
            return
        number = 1
        while (aside := claim.path.with_name(f"{claim.path.name}.{number}")).exists():
            number += 1
        atomic_write_bytes(aside, rest, mode=0o600)
        os.ftruncate(claim.fd, keep)
        os.fsync(claim.fd)
    except OSError as exc:
        raise PersistenceError(f"{claim.path} cannot be written: {exc.strerror or exc}") from exc


def _back_up(path: Path) -> Path | None:
    """Give the file at `path` a second name, the first `<path>.<number>` that is free.

    The first name stays until another file takes it, so that readers always find one.

    Returns:
        The second name, None where there is no file.

    Raises:
        OSError: It cannot have one.
    """
    number = 1
    while True:
        backup = path.with_name(f"{path.name}.{number}")
        try:
            _link(path, backup)
        except FileExistsError:
            number += 1
        except FileNotFoundError:
            return None
        else:
            return backup


def _link(path: Path, name: Path) -> None:
    """Give a file a second name, which never replaces another file; a copy without hard links."""
    try:
        os.link(path, name)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:
        data = path.read_bytes()
        with os.fdopen(os.open(name, _NEW_FILE, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def _missing(path: Path) -> PersistenceError:
    return PersistenceError(f"session file not found: {path}; there is no log to go on with")
