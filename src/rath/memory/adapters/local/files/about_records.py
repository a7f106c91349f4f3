"""The JSON of the file beside a note.

{"schema_version": 1, "expires_at": ISO 8601 time with zone or null,
 "sources": [{"session_id": str, "rows": [int], "model": str or null, "learned_at": time or null}],
 "remembered": true, where it was also written without a session,
 "next": {"sha256": of the text that it is true of, and the same keys}, while a text is replaced}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast

from rath.memory.adapters.local.files.about import NOTHING_KNOWN, NoteAbout, Source

SCHEMA_VERSION = 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class AboutRecord:
    """What the file tells: of the note beside it, and of the text that is about to replace it."""

    about: NoteAbout = NOTHING_KNOWN
    next_digest: str | None = None
    """SHA-256 of that text."""
    next_about: NoteAbout = NOTHING_KNOWN

    def to_json(self) -> bytes:
        """Return the bytes of the file."""
        record = {"schema_version": SCHEMA_VERSION, **_encoded(self.about)}
        if self.next_digest is not None:
            record["next"] = {"sha256": self.next_digest, **_encoded(self.next_about)}
        return json.dumps(record, ensure_ascii=False, indent=2).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> AboutRecord:
        """Return what a file tells.

        Raises:
            ValueError: It is no such file.
        """
        try:
            record = _mapping(json.loads(data))
            if record.get("schema_version") != SCHEMA_VERSION:
                raise ValueError(f"its schema_version is not {SCHEMA_VERSION}")
            about = _decoded(record)
            if "next" not in record:
                return cls(about)
            following = _mapping(record["next"])
            return cls(about, _text(following.get("sha256")), _decoded(following))
        except (RecursionError, OverflowError, TypeError) as exc:
            raise ValueError(str(exc)) from exc


def _encoded(about: NoteAbout) -> dict[str, object]:
    record: dict[str, object] = {
        "expires_at": _iso(about.expires_at),
        "sources": [
            {
                "session_id": source.session_id,
                "rows": list(source.rows),
                "model": source.model,
                "learned_at": _iso(source.learned_at),
            }
            for source in about.sources
        ],
    }
    return {**record, "remembered": True} if about.is_remembered else record


def _decoded(record: Mapping[str, object]) -> NoteAbout:
    sources = tuple(_source(_mapping(each)) for each in _list(record.get("sources")))
    is_remembered = record.get("remembered") is True and bool(sources)
    return NoteAbout(_seconds(record.get("expires_at")), sources, is_remembered)


def _source(record: Mapping[str, object]) -> Source:
    model = record.get("model")
    rows = tuple(row for row in _list(record.get("rows")) if isinstance(row, int))
    return Source(
        _text(record.get("session_id")),
        rows,
        None if model is None else _text(model),
        _seconds(record.get("learned_at")),
    )


def _iso(seconds: float | None) -> str | None:
    # Not `fromtimestamp`, which is narrower than `datetime` on some systems.
    return None if seconds is None else (_EPOCH + timedelta(seconds=seconds)).isoformat()


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    moment = datetime.fromisoformat(_text(value))
    if moment.tzinfo is None:
        raise ValueError(f"{value!r} is a time without a zone")
    return (moment - _EPOCH).total_seconds()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return cast("list[object]", value)


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no mapping")
    return cast("dict[str, object]", value)
