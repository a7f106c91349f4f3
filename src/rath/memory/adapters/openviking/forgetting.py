"""Forgetting notes, directories, and what came from a session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from rath.memory.adapters.openviking.asking import Asking
from rath.memory.adapters.openviking.commits import check_session_id, ended_task
from rath.memory.adapters.openviking.faults import Fault
from rath.memory.adapters.openviking.listing import directory, entries_below, tree
from rath.memory.adapters.openviking.reading import content_at, without_fields
from rath.memory.adapters.openviking.wire import Answer
from rath.memory.adapters.openviking.writing import session_tag
from rath.memory.op_types import MemoryOpForget
from rath.memory.results import MemoryExecutionFailure, MemoryForgetResult, MemoryResult

__all__ = ["forget"]

_DEEP = 64
"""Levels that a directory is looked through; a guess at more than anybody makes."""

_TAGGED = ("memory://user", "memory://agent", "memory://resources")
_TAG_HEAD = session_tag("").partition("_session_")[0] + "_session_"
_DIFF = "memory_diff.json"

_TASKS = 200
"""The latest tasks of a session that are looked at; the server tells of no more at once."""


async def forget(asking: Asking, op: MemoryOpForget) -> MemoryResult:
    """Remove a note, a directory, or a session with the notes that come from it alone."""
    if op.session_id is not None:
        return await _forget_session(asking, op.session_id)
    uri = op.uri or ""
    if asking.addresses.is_scope(uri):
        asking.addresses.place(uri)
        return MemoryExecutionFailure(
            "unsupported", f"{uri!r} is a whole scope; forget the directories below it"
        )
    for address in (asking.addresses.note(uri), asking.addresses.place(uri)):
        found = await _stat(asking, address)
        if found is not None:
            return await _forget_at(asking, uri, address, op, is_dir=bool(found.get("isDir")))
    return MemoryExecutionFailure("not_found", f"there is nothing at {uri!r}")


async def _forget_at(
    asking: Asking, uri: str, address: str, op: MemoryOpForget, *, is_dir: bool
) -> MemoryResult:
    removed = [uri]
    if is_dir:
        if not op.recursive:
            return MemoryExecutionFailure(
                "unsupported", f"{uri!r} is a directory; recursive=True forgets all below it"
            )
        below = await entries_below(asking, address, depth=_DEEP)
        removed = [entry.uri for entry in below if not entry.is_dir] or removed
    await _remove(asking, address, recursive=is_dir)
    return MemoryForgetResult(tuple(sorted(removed)))


async def _stat(asking: Asking, address: str) -> Answer | None:
    try:
        return await asking.ask(lambda sdk: sdk.stat(address))
    except Fault as fault:
        if fault.failure.kind == "not_found":
            return None
        raise


async def _remove(asking: Asking, address: str, *, recursive: bool = False) -> None:
    # One that is gone meanwhile is no error to the server.
    await asking.ask(lambda sdk: sdk.rm(address, recursive=recursive, wait=True))


@dataclass(slots=True)
class _Learned:
    """What one session did to a note."""

    was_added: bool = False
    n_changes: int = 0
    content: str = ""


async def _forget_session(asking: Asking, session_id: str) -> MemoryResult:
    check_session_id(session_id)
    uri = f"memory://session/{session_id}"
    place = asking.addresses.place(uri)
    # A commit that is at work would write notes, and the session itself, after they are gone.
    tasks = await asking.ask(lambda sdk: sdk.list_tasks(resource_id=session_id, limit=_TASKS))
    for task in tasks:
        await ended_task(asking, str(task["task_id"]))
    # Tags of a note are known once it is processed.
    await asking.ask(lambda sdk: sdk.wait_processed())
    is_there = await _stat(asking, place) is not None
    learned: Mapping[str, _Learned] = {}
    if is_there:
        learned = await _learned_from(asking, place)
    own = [address for address, each in learned.items() if await _is_own(asking, address, each)]
    own += await _tagged(asking, session_tag(session_id))
    removed = [asking.addresses.public(address) or address for address in own]
    for address in own:
        await _remove(asking, address)
    if is_there:
        await _delete_session(asking, session_id, place)
        removed.append(uri)
    return MemoryForgetResult(tuple(sorted(set(removed))))


async def _delete_session(asking: Asking, session_id: str, place: str) -> None:
    try:
        await asking.ask(lambda sdk: sdk.delete_session(session_id))
    except Fault as fault:
        if fault.failure.kind != "not_found":
            raise
    # What a late commit left of it is no session to the server any more.
    if await _stat(asking, place) is not None:
        await _remove(asking, place, recursive=True)


async def _learned_from(asking: Asking, place: str) -> Mapping[str, _Learned]:
    """Return the notes that a session made or changed, as its archives tell."""
    history = f"{place}/history"
    if await _stat(asking, history) is None:
        return {}
    archives = await directory(asking, history)
    learned: dict[str, _Learned] = {}
    for archive in sorted(archives, key=lambda each: str(each["uri"])):
        diff = await content_at(asking, f"{archive['uri']}/{_DIFF}")
        if diff is not None:
            _add(learned, json.loads(diff))
    return learned


def _add(learned: dict[str, _Learned], diff: Mapping[str, Any]) -> None:
    operations: Mapping[str, Any] = diff.get("operations") or {}
    for name in ("adds", "updates"):
        for change in cast("list[Mapping[str, Any]]", operations.get(name) or []):
            note = learned.setdefault(str(change["uri"]), _Learned())
            note.was_added = note.was_added or name == "adds"
            note.n_changes += 1
            note.content = str(change.get("after") or change.get("content") or "")


async def _is_own(asking: Asking, address: str, learned: _Learned) -> bool:
    """Tell whether a note is as this session alone made it: nobody else changed it since."""
    if not learned.was_added:
        return False
    try:
        data = await asking.ask(lambda sdk: sdk.download_bytes(address))
    except Fault as fault:
        if fault.failure.kind == "not_found":
            return False
        raise
    content = without_fields(data)
    version = _fields(data[len(content) :]).get("version")
    return content.decode(errors="replace").strip() == learned.content.strip() and (
        version == learned.n_changes
    )


def _fields(footer: bytes) -> Mapping[str, Any]:
    start, end = footer.find(b"{"), footer.rfind(b"}")
    if start < 0:
        return {}
    try:
        return cast("Mapping[str, Any]", json.loads(footer[start : end + 1]))
    except ValueError:
        return {}


async def _tagged(asking: Asking, tag: str) -> list[str]:
    """Return the notes that were written with the tag of this session and of no other."""

    def tags_of(raw: Answer) -> list[str]:
        return [each for each in raw.get("tags") or () if each.startswith(_TAG_HEAD)]

    found: list[str] = []
    for scope in _TAGGED:
        root = asking.addresses.place(scope)
        raw = await tree(asking, root, depth=_DEEP, tags=[tag])
        found += [str(each["uri"]) for each in raw if tags_of(each) == [tag]]
    return found
