"""Stores on disk with one fault each, which another process can open."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from rath._core.blobs import Blob
from rath.session.persistence.store import FileStore
from tests.support.api import Log


class SeesNobody(FileStore):
    """Sees writers of its own process only."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.own: set[UUID] = set()

    def create(self, session: UUID) -> Log:
        log = super().create(session)
        self.own.add(session)
        return log

    def is_being_written(self, session: UUID) -> bool:
        return session in self.own and super().is_being_written(session)


class KeepsInMemory(FileStore):
    """Writes durable lines when the log is let go of."""

    def create(self, session: UUID) -> Log:
        driver = self._lock(session, make=True)
        assert driver is not None
        return LateLog(driver)


class LateLog(Log):
    """Waits with what was to be durable."""

    late = b""

    def append(self, data: bytes, *, blobs: Collection[Blob] = (), durable: bool = False) -> None:
        if durable and not self.closed:
            self.late += data
        else:
            super().append(data, blobs=blobs)
