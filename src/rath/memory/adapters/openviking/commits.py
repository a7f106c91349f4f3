"""Committing transcripts, from which the server learns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rath._core.text import valid_unicode
from rath.memory.adapters.openviking.addresses import BadUri
from rath.memory.adapters.openviking.asking import Asking
from rath.memory.adapters.openviking.encode import encode_messages
from rath.memory.adapters.openviking.faults import Fault
from rath.memory.adapters.openviking.listing import directory
from rath.memory.adapters.openviking.names import to_wire_name
from rath.memory.adapters.openviking.wire import Answer
from rath.memory.op_types import MemoryOpCommit
from rath.memory.results import MemoryCommitResult, MemoryResult

__all__ = ["TASK_WAITS", "check_session_id", "commit", "ended_task"]

TASK_WAITS = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Waits between questions whether a task has ended, in seconds; the last one repeats. The server
has no other way to tell, and a commit takes ten seconds or more."""

_BATCH = 100
"""Messages in one request; the server takes no more."""

_ENDED = frozenset({"completed", "failed", "cancelled", "canceled"})


async def commit(asking: Asking, op: MemoryOpCommit) -> MemoryResult:
    """Archive a transcript; with `wait`, until what the server learns from it can be found."""
    check_session_id(op.session_id)
    messages = encode_messages(op, asking.addresses)
    known = await _known_or_created(asking, op)
    if known is not None:
        return MemoryCommitResult(None, known, -1)
    for start in range(0, len(messages), _BATCH):
        await _add(asking, op.session_id, messages[start : start + _BATCH])
    answer = await asking.ask(lambda sdk: sdk.commit_session(op.session_id))
    task_id = cast("str | None", answer.get("task_id"))
    archive = cast("str | None", answer.get("archive_uri"))
    archived = None if archive is None else asking.addresses.public(archive, is_dir=True)
    if task_id is None:  # there was nothing to archive
        return MemoryCommitResult(None, archived, 0)
    if not op.wait:
        return MemoryCommitResult(task_id, archived, -1)
    try:
        async with asyncio.timeout(asking.seconds_left - _MARGIN):
            n_learned = await _learned(asking, task_id)
    except TimeoutError as exc:
        raise Fault(
            "timeout",
            f"the transcript is archived as {archived!r}; what the memory server learns from it "
            f"was not ready in time: task {task_id!r} goes on",
            "TimeoutError",
        ) from exc
    except Fault as fault:
        message = f"the transcript is archived as {archived!r}, but {fault}"
        raise Fault(fault.failure.kind, message, fault.failure.detail) from fault
    return MemoryCommitResult(task_id, archived, n_learned)


async def _known_or_created(asking: Asking, op: MemoryOpCommit) -> str | None:
    """Make the session of a commit; return the archive of a run that was committed before."""
    try:
        await asking.ask(lambda sdk: sdk.create_session(op.session_id))
        return None
    except Fault as fault:
        if fault.failure.detail != "AlreadyExistsError":
            raise
    if op.run is None:
        return None
    archive = await _last_archive(asking, op.session_id)
    if archive is None:
        # Whoever began was cut off: what it sent of the transcript would stand there twice.
        await asking.ask(lambda sdk: sdk.delete_session(op.session_id))
        await asking.ask(lambda sdk: sdk.create_session(op.session_id))
    return archive


async def _last_archive(asking: Asking, session_id: str) -> str | None:
    history = f"{asking.addresses.place(f'memory://session/{session_id}')}/history"
    try:
        archives = await directory(asking, history)
    except Fault as fault:
        if fault.failure.kind != "not_found":
            raise
        return None
    last = max((str(each["uri"]) for each in archives), default=None)
    return None if last is None else asking.addresses.public(last, is_dir=True)


_MARGIN = 0.01
"""How much earlier waiting ends than the operation, so that it can tell how far that came."""


def check_session_id(session_id: str) -> None:
    """Refuse what cannot be one segment of an address.

    Raises:
        BadUri: It is empty, `.` or `..`, or holds a slash or what the server would change.
    """
    plain = valid_unicode(session_id)
    if plain in {"", ".", ".."} or "/" in plain or to_wire_name(plain) != session_id:
        raise BadUri(f"{session_id!r} cannot name a session; expected one plain name")


async def ended_task(asking: Asking, task_id: str) -> Answer | None:
    """Wait until a task has ended and return what is told of it; None for one not known."""
    n_asked = 0
    while True:
        task = await asking.ask(lambda sdk: sdk.get_task(task_id))
        if task is None or task.get("status") in _ENDED:
            return task
        await asyncio.sleep(TASK_WAITS[min(n_asked, len(TASK_WAITS) - 1)])
        n_asked += 1


async def _add(asking: Asking, session_id: str, messages: Sequence[Answer]) -> None:
    await asking.ask(lambda sdk: sdk.batch_add_messages(session_id, messages))


async def _learned(asking: Asking, task_id: str) -> int:
    task = await ended_task(asking, task_id)
    if task is None:
        message = f"the memory server does not know its task {task_id!r} any more"
        raise Fault("extraction_failed", message)
    if task["status"] != "completed":
        message = f"learning from it {task['status']}: {task.get('error') or 'no reason was given'}"
        raise Fault("extraction_failed", message, str(task["status"]))
    result: Mapping[str, Any] = task.get("result") or {}
    # The task ends before the vectors of its notes are made.
    await asking.ask(lambda sdk: sdk.wait_processed())
    counts: Mapping[str, object] = result.get("memories_extracted") or {}
    return sum(n for name, n in counts.items() if isinstance(n, int) and name != "total")
