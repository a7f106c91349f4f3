"""Reading notes and files."""

from __future__ import annotations

import re

from rath.memory.adapters.openviking.addresses import is_of_memories
from rath.memory.adapters.openviking.asking import Asking
from rath.memory.adapters.openviking.faults import Fault
from rath.memory.op_types import MemoryOpRead
from rath.memory.results import MemoryExecutionFailure, MemoryReadResult, MemoryResult

__all__ = ["content_at", "content_of", "read", "without_fields"]

_ARCHIVE = re.compile(r".+/history/archive_\d+")
_MESSAGES = "messages.jsonl"
"""The file of an archive that holds what was said, a message in each line."""

_FIELDS = b"<!-- MEMORY_FIELDS\n"
_FIELDS_END = b"\n-->"


async def read(asking: Asking, op: MemoryOpRead) -> MemoryResult:
    """Read a note, the file of that very name, or the messages of an archive.

    Any other directory is read only in short.
    """
    if asking.addresses.is_root(op.uri):
        return MemoryExecutionFailure("invalid_uri", f"{op.uri!r} is no note; list it")
    if op.level != "detail":
        return MemoryReadResult(op.uri, await _in_short(asking, op), op.level)
    data = await _content(asking, op.uri)
    if op.encoding is None:
        return MemoryReadResult(op.uri, data, op.level)
    try:
        return MemoryReadResult(op.uri, data.decode(op.encoding), op.level)
    except UnicodeDecodeError as exc:
        return MemoryExecutionFailure(
            "internal", f"{op.uri!r} is not {op.encoding}: {exc}; encoding=None gives its bytes"
        )
    except LookupError:
        return MemoryExecutionFailure("unsupported", f"there is no encoding {op.encoding!r}")


async def content_at(asking: Asking, address: str) -> bytes | None:
    """Return what a file holds, without the fields of the server; None where there is none."""
    try:
        return await content_of(asking, address)
    except Fault as fault:
        if fault.failure.kind == "not_found":
            return None
        raise


async def content_of(asking: Asking, address: str) -> bytes:
    """Return what a file holds, without the fields of the server."""
    data = await asking.ask(lambda sdk: sdk.download_bytes(address))
    return without_fields(data) if is_of_memories(address) else data


def without_fields(data: bytes) -> bytes:
    """Return the content of a memory, exactly as it was written.

    The server adds an empty line and its fields, and its own way of reading takes white space off.
    """
    start = data.rfind(_FIELDS)
    if start < 0 or not data.endswith(_FIELDS_END):
        return data
    return data[:start].removesuffix(b"\n\n")


async def _content(asking: Asking, uri: str) -> bytes:
    found = await content_at(asking, asking.addresses.note(uri))
    if found is not None:
        return found
    address = asking.addresses.place(uri)
    try:
        return await content_of(asking, address)
    except Fault as fault:
        if fault.failure.kind != "invalid_uri":
            raise
        if _ARCHIVE.fullmatch(address):
            return await content_of(asking, f"{address}/{_MESSAGES}")
        message = f"there is no note at {uri!r}, but a directory; list it, or read it in short"
        raise Fault("not_found", message, fault.failure.detail) from fault


async def _in_short(asking: Asking, op: MemoryOpRead) -> str:
    """Return what the server says of a note in short, or of a directory."""

    async def ask(address: str) -> str:
        return await asking.ask(
            lambda sdk: sdk.abstract(address) if op.level == "abstract" else sdk.overview(address)
        )

    if not asking.addresses.is_scope(op.uri):
        try:
            return await ask(asking.addresses.note(op.uri))
        except Fault as fault:
            if fault.failure.kind != "not_found":
                raise
    return await ask(asking.addresses.place(op.uri))
