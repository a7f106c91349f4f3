"""One operation of each type that a memory supports, at a place of one's choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rath.conformance.memory.subject import Place
from rath.memory.op_types import (
    MemoryOp,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpForget,
    MemoryOpList,
    MemoryOpRead,
    MemoryOpResource,
    MemoryOpSearch,
    MemoryOpTree,
    MemoryOpWrite,
)

__all__ = ["samples", "samples_at"]

_AT: Mapping[type[MemoryOp], Callable[[str], MemoryOp]] = {
    MemoryOpFind: lambda uri: MemoryOpFind("heron", target_uri=uri),
    MemoryOpSearch: lambda uri: MemoryOpSearch("heron", target_uri=uri),
    MemoryOpRead: MemoryOpRead,
    MemoryOpList: MemoryOpList,
    MemoryOpTree: MemoryOpTree,
    MemoryOpWrite: lambda uri: MemoryOpWrite(uri, "heron"),
    MemoryOpForget: lambda uri: MemoryOpForget(uri, recursive=True),
}
"""Every operation that is given a place, as it is asked there; those that change come last."""


def samples_at(place: Place, uri: str) -> list[MemoryOp]:
    """Return each supported operation that is given a place, asked at `uri`."""
    ops = place.backend.supported_ops()
    return [make(uri) for kind, make in _AT.items() if kind in ops]


def samples(place: Place) -> list[MemoryOp]:
    """Return one operation of each supported type, the harmless ones first."""
    rest: list[MemoryOp] = [
        MemoryOpCommit("conformance", ({"role": "user", "content": "heron"},)),
        MemoryOpResource("no-such-file", place.uri),
    ]
    ops = place.backend.supported_ops()
    return [*samples_at(place, f"{place.uri}/a"), *(op for op in rest if type(op) in ops)]
