"""A store whose n-th write fails, as on a full disk; all else is that of the store inside it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from uuid import UUID

from rath._core.blobs import Blob
from rath.errors import PersistenceError
from rath.session.persistence.store import SessionLog, SessionStore, StoredLog


class FailingStore(SessionStore):
    """Counts the writes to all logs of a store together, and lets one fail.

    A write is a call of `create`, `append`, `finish`, `reopen` or `append_to_finished`. As on a
    disk, a log to which a write failed takes no more.

    Args:
        inner: Where the rest goes.
        fail_at: Which write fails, the first is 1; 0 for none.
        torn: How many bytes of what a failing `append` is given are written all the same.
        heals: Whether writes to other logs succeed again after that one.
    """

    def __init__(
        self, inner: SessionStore, fail_at: int = 0, *, torn: int = 0, heals: bool = True
    ) -> None:
        self.inner = inner
        self.name = inner.name
        self.where = inner.where
        self.fail_at = fail_at
        self.torn = torn
        self.heals = heals
        self.n_writes = 0
        """How many writes were asked for so far."""

    def is_failing(self) -> bool:
        """Count a write, and tell whether it is to fail."""
        self.n_writes += 1
        if not self.fail_at:
            return False
        return self.n_writes == self.fail_at if self.heals else self.n_writes >= self.fail_at

    def check(self) -> None:
        """Count a write, and let it fail where it is its turn."""
        if self.is_failing():
            raise full(self.where)

    def create(self, session: UUID) -> SessionLog:
        self.check()
        return FailingLog(self, self.inner.create(session))

    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> SessionLog:
        self.check()
        return FailingLog(self, self.inner.reopen(session, keep, size=size))

    def append_to_finished(
        self, session: UUID, size: int, data: bytes, *, blobs: Collection[Blob] = ()
    ) -> bool:
        self.check()
        return self.inner.append_to_finished(session, size, data, blobs=blobs)

    def read(self, session: UUID) -> StoredLog | None:
        return self.inner.read(session)

    def stamps(self) -> Mapping[UUID, str]:
        return self.inner.stamps()

    def is_being_written(self, session: UUID) -> bool:
        return self.inner.is_being_written(session)

    def delete(self, session: UUID) -> bool:
        return self.inner.delete(session)

    def restore(self, session: UUID) -> bool:
        return self.inner.restore(session)

    def empty_trash(self) -> int:
        return self.inner.empty_trash()

    def blob(self, digest: str) -> bytes | None:
        return self.inner.blob(digest)

    def follow(self, session: UUID, start: int) -> Iterator[bytes]:
        return self.inner.follow(session, start)

    def close(self) -> None:
        self.inner.close()


class FailingLog(SessionLog):
    """A log of a `FailingStore`."""

    def __init__(self, store: FailingStore, inner: SessionLog) -> None:
        self.store = store
        self.inner = inner
        self.session = inner.session
        self.where = inner.where
        self.is_broken = False

    @property
    def closed(self) -> bool:
        return self.inner.closed

    def append(self, data: bytes, *, blobs: Collection[Blob] = (), durable: bool = False) -> None:
        if self.is_broken:
            raise full(self.where)
        if self.store.is_failing():
            self.is_broken = True
            if self.store.torn:
                self.inner.append(data[: self.store.torn])
            raise full(self.where)
        self.inner.append(data, blobs=blobs, durable=durable)

    def finish(self) -> None:
        if self.closed:
            return
        if self.is_broken or self.store.is_failing():
            self.is_broken = True
            self.inner.abandon()
            raise full(self.where)
        self.inner.finish()

    def abandon(self) -> None:
        self.inner.abandon()


def full(where: str) -> PersistenceError:
    """Return the error of a write that fails."""
    return PersistenceError(
        f"{where} cannot be written: No space left on device; what was written before can still "
        "be read"
    )
