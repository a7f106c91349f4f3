"""Writing notes."""

from __future__ import annotations

from hashlib import sha256

from rath._core.text import valid_unicode
from rath.memory.adapters.openviking.addresses import is_of_memories
from rath.memory.adapters.openviking.asking import Asking
from rath.memory.adapters.openviking.encode import write_options
from rath.memory.adapters.openviking.faults import Fault
from rath.memory.adapters.openviking.reading import content_at
from rath.memory.adapters.openviking.wire import Answer
from rath.memory.notes import EXPIRES_AT, SESSION_ID, places
from rath.memory.op_types import MemoryOpWrite
from rath.memory.results import MemoryExecutionFailure, MemoryResult, MemoryWriteResult

__all__ = ["session_tag", "write"]

_DONE = ("complete", "skipped")
_MODES = ("replace", "write")


async def write(asking: Asking, op: MemoryOpWrite) -> MemoryResult:
    """Store a note, new or over an older one; with `wait` it is found from then on."""
    metadata = op.metadata or {}
    if op.mode not in _MODES:
        return MemoryExecutionFailure(
            "unsupported", f"there is no mode {op.mode!r} of writing; use {' or '.join(_MODES)}"
        )
    if EXPIRES_AT in metadata:
        return MemoryExecutionFailure(
            "unsupported",
            "OpenViking keeps no time of expiry, so the note would stay for ever; write it without "
            "one and forget it yourself, or use the local memory",
        )
    data = valid_unicode(op.content).encode()
    uri = await _free_place(asking, op, data)
    session_id = metadata.get(SESSION_ID)
    options = write_options(None if session_id is None else session_tag(session_id))
    address = asking.addresses.note(uri)
    text = data.decode()
    # Of a new memory the server takes white space off both ends, of one that is there not.
    is_cut = is_of_memories(address) and text != text.strip()
    if is_cut and await content_at(asking, address) is None:
        await _put(asking, address, text, wait=False, options=options)
    answer = await _put(asking, address, text, wait=op.wait, options=options)
    if op.wait:
        _check_processed(answer, op.uri)
    return MemoryWriteResult(uri, _size(answer, len(data)))


async def _put(
    asking: Asking, address: str, text: str, *, wait: bool, options: Answer | None
) -> Answer:
    async def ask(mode: str) -> Answer:
        return await asking.ask(
            lambda sdk: sdk.write(address, text, mode=mode, wait=wait, options=options)
        )

    # "create" takes the place of an older file without a word, which is what is wanted here;
    # "replace" takes white space off both ends of a memory.
    try:
        return await ask("create")
    except Fault as fault:
        if fault.failure.detail != "AlreadyExistsError":
            raise
    return await ask("replace")


def session_tag(session_id: str) -> str:
    """Return the tag of notes that come from a session; the server folds the case of tags."""
    return f"rath_session_{sha256(session_id.encode(errors='replace')).hexdigest()[:32]}=1"


async def _free_place(asking: Asking, op: MemoryOpWrite, data: bytes) -> str:
    """Return the first place that is free or holds the same note.

    Another process may take it in between; the server knows no condition for a write.
    """
    *first, last = places(op)
    for uri in first:
        found = await content_at(asking, asking.addresses.note(uri))
        if found is None or found == data:
            return uri
    return last


def _check_processed(answer: Answer, uri: str) -> None:
    """Refuse to say that a note is found when it is not."""
    for name in ("semantic_status", "vector_status"):
        status = answer.get(name, "complete")
        if status not in _DONE:
            raise Fault(
                "extraction_failed",
                f"{uri!r} is stored, and not found yet: the memory server says {status!r} of its "
                f"{name.partition('_')[0]} processing",
                str(status),
            )


def _size(answer: Answer, size: int) -> int:
    told = answer.get("written_bytes")
    # Of a memory the server counts the fields too that it adds.
    return told if isinstance(told, int) and answer.get("context_type") != "memory" else size
