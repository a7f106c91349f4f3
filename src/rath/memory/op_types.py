"""The operations of a memory store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal

from rath._core.dataclasses import dataclass
from rath.memory.uri import memory_uri_prefix

__all__ = [
    "MemoryOp",
    "MemoryOpCommit",
    "MemoryOpFind",
    "MemoryOpForget",
    "MemoryOpList",
    "MemoryOpRead",
    "MemoryOpResource",
    "MemoryOpSearch",
    "MemoryOpTree",
    "MemoryOpWrite",
]

Level = Literal["abstract", "overview", "detail"]
"""How much of a note is wanted, from a line to all of it."""


class MemoryOp:
    """Base of the operations; every one is a frozen value."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class MemoryOpWrite(MemoryOp):
    """Store a note."""

    uri: str
    content: str
    mode: str = "replace"
    """"replace" or "write"; both store the whole content, over an older one if there is any."""
    wait: bool = False
    """Wait until the store has finished its own processing of the note, and it is on disk."""
    timeout_seconds: float | None = None
    metadata: Mapping[str, str] | None = field(default=None, hash=False)
    """Hints; a store ignores those that it does not know. See `rath.memory.notes`."""


@dataclass(frozen=True, slots=True)
class MemoryOpRead(MemoryOp):
    """Read a note."""

    uri: str
    level: Level = "detail"
    encoding: str | None = "utf-8"
    """Encoding of the text that is wanted; None gives the bytes."""


@dataclass(frozen=True, slots=True)
class MemoryOpList(MemoryOp):
    """List what stands directly below a URI."""

    uri: str
    """A directory or a root; a slash at its end makes no difference."""


@dataclass(frozen=True, slots=True)
class MemoryOpTree(MemoryOp):
    """List what stands below a URI, parents before their children."""

    uri: str
    """A directory or a root; a slash at its end makes no difference."""
    depth: int = 2
    """0 lists the direct children; each number more goes one level deeper."""


@dataclass(frozen=True, slots=True)
class MemoryOpFind(MemoryOp):
    """Find the notes that fit a text best."""

    query: str
    target_uri: str | None = None
    """URI to search below; the whole store by default. A slash at its end makes no difference."""
    top_k: int = 8
    """How many hits at most."""


@dataclass(frozen=True, slots=True)
class MemoryOpSearch(MemoryOp):
    """Find notes by what a text means, where the store can; else like `MemoryOpFind`."""

    query: str
    session_id: str | None = None
    target_uri: str | None = None
    top_k: int = 8


@dataclass(frozen=True, slots=True)
class MemoryOpResource(MemoryOp):
    """Take a file or web page into the store."""

    source: str
    """A path, a `file://` URI or an http(s) address."""
    target_uri: str | None = None
    """Directory that gets it; `memory://resources` by default."""
    reason: str = ""
    instruction: str = ""
    wait: bool = True
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryOpCommit(MemoryOp):
    """Archive the transcript of a session."""

    session_id: str
    messages: Sequence[Any] = field(hash=False)
    """Mappings with `role` and `content`, or objects with such attributes."""
    used_uris: Sequence[str] = ()
    """Notes that the model was shown in that session."""
    wait: bool = False
    """Wait until the store has learned from the transcript what it can."""
    timeout_seconds: float | None = None
    rows: Sequence[int] = ()
    """For each message, the index of its row in the session; none where that is not known."""
    run: str | None = None
    """The run whose transcript this is. Of one run the first commit counts: a later one, as when a
    program goes on that has ended in the middle, changes nothing and gets the archive that is
    there. None commits in any case."""


@dataclass(frozen=True, slots=True)
class MemoryOpForget(MemoryOp):
    """Remove what is stored, so that nothing of it is left in the store.

    Give either `uri` or `session_id`.

    Raises:
        ValueError: Neither or both were given.
    """

    uri: str | None = None
    """A note; or a directory with all below it, where `recursive` is set."""
    session_id: str | None = None
    """Erases the transcripts of that session, and the notes that come from it alone."""
    recursive: bool = False

    def __post_init__(self) -> None:
        if (self.uri is None) == (self.session_id is None):
            raise ValueError(
                "expected either the uri of what is to be forgotten or a session_id, got "
                f"uri={self.uri!r} and session_id={self.session_id!r}"
            )


def with_plain_directory(op: MemoryOp) -> MemoryOp:
    """Return an operation on a directory without the slash that may end the URI of that."""
    match op:
        case MemoryOpList(uri) | MemoryOpTree(uri) if uri != (plain := _without_slash(uri)):
            return replace(op, uri=plain)
        case (
            MemoryOpFind(target_uri=str(uri))
            | MemoryOpSearch(target_uri=str(uri))
            | MemoryOpResource(target_uri=str(uri))
        ) if uri != (plain := _without_slash(uri)):
            return replace(op, target_uri=plain)
        case _:
            return op


def _without_slash(uri: str) -> str:
    prefix = memory_uri_prefix(uri)
    names_something = prefix is not None and len(uri) > len(prefix) + 1
    return uri.removesuffix("/") if names_something else uri
