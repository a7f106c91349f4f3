"""One span, before any SDK is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

Attribute = str | bool | int | float | tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time in which an agent ran, a model was asked, or a tool worked.

    Ids follow from those in the record: spans of one session, made twice, are the same spans.
    """

    name: str
    kind: Literal["client", "internal"]
    trace: UUID
    """The outermost workflow call, or the session, where there is none."""

    id: UUID
    parent: UUID | None
    links: tuple[tuple[UUID, UUID], ...] = ()
    """Trace and id of the spans of the runs that this one goes on from."""

    start: datetime
    end: datetime
    attributes: Mapping[str, Attribute]
    """By the names of the semantic conventions for generative AI."""

    error: str | None = None
    """What went wrong, None where nothing did."""
