"""Contents of files that were seen, by digest, as far as there is room."""

from __future__ import annotations

from collections import OrderedDict

from rath._core.blobs import MAX_BLOB_BYTES, Blob
from rath.backend.changes import FileState

MAX_KEPT_BYTES = 32 << 20
"""How much is kept for one sandbox; a guess."""


class Contents:
    """The contents seen last, up to `MAX_KEPT_BYTES`."""

    def __init__(self) -> None:
        self._by_digest: OrderedDict[str, bytes] = OrderedDict()
        self._n_bytes = 0

    def keep(self, blob: Blob) -> None:
        """Keep the content of a blob, if it holds any."""
        if blob.data is None or blob.size > MAX_BLOB_BYTES or blob.digest in self._by_digest:
            return
        self._by_digest[blob.digest] = blob.data
        self._n_bytes += blob.size
        while self._n_bytes > MAX_KEPT_BYTES:
            _, dropped = self._by_digest.popitem(last=False)
            self._n_bytes -= len(dropped)

    def blob_of(self, state: FileState) -> Blob:
        """Return what a file held, with its content if that is here."""
        data = self._by_digest.get(state.digest)
        if data is not None:
            self._by_digest.move_to_end(state.digest)
        return Blob(state.digest, state.size, data)
