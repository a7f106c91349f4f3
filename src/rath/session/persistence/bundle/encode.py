"""Bundles to bytes.

    {"record_type": "bundle", "bundle_version": 1, "sessions": [...], ..., "sum": "..."}
    {"record_type": "log", "session": "...", "size": ..., "sha256": "...", ..., "sum": "..."}
    ...the lines of that log, as they stand in its file...
    {"record_type": "blob", "sha256": "...", "data": "<base64>", "sum": "..."}
    {"record_type": "end", "n_logs": ..., "n_blobs": ..., "sum": "..."}

The sums of the lines that are not part of a log are chained as those of a log are.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from rath._core.files import atomic_write_bytes
from rath.errors import PersistenceError
from rath.session.persistence.bundle.decode import VERSION, Bundle
from rath.session.persistence.chain import chained

__all__ = ["to_bytes", "write_bundle"]


def write_bundle(bundle: Bundle, path: Path) -> int:
    """Write a bundle to a file, at once or not at all, and return its size in bytes.

    A file that is there is replaced; only its owner may read it.

    Raises:
        PersistenceError: It cannot be written.
    """
    data = to_bytes(bundle)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_bytes(path, data, mode=0o600)
    except OSError as exc:
        raise PersistenceError(f"{path} cannot be written: {exc.strerror or exc}") from exc
    return len(data)


def to_bytes(bundle: Bundle) -> bytes:
    """Return the file of a bundle."""
    parts: list[bytes] = []
    after = ""
    for record, content in _records(bundle):
        line = json.dumps(record, ensure_ascii=False).encode()
        made, after = chained([line], after)
        parts += [made, content]
    return b"".join(parts)


def _records(bundle: Bundle) -> Iterator[tuple[dict[str, Any], bytes]]:
    yield (
        {
            "record_type": "bundle",
            "bundle_version": VERSION,
            "created_at": bundle.created_at.isoformat(),
            "sessions": [str(session) for session in bundle.sessions],
            "note": bundle.note,
        },
        b"",
    )
    for log in bundle.logs.values():
        yield (
            {
                "record_type": "log",
                "session": str(log.session),
                "finished": log.is_finished,
                "size": len(log.data),
                "sha256": sha256(log.data).hexdigest(),
            },
            log.data,
        )
    for digest, content in bundle.blobs.items():
        text = base64.b64encode(content).decode()
        yield {"record_type": "blob", "sha256": digest, "data": text}, b""
    yield (
        {
            "record_type": "end",
            "n_logs": len(bundle.logs),
            "n_blobs": len(bundle.blobs),
        },
        b"",
    )
