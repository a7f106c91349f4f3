"""What lies beside a transcript as JSON: the rows of its messages, and what was made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

Phase = Literal["pending", "done", "failed"]
"""Whether a model is still to be asked, was asked with success, or was asked in vain too often."""


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """What `commit.json` holds: what a commit told beside its messages."""

    rows: tuple[int, ...] = ()
    """For each message, the index of its row in the session; none where that is not known."""
    used_uris: tuple[str, ...] = ()
    """Notes that the model was shown in that session."""
    run: str | None = None
    """The run that was committed, None for a commit by hand."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        said: dict[str, Any] = {"rows": list(self.rows), "used_uris": list(self.used_uris)}
        return said if self.run is None else said | {"run": self.run}

    @classmethod
    def from_json(cls, payload: object) -> CommitRecord:
        """Read it; what somebody else wrote in its place is as good as nothing."""
        fields = _fields(payload)
        rows, uris = _items(fields.get("rows")), _items(fields.get("used_uris"))
        if not all(_is_count(row) for row in rows):
            rows = []
        return cls(
            tuple(cast("list[int]", rows)),
            tuple(uri for uri in uris if isinstance(uri, str)),
            _text(fields.get("run")),
        )


@dataclass(frozen=True, slots=True)
class ExtractionRecord:
    """What `extraction.json` holds: how far a model has come with a transcript."""

    phase: Phase = "pending"
    attempts: int = 0
    """How often a model was asked, also by a process that was killed then."""
    uris: tuple[str, ...] = ()
    """The notes that were made."""
    model: str | None = None
    error: str | None = None
    """What went wrong the last time."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {
            "state": self.phase,
            "attempts": self.attempts,
            "uris": list(self.uris),
            "model": self.model,
            "error": self.error,
        }

    @classmethod
    def from_json(cls, payload: object) -> ExtractionRecord | None:
        """Read it; None for anything that is no such record."""
        fields = _fields(payload)
        phase, attempts = fields.get("state"), fields.get("attempts")
        if phase not in get_args(Phase) or not _is_count(attempts):
            return None
        uris = (uri for uri in _items(fields.get("uris")) if isinstance(uri, str))
        return cls(
            phase=cast("Phase", phase),
            attempts=cast("int", attempts),
            uris=tuple(uris),
            model=_text(fields.get("model")),
            error=_text(fields.get("error")),
        )


def _fields(payload: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", payload) if isinstance(payload, dict) else {}


def _items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
