"""Where logs and blobs are read from: a store, or one file and the store beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar
from uuid import UUID

from rath._core.blobs import Blob, is_digest
from rath.errors import PersistenceError, SessionDamaged
from rath.llm.image import Image
from rath.session.chunk import ChunkRow
from rath.session.log.store import SessionStore, StoredLog
from rath.session.persistence.codec import read_lines
from rath.session.persistence.loading.content import Content, content_of

T = TypeVar("T")

MAX_READS = 10
"""How often logs are read that change meanwhile, until what they say together is believed; a
guess. Each time all of them are read."""


@dataclass(frozen=True, slots=True)
class Source:
    """Reads what logs say.

    Args:
        store: Where they are, and the contents that they name.
        recover: Read each up to what cannot be believed, instead of raising.
    """

    store: SessionStore
    recover: bool = False
    _blobs: dict[str, Blob] = field(default_factory=dict[str, Blob], init=False, repr=False)
    _seen: dict[UUID, object] = field(default_factory=dict[UUID, object], init=False, repr=False)
    """How each log was when it was read last."""

    def read(self, session: UUID) -> StoredLog | None:
        """Return the log of a session, None where there is none.

        Raises:
            PersistenceError: It cannot be read.
        """
        log = self.store.read(session)
        self._seen[session] = _state(log)
        return log

    def has_changed(self) -> bool:
        """Tell whether a log is another one than when it was read; reads all of them again.

        Raises:
            PersistenceError: One cannot be read.
        """
        return any(_state(self.store.read(each)) != seen for each, seen in self._seen.items())

    def content(self, data: bytes, where: str, *, is_finished: bool) -> Content:
        """Return what a log says.

        Raises:
            SessionDamaged: It cannot be believed.
        """
        read = read_lines(
            data, where, is_finished=is_finished, make_blob=self.make_blob, recover=self.recover
        )
        return content_of(read, self.with_images, recover=self.recover)

    def find(self, session: UUID) -> Content | None:
        """Return what the log of a session says, None where there is none.

        Raises:
            PersistenceError: It cannot be read.
            SessionDamaged: It cannot be believed, or is that of another session.
        """
        log = self.read(session)
        if log is None:
            return None
        content = self.content(log.data, log.where, is_finished=log.is_finished)
        content.require(session)
        return content

    def find_ancestor(self, session: UUID) -> Content | None:
        """Return what the log of a session says; also None for none to believe, to recover."""
        try:
            return self.find(session)
        except SessionDamaged:
            if not self.recover:
                raise
            return None

    def make_blob(self, digest: str, size: int, is_kept: bool) -> Blob:
        """Return a blob whose bytes are read from the store when somebody wants them.

        There is one for each content, so that it is held once however often it is named.
        """
        if not is_kept:
            return Blob(digest, size)
        found = self._blobs.get(digest)
        if found is None or found.size != size:
            found = self._blobs[digest] = Blob.fetched(digest, size, self.store.blob)
        return found

    def with_images(self, row: ChunkRow) -> ChunkRow:
        """Return a row whose images have their bytes when somebody wants them."""
        return row.with_images(tuple(map(self._image, row.images)))

    def _image(self, image: Image) -> Image:
        blob = image.blob
        if not is_digest(blob.digest):
            return image
        absent = f"its bytes in {self.store.where} are missing or damaged"
        return replace(image, blob=self.make_blob(blob.digest, blob.size, True), absent=absent)


def read_together(
    store: SessionStore,
    read: Callable[[Source], T],
    *,
    recover: bool = False,
    is_sound: Callable[[T], bool] = lambda _: True,
) -> T:
    """Return what `read` makes of several logs, once these belong together.

    Logs are written parents first, and read one after another: one that was read early may have
    been gone on with before its child is read, which then begins with more than was read. So what
    looks damaged is read again as long as logs have changed meanwhile.

    Args:
        store: Where the logs are.
        read: Reads them; called again with a new source.
        recover: As for `Source`.
        is_sound: Tells whether there is no damage in what was made.

    Raises:
        SessionDamaged: What `read` raises of logs that stay as they are.
    """
    for _ in range(MAX_READS - 1):
        source = Source(store, recover)
        try:
            made = read(source)
        except SessionDamaged:
            if not source.has_changed():
                raise
        else:
            if is_sound(made) or not source.has_changed():
                return made
    return read(Source(store, recover))


def _state(log: StoredLog | None) -> object:
    # The last line ends with the checksum over all before it.
    return None if log is None else (len(log.data), log.is_finished, log.data[-64:])


def missing(session: UUID, store: SessionStore) -> PersistenceError:
    """Return the error that a session is not there."""
    return PersistenceError(
        f"session {session} not found in {store.where}; list_persisted_sessions() tells what is "
        "there"
    )
