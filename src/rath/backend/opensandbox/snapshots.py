"""Snapshots of the server that stand for frozen files: taken once, deleted when nobody has them."""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from rath._async.runtime import runtime
from rath.backend.opensandbox.defaults import ROOT, SNAPSHOT_SECONDS, SNAPSHOT_WAITS
from rath.backend.opensandbox.faults import AnswerLost, RemoteFault
from rath.backend.opensandbox.processes import Line, run_line
from rath.backend.opensandbox.remote import Gone, RemoteSandbox, gone_message

if TYPE_CHECKING:
    from rath.backend.opensandbox.client import Client

_log = logging.getLogger("rath.backend")

_FINAL = ("Failed", "Deleting")
"""States that never become `Ready`; those that are not known may."""

_MOUNTED = f"cut -d ' ' -f 5 /proc/self/mountinfo | grep -q '^{ROOT}\\(/\\|$\\)'"
_MOUNT_SECONDS = 10.0


class SnapshotFailed(Exception):
    """The files of a sandbox could not be kept; the text says why."""


class Kept:
    """Something on the server that ends when its owner is collected, at the latest at exit.

    Args:
        owner: Who has it; `end` must not refer to that.
        end: Ends it.
        what: What it is called in messages.
    """

    def __init__(self, owner: object, end: Callable[[], Awaitable[None]], what: str) -> None:
        self._end = end
        self._what = what
        self._pid = os.getpid()
        runtime().keep_open(self)
        # At exit the runtime closes what is open; a finalizer there would only race with it.
        weakref.finalize(owner, self._drop).atexit = False

    async def aclose(self) -> None:
        """End it; where the server cannot do that, a warning is logged."""
        runtime().forget(self)
        try:
            await self._end()
        except RemoteFault as exc:
            _log.warning("%s could not be removed from the server: %s", self._what, exc)

    def _drop(self) -> None:
        # In a forked child it belongs to the parent.
        if self._pid == os.getpid():
            runtime().close_soon(self)


class Snapshot:
    """A snapshot on the server, which is deleted there once nobody holds this object."""

    def __init__(self, client: Client, snapshot_id: str) -> None:
        self.id = snapshot_id
        delete = partial(client.delete_snapshot, snapshot_id)
        Kept(self, delete, f"the snapshot {snapshot_id}, which nobody needs any more,")


async def take_snapshot(sandbox: RemoteSandbox) -> Snapshot:
    """Return a snapshot of a sandbox, once it can be opened; nothing may change meanwhile.

    Raises:
        SnapshotFailed: There is none, and the text says why.
    """
    try:
        if sandbox.is_attached:
            await sandbox.use(_require_unmounted)
        return await sandbox.use(_taken)
    except Gone as exc:
        raise SnapshotFailed(gone_message(sandbox)) from exc
    except RemoteFault as exc:
        raise SnapshotFailed(f"the server made no snapshot of {sandbox.handle}: {exc}") from exc


async def _taken(client: Client) -> Snapshot:
    snapshot = Snapshot(client, await _created(client))
    try:
        async with asyncio.timeout(SNAPSHOT_SECONDS):
            await _ready(client, snapshot.id)
    except TimeoutError as exc:
        raise SnapshotFailed(
            f"the snapshot {snapshot.id} was not ready within {SNAPSHOT_SECONDS:g} s"
        ) from exc
    return snapshot


async def _created(client: Client) -> str:
    """Ask for a snapshot once; one whose answer was lost is looked for by its name."""
    name = f"rath-{uuid4().hex}"
    try:
        return await client.snapshot(name)
    except AnswerLost:
        found = await client.snapshots_named(name)
        if not found:
            raise
        return found[0]


async def _ready(client: Client, snapshot_id: str) -> None:
    """Wait until the server says that it is ready; the API tells only who asks."""
    n_asked = 0
    while True:
        state, said = await client.snapshot_state(snapshot_id)
        if state == "Ready":
            return
        if state in _FINAL:
            raise SnapshotFailed(f"the snapshot {snapshot_id} is {state.lower()}: {said}")
        await asyncio.sleep(SNAPSHOT_WAITS[min(n_asked, len(SNAPSHOT_WAITS) - 1)])
        n_asked += 1


async def _require_unmounted(client: Client) -> None:
    """Refuse a workspace that is mounted: a snapshot would not have its files."""
    ran = await run_line(client, Line(_MOUNTED, _MOUNT_SECONDS, "/"))
    if ran.answer is not None and ran.answer.exit_code == 0:
        raise SnapshotFailed(
            f"{ROOT} of {client.id} is mounted, and what is mounted belongs to no snapshot; use a "
            "sandbox without working_dir"
        )
