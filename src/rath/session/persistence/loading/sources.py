"""Where logs and blobs are read from: a store, or one file and the store beside it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from uuid import UUID

from rath._core.blobs import Blob, is_digest
from rath.errors import PersistenceError, SessionDamaged
from rath.llm.image import Image
from rath.session.chunk import ChunkRow
from rath.session.persistence.codec import read_lines
from rath.session.persistence.loading.content import Content, content_of
from rath.session.persistence.store.abc import SessionStore


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

    def content(self, data: bytes, where: str) -> Content:
        """Return what a log says.

        Raises:
            SessionDamaged: It cannot be believed.
        """
        read = read_lines(data, where, make_blob=self.make_blob, recover=self.recover)
        return content_of(read, self.with_images, recover=self.recover)

    def find(self, session: UUID) -> Content | None:
        """Return what the log of a session says, None where there is none.

        Raises:
            PersistenceError: It cannot be read.
            SessionDamaged: It cannot be believed, or is that of another session.
        """
        log = self.store.read(session)
        if log is None:
            return None
        content = self.content(log.data, log.where)
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


def missing(session: UUID, store: SessionStore) -> PersistenceError:
    """Return the error that a session is not there."""
    return PersistenceError(
        f"session {session} not found in {store.where}; list_persisted_sessions() tells what is "
        "there"
    )
