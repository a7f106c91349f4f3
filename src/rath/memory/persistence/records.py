"""What the `meta.json` of a local store tells to those who did not open it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

_META_NAME = "meta.json"


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """Whose a store is, and when it was opened or closed last."""

    project_root: Path | None = None
    """Root of the project whose store it is; None for any other store."""

    last_used_at: float | None = None
    """Seconds since 1970; None where it is not told."""

    is_damaged: bool = False
    """There is a file, and it cannot be believed."""


def read_record(store: Path) -> StoreRecord:
    """Return what the store in a directory tells; nothing where it has no `meta.json` yet."""
    try:
        raw: object = json.loads((store / _META_NAME).read_bytes())
    except FileNotFoundError:
        return StoreRecord()
    except (OSError, ValueError, RecursionError):
        return StoreRecord(is_damaged=True)
    if not isinstance(raw, dict):
        return StoreRecord(is_damaged=True)
    known = cast("dict[str, object]", raw)
    root = known.get("project_root")
    return StoreRecord(
        Path(root) if isinstance(root, str) and root else None, _seconds(known.get("last_used_at"))
    )


def _seconds(told: object) -> float | None:
    try:
        time = datetime.fromisoformat(str(told))
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
