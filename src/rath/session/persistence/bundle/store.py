"""A bundle as a store that can only be read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from uuid import UUID

from rath._core.blobs import Blob
from rath.errors import PersistenceError
from rath.session.persistence.bundle.decode import Bundle
from rath.session.persistence.store.abc import SessionLog, SessionStore, StoredLog


class BundleStore(SessionStore):
    """Gives what a bundle holds, from memory.

    Args:
        bundle: What it holds.
        where: Its file, for messages.
    """

    name = "bundle"

    def __init__(self, bundle: Bundle, where: str) -> None:
        self._bundle = bundle
        self.where = where

    def create(self, session: UUID) -> SessionLog:
        raise self._refusal()

    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> SessionLog:
        raise self._refusal()

    def append_to_finished(
        self, session: UUID, size: int, data: bytes, *, blobs: Collection[Blob] = ()
    ) -> bool:
        raise self._refusal()

    def read(self, session: UUID) -> StoredLog | None:
        return self._bundle.logs.get(session)

    def stamps(self) -> Mapping[UUID, str]:
        return {session: str(len(log.data)) for session, log in self._bundle.logs.items()}

    def is_being_written(self, session: UUID) -> bool:
        return False

    def delete(self, session: UUID) -> bool:
        raise self._refusal()

    def restore(self, session: UUID) -> bool:
        raise self._refusal()

    def empty_trash(self) -> int:
        return 0

    def blob(self, digest: str) -> bytes | None:
        return self._bundle.blobs.get(digest)

    def follow(self, session: UUID, start: int) -> Iterator[bytes]:
        log = self._bundle.logs.get(session)
        if log is not None:
            yield log.data[start:]

    def _refusal(self) -> PersistenceError:
        return PersistenceError(
            f"{self.where} is a bundle, which is only read; import it into a store to go on there"
        )
