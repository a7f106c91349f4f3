"""What a store of sessions is: an append-only log of bytes for each session, and blobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from rath._core.blobs import Blob


@dataclass(frozen=True, slots=True)
class StoredLog:
    """The log of one session as it was when it was read."""

    session: UUID
    data: bytes
    """All that was appended; the end of a line may be missing where a writer was cut off."""

    is_finished: bool
    """Whether its writer has finished it, and it has its final name."""

    where: str
    """Where it stands, for messages: a path, or an address without secrets."""


class SessionLog(ABC):
    """A log that one writer appends to, as long as it is open; all methods block.

    Used from one thread at a time, but for `abandon`, which may come from any.
    """

    session: UUID
    where: str

    @abstractmethod
    def append(self, data: bytes, *, blobs: Collection[Blob] = (), durable: bool = False) -> None:
        """Add whole lines, and before them the bytes of the blobs that they name.

        Args:
            data: Lines, each with its line feed.
            blobs: Content to keep; what has no bytes is left out.
            durable: Return only when it would survive a loss of power.

        Raises:
            PersistenceError: It cannot be written; the log can then only be abandoned.
            RuntimeError: The log was finished or abandoned.
        """

    @abstractmethod
    def finish(self) -> None:
        """Let go of the log as one that is complete; durable. Nothing happens when it is closed.

        One to which nothing was appended leaves nothing behind.

        Raises:
            PersistenceError: A write failed, now or before; the log stays unfinished.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Let go of the log as it is; it stays unfinished."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether nothing can be written any more."""


class SessionStore(ABC):
    """Logs by session, and content by digest; all methods block and may be called by any thread.

    A log has one writer at a time, in all processes. What is deleted can be brought back until the
    trash is emptied.
    """

    name: str
    """As it is registered, such as "files"."""

    where: str
    """Where it is, for messages and for the name of its index; holds no secret."""

    @abstractmethod
    def create(self, session: UUID) -> SessionLog:
        """Begin the log of a session; it is there for readers from its first append on.

        Raises:
            PersistenceError: There is a log already, or it is being written, or it cannot be.
        """

    @abstractmethod
    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> SessionLog:
        """Go on with a log, finished or not; it is unfinished then.

        Args:
            session: Whose log.
            keep: How many bytes at its beginning stay; what follows is kept aside and cut off.
            size: How many bytes it had when it was read, so that nothing is cut off that somebody
                has added since; None where that is not asked.

        Raises:
            PersistenceError: There is none, or somebody writes it, or it has less than `keep`
                bytes, or not `size`.
        """

    @abstractmethod
    def append_to_finished(
        self, session: UUID, size: int, data: bytes, *, blobs: Collection[Blob] = ()
    ) -> bool:
        """Add lines to a finished log of `size` bytes, durably; False when its size is another.

        Args:
            session: Whose log.
            size: How many bytes it had when it was read.
            data: Lines, each with its line feed.
            blobs: Content that they name.

        Raises:
            PersistenceError: There is none that is finished, or it cannot be written.
        """

    def rewrite(self, session: UUID, data: bytes, *, size: int) -> None:
        """Put other lines in the place of a log of `size` bytes, which stays finished or not.

        Durable, and at once where the store can do that; elsewhere a crash leaves what was there
        aside, as `reopen` does.

        Raises:
            PersistenceError: There is none, or somebody writes it, or its size is another, or it
                cannot be written.
        """
        before = self.read(session)
        log = self.reopen(session, 0, size=size)
        try:
            log.append(data, durable=True)
            if before is not None and before.is_finished:
                log.finish()
        finally:
            log.abandon()

    def restart(
        self, session: UUID, data: bytes, *, size: int, blobs: Collection[Blob] = ()
    ) -> SessionLog:
        """Put the first lines of another log in the place of a finished one, and return it open.

        It is unfinished then. Durable, and at once where the store can do that: whoever reads finds
        the old lines or the new ones. What stood there is kept aside, or in the trash.

        Args:
            session: Whose log.
            data: Lines, each with its line feed.
            size: How many bytes the finished log had when it was read.
            blobs: Content that the lines name.

        Raises:
            PersistenceError: There is none, or somebody writes it, or its size is another, or it
                cannot be written.
        """
        log = self.reopen(session, 0, size=size)
        try:
            log.append(data, blobs=blobs, durable=True)
        except BaseException:
            log.abandon()
            raise
        return log

    @abstractmethod
    def read(self, session: UUID) -> StoredLog | None:
        """Return the log of a session, None where there is none.

        Raises:
            PersistenceError: It cannot be read.
        """

    def holds(self, session: UUID) -> bool:
        """Tell whether there is a log of a session; a store that can does not read it for that.

        Raises:
            PersistenceError: It cannot be read.
        """
        return self.read(session) is not None

    @abstractmethod
    def stamps(self) -> Mapping[UUID, str]:
        """Return for each log a text that changes when the log does; cheap, reads no log."""

    @abstractmethod
    def is_being_written(self, session: UUID) -> bool:
        """Tell whether a writer has the log open, in any process."""

    @abstractmethod
    def delete(self, session: UUID) -> bool:
        """Move a log to the trash; False where there is none.

        Raises:
            PersistenceError: Somebody writes it, or it cannot be moved.
        """

    @abstractmethod
    def restore(self, session: UUID) -> bool:
        """Bring back what was deleted last of a session; False where that is not there.

        Raises:
            PersistenceError: There is a log of it again, or it cannot be brought back.
        """

    @abstractmethod
    def empty_trash(self) -> int:
        """Remove for good what was deleted, and blobs that no log names; return how many logs."""

    @abstractmethod
    def blob(self, digest: str) -> bytes | None:
        """Return content by its sha256, None where it is not there or damaged."""

    @abstractmethod
    def follow(self, session: UUID, start: int) -> Iterator[bytes]:
        """Yield the whole lines that are appended to a log from byte `start` on.

        Waits between, on the thread of its caller. Ends when nobody writes the log and all of it
        was yielded: at once where that is so from the beginning.

        Raises:
            PersistenceError: It cannot be read, or what was yielded was cut off meanwhile.
        """

    def close(self) -> None:
        """Give back what the store holds, such as connections; it can be used again."""
        return
