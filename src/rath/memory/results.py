"""Results of the operations of a memory store."""

from __future__ import annotations

from typing import Literal, get_args

from rath._core.dataclasses import dataclass
from rath.memory.op_types import Level

__all__ = [
    "MemoryCommitResult",
    "MemoryEntry",
    "MemoryExecutionFailure",
    "MemoryFindResult",
    "MemoryForgetResult",
    "MemoryHit",
    "MemoryListResult",
    "MemoryReadResult",
    "MemoryResult",
    "MemorySource",
    "MemoryWriteResult",
]

FailureKind = Literal[
    "not_found",
    "unsupported",
    "transport",
    "extraction_failed",
    "store_closed",
    "unauthorized",
    "timeout",
    "invalid_uri",
    "internal",
]


class MemoryResult:
    """Base of the results; every one is a frozen value."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class MemoryHit:
    """One note that was found."""

    uri: str
    score: float
    """How well the note fits; higher is closer, and a threshold may be compared with it.

    A local store that finds by words gives BM25 (Robertson & Zaragoza 2009), above 0 and without
    an upper end; one that finds by vectors the cosine, above 0 and at most 1. Where both make the
    order it is the larger of the two, BM25 cut at 1, so it lies in [0, 1] as well, and a threshold
    in that range keeps each note that it keeps in one of the other modes. Another store gives a
    number of its own.
    """
    snippet: str | None = None
    level: Level | None = None
    rank_fusion: float | None = None
    """The rank score of a hybrid search, which orders its hits: the sum of
    1/(60 + rank) over both (Cormack, Clarke & Buettcher 2009), above 0 and at most 2/61. It says
    nothing of how well the best one fits. None where `score` orders them."""


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """One note or directory in a listing."""

    name: str
    uri: str
    is_dir: bool
    size: int | None = None
    """Bytes; None for a directory or when the store does not know."""


@dataclass(frozen=True, slots=True)
class MemoryFindResult(MemoryResult):
    """Hits, the closest first: by `rank_fusion` where they have it, else by `score`."""

    hits: tuple[MemoryHit, ...]


@dataclass(frozen=True, slots=True)
class MemorySource:
    """A session that a note was learned from."""

    session_id: str
    rows: tuple[int, ...] = ()
    """Indexes of the rows of the session; none where they are not known."""
    model: str | None = None
    """The model that wrote the note, where one did."""
    learned_at: float | None = None
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class MemoryReadResult(MemoryResult):
    """The content of a note."""

    uri: str
    data: str | bytes
    level: Level
    sources: tuple[MemorySource, ...] = ()
    """Sources of the note, as far as the store knows."""
    expires_at: float | None = None
    """Expiry of the note in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class MemoryListResult(MemoryResult):
    """Entries of a listing or a tree."""

    entries: tuple[MemoryEntry, ...]


@dataclass(frozen=True, slots=True)
class MemoryWriteResult(MemoryResult):
    """A note was stored."""

    uri: str
    """URI of the note, which a store may choose for one that asks for it."""
    bytes_written: int


@dataclass(frozen=True, slots=True)
class MemoryCommitResult(MemoryResult):
    """A transcript was archived."""

    task_id: str | None
    """Name of the work that goes on in the background, where there is any."""
    archived_uri: str | None
    """URI of the archived messages, for `MemoryOpRead`: JSON, or a line of JSON for each."""
    extracted_count: int
    """How many notes were made from the transcript; -1 when that is not known."""


@dataclass(frozen=True, slots=True)
class MemoryForgetResult(MemoryResult):
    """Result of forgetting."""

    uris: tuple[str, ...]
    """URIs of the removed notes and directories of transcripts, sorted."""


@dataclass(frozen=True, slots=True)
class MemoryExecutionFailure(MemoryResult):
    """The operation failed; nothing was raised."""

    kind: FailureKind
    message: str
    detail: str | None = None

    def __post_init__(self) -> None:
        known = get_args(FailureKind)
        if self.kind not in known:
            raise ValueError(f"{self.kind!r} is no kind of failure; expected one of {known}")
