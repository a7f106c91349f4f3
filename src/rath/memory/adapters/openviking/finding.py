"""Finding notes: by a text, or by what a text means in a session."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rath._core.text import valid_unicode
from rath.memory.adapters.openviking.asking import Asking
from rath.memory.adapters.openviking.wire import Answer
from rath.memory.op_types import Level, MemoryOpFind, MemoryOpSearch
from rath.memory.results import MemoryFindResult, MemoryHit, MemoryResult

__all__ = ["find", "search"]

_KINDS = ("memories", "resources", "skills")
_LEVELS: Mapping[object, Level] = MappingProxyType({0: "abstract", 1: "overview", 2: "detail"})


async def find(asking: Asking, op: MemoryOpFind) -> MemoryResult:
    """Find by vectors."""
    if not _can_match(op):
        return MemoryFindResult(())
    query, target = valid_unicode(op.query), _target(asking, op)
    answer = await asking.ask(lambda sdk: sdk.find(query, target_uri=target, limit=op.top_k))
    return _result(asking, answer, op.top_k)


async def search(asking: Asking, op: MemoryOpSearch) -> MemoryResult:
    """Find by what the server thinks that the query, in its session, is after."""
    if not _can_match(op):
        return MemoryFindResult(())
    query, target = valid_unicode(op.query), _target(asking, op)
    answer = await asking.ask(
        lambda sdk: sdk.search(query, session_id=op.session_id, target_uri=target, limit=op.top_k)
    )
    return _result(asking, answer, op.top_k)


def _can_match(op: MemoryOpFind | MemoryOpSearch) -> bool:
    # The server calls both an error.
    return bool(op.query.strip()) and op.top_k > 0


def _target(asking: Asking, op: MemoryOpFind | MemoryOpSearch) -> str:
    if op.target_uri is None or asking.addresses.is_root(op.target_uri):
        return ""
    return asking.addresses.place(op.target_uri)


def _result(asking: Asking, answer: Answer, top_k: int) -> MemoryFindResult:
    raw = [each for kind in _KINDS for each in answer.get(kind) or ()]
    hits = [hit for each in raw if (hit := _hit(asking, each)) is not None]
    hits.sort(key=lambda hit: -hit.score)
    return MemoryFindResult(tuple(hits[:top_k]))


def _hit(asking: Asking, raw: Answer) -> MemoryHit | None:
    uri = asking.addresses.public(str(raw["uri"]))
    if uri is None:
        return None  # of another user
    snippet = raw.get("abstract") or raw.get("overview") or None
    return MemoryHit(uri, float(raw.get("score") or 0.0), snippet, _LEVELS.get(raw.get("level")))
