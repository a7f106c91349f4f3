"""Listings of directories and trees."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from rath.memory.adapters.openviking.asking import Asking
from rath.memory.adapters.openviking.wire import Answer, Sdk
from rath.memory.op_types import MemoryOpList, MemoryOpTree
from rath.memory.results import MemoryEntry, MemoryListResult, MemoryResult
from rath.memory.uri import MEMORY_SCOPES, MEMORY_URI_PREFIX

__all__ = ["PAGE", "directory", "entries_below", "list_entries", "list_tree", "tree"]

PAGE = 1000
"""Entries that are asked for at once; what the SDK asks for by default, and the server gives."""


async def list_entries(asking: Asking, op: MemoryOpList) -> MemoryResult:
    """List what stands directly below a URI, sorted by name."""
    if asking.addresses.is_root(op.uri):
        return MemoryListResult(tuple(_scopes()))
    raw = await directory(asking, asking.addresses.place(op.uri))
    return MemoryListResult(_sorted(asking, raw))


async def list_tree(asking: Asking, op: MemoryOpTree) -> MemoryResult:
    """List what stands below a URI, parents before their children."""
    if not asking.addresses.is_root(op.uri):
        below = await entries_below(asking, asking.addresses.place(op.uri), depth=op.depth)
        return MemoryListResult(below)
    found: list[MemoryEntry] = []
    for scope in _scopes():
        found.append(scope)
        if op.depth > 0:
            address = asking.addresses.place(scope.uri)
            found += await entries_below(asking, address, depth=op.depth - 1)
    # The sessions of a user lie within what the server keeps of the user.
    return MemoryListResult(tuple(dict.fromkeys(found)))


async def entries_below(asking: Asking, address: str, *, depth: int) -> tuple[MemoryEntry, ...]:
    """Return what stands below an address of the server, parents before their children.

    Args:
        asking: The operation.
        address: A directory of the server.
        depth: 0 for the direct children.
    """
    return _sorted(asking, await tree(asking, address, depth=depth))


async def directory(asking: Asking, address: str) -> list[Answer]:
    """Return what the server tells of the entries of a directory."""

    def page(offset: int, sdk: Sdk) -> Awaitable[Answer]:
        return sdk.ls_page(address, node_limit=PAGE, offset=offset, limit=PAGE)

    return await _pages(asking, page)


async def tree(
    asking: Asking, address: str, *, depth: int, tags: list[str] | None = None
) -> list[Answer]:
    """Return what the server tells of everything below a directory.

    Args:
        asking: The operation.
        address: A directory of the server.
        depth: 0 for the direct children.
        tags: Leaves out what does not bear them.
    """

    def page(offset: int, sdk: Sdk) -> Awaitable[Answer]:
        return sdk.tree_page(
            address,
            node_limit=PAGE,
            level_limit=depth + 1,
            tags=tags,
            include_tags=tags is not None,
            offset=offset,
            limit=PAGE,
        )

    return await _pages(asking, page)


async def _pages(asking: Asking, page: Callable[[int, Sdk], Awaitable[Answer]]) -> list[Answer]:
    found: list[Answer] = []
    while True:
        answer = await asking.ask(partial(page, len(found)))
        found += answer["result"]
        if not answer["has_more"] or not answer["result"]:
            return found


def _sorted(asking: Asking, raw: list[Answer]) -> tuple[MemoryEntry, ...]:
    entries = [entry for each in raw if (entry := _entry(asking, each)) is not None]
    return tuple(sorted(entries, key=lambda entry: entry.uri.split("/")))


def _entry(asking: Asking, raw: Answer) -> MemoryEntry | None:
    is_dir = bool(raw.get("isDir"))
    uri = asking.addresses.public(str(raw["uri"]), is_dir=is_dir)
    if uri is None:
        return None
    size = raw.get("size")
    known = size if isinstance(size, int) and not is_dir else None
    return MemoryEntry(uri.rpartition("/")[2], uri, is_dir, known)


def _scopes() -> Iterator[MemoryEntry]:
    for scope in sorted(MEMORY_SCOPES):
        yield MemoryEntry(scope, f"{MEMORY_URI_PREFIX}{scope}", is_dir=True)
