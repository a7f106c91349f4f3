"""How much file content the record of one run holds in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rath._core.blobs import Blob
from rath.backend.effects import FileEffect

MAX_RECORD_BYTES = 256 << 20
"""Contents of files that the effects of one run hold in memory, in bytes, each content once; a
guess. What comes later keeps its digest and size only."""

FULL = (
    f"contents were not kept, only their digests: the record of the run holds "
    f"{MAX_RECORD_BYTES >> 20} MiB of them (MAX_RECORD_BYTES)"
)


class KeptContents:
    """Counts the contents that the effects of one run hold; each digest once.

    Args:
        limit: How many bytes they may have together.
    """

    def __init__(self, limit: int = MAX_RECORD_BYTES) -> None:
        self._room = limit
        self._kept: set[str] = set()

    def fitting(self, effects: Iterable[FileEffect]) -> tuple[tuple[FileEffect, ...], bool]:
        """Return effects with the contents for which there is room, and whether all are there."""
        made: list[FileEffect] = []
        is_whole = True
        for effect in effects:
            before, after = self._fitting(effect.before), self._fitting(effect.after)
            if before is not effect.before or after is not effect.after:
                effect = replace(effect, before=before, after=after)
                is_whole = False
            made.append(effect)
        return tuple(made), is_whole

    def _fitting(self, blob: Blob | None) -> Blob | None:
        if blob is None or blob.data is None or blob.digest in self._kept:
            return blob
        if len(blob.data) > self._room:
            return replace(blob, data=None)
        self._room -= len(blob.data)
        self._kept.add(blob.digest)
        return blob
