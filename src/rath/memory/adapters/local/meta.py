"""The `meta.json` of a local store: its version, its times and whose it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from rath._core.files import atomic_write_json
from rath.errors import MemoryBackendError
from rath.memory.adapters.local.files.regular import opened
from rath.memory.adapters.local.layout import META_NAME, logger

META_SCHEMA_VERSION = 1

_MAX_BYTES = 1_048_576


def write_meta(root: Path, changes: Mapping[str, object] | None = None) -> None:
    """Record that the store at `root` is in use now; creates the file, keeps unknown keys.

    A store that cannot be written to can still be read, so that is only logged.

    Raises:
        MemoryBackendError: A newer version of rath has written the store.
    """
    now = datetime.now(UTC).isoformat()
    old = _read(root)
    version = old.get("schema_version", META_SCHEMA_VERSION)
    if not isinstance(version, int) or version > META_SCHEMA_VERSION:
        raise MemoryBackendError(
            f"the memory store {root} has schema version {version!r}, and this version of rath "
            f"reads up to {META_SCHEMA_VERSION}; install a newer one"
        )
    first = {
        "schema_version": META_SCHEMA_VERSION,
        "created_at": now,
        "last_used_at": now,
        "embedding_provider": None,
        "vlm_provider": None,
    }
    try:
        atomic_write_json(
            root / META_NAME, {**first, **old, **(changes or {}), "last_used_at": now}
        )
    except OSError as exc:
        logger.warning("the memory store %s cannot be written to: %s", root, exc)


def _read(root: Path) -> dict[str, object]:
    try:
        with opened(root / META_NAME, follow=True) as file:
            data = b"" if file is None else file.read(_MAX_BYTES)
        payload: object = json.loads(data)
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, object]", payload) if isinstance(payload, dict) else {}
