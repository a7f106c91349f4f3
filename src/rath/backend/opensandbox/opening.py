"""New sandboxes: one for each request, and none left behind."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from rath._async.runtime import Running, runtime
from rath.backend.abc import BackendSandboxSpec
from rath.backend.opensandbox.connection import Connection, is_installed, strict_workspace_bind
from rath.backend.opensandbox.defaults import ENTRYPOINT, IMAGE, LIFETIME, ROOT
from rath.backend.opensandbox.faults import AnswerLost, Refused, RemoteFault
from rath.backend.opensandbox.volumes import bind_workspace_volumes_from_spec
from rath.backend.opensandbox.workspace_files import apply_changes
from rath.backend.snapshots import NewFile
from rath.errors import BackendError, MissingExtra

if TYPE_CHECKING:
    from rath.backend.opensandbox.client import Client, Wanted

MARK = "rath-opening"
"""Metadata by which the sandbox of a request is found whose answer was lost."""

CPU = "1"
"""What the SDK asks for unless it is told otherwise; repeated where memory is limited."""

_log = logging.getLogger("rath.backend")


def load_client() -> Any:
    """Import the SDK and return the module that uses it; takes more than half a second at first.

    Raises:
        MissingExtra: It is not installed.
    """
    if not is_installed():
        raise MissingExtra("opensandbox", "the opensandbox backend")
    from rath.backend.opensandbox import client

    return client


async def open_new(
    connection: Connection,
    spec: BackendSandboxSpec,
    *,
    snapshot_id: str | None = None,
    changes: Mapping[str, NewFile | None] | None = None,
) -> Client:
    """Open a sandbox with its workspace.

    Args:
        connection: The server.
        spec: What to open.
        snapshot_id: What it begins with, in the place of an image.
        changes: What is different in its workspace, by path; None where a file is taken away.

    Raises:
        BackendError: It could not be opened; nothing is left on the server, or the text says so.
        MissingExtra: The SDK is not installed.
    """
    module = await runtime().call_in_worker(load_client)
    try:
        volumes = await runtime().call_in_worker(
            partial(bind_workspace_volumes_from_spec, spec, ROOT)
        )
    except OSError as exc:
        raise BackendError(
            f"the directory {spec.working_dir!r} cannot be made: {exc.strerror or exc}"
        ) from exc
    wanted = _wanted(module, spec, volumes, snapshot_id)
    try:
        return await _open(module, connection, wanted, changes or {})
    except RemoteFault as exc:
        raise BackendError(
            f"no sandbox could be opened on {connection.domain!r} (named by {connection.origin}): "
            f"{exc}"
        ) from exc


def _wanted(
    module: Any, spec: BackendSandboxSpec, volumes: Sequence[Any] | None, snapshot_id: str | None
) -> Wanted:
    limits = spec.limits
    memory = limits.memory_bytes if limits is not None else None
    wanted: Wanted = module.Wanted(
        image=None if snapshot_id is not None else spec.image or IMAGE,
        snapshot_id=snapshot_id,
        entrypoint=tuple(spec.entrypoint or ENTRYPOINT),
        env=dict(spec.env or {}),
        lifetime=spec.timeout or LIFETIME,
        metadata={},
        resources=None if memory is None else {"cpu": CPU, "memory": _mebibytes(memory)},
        volumes=volumes,
    )
    return wanted


def _mebibytes(n_bytes: int) -> str:
    return f"{math.ceil(n_bytes / (1 << 20))}Mi"


async def _open(
    module: Any, connection: Connection, wanted: Wanted, changes: Mapping[str, NewFile | None]
) -> Client:
    try:
        client = await _created(module, connection, wanted)
    except Refused as exc:
        if wanted.volumes is None or not exc.is_about_the_bind or strict_workspace_bind():
            raise
        _log.warning(
            "the opensandbox server does not mount the working_dir, so the workspace of the "
            "sandbox begins empty and stays apart from it: %s. Set "
            "RATH_OPENSANDBOX_STRICT_WORKSPACE_BIND=1 to make that an error",
            exc,
        )
        wanted = replace(wanted, volumes=None)
        client = await _created(module, connection, wanted)
    if wanted.volumes is None:
        await _make_workspace(client, changes)
    return client


async def _make_workspace(client: Client, changes: Mapping[str, NewFile | None]) -> None:
    unwanted = _Unwanted(client)
    try:
        await client.make_directory(ROOT)
        await apply_changes(client, changes)
    except RemoteFault:
        await unwanted.aclose()
        raise
    except asyncio.CancelledError:
        runtime().close_soon(unwanted)
        raise


async def _created(module: Any, connection: Connection, wanted: Wanted) -> Client:
    """Create a sandbox by one request that is never sent twice.

    It runs on when this is cancelled, until the server has answered, and what it opened is ended
    then: a sandbox whose id nobody heard could not be.
    """
    mark = uuid4().hex
    marked = replace(wanted, metadata={**wanted.metadata, MARK: mark})
    creating = runtime().submit(
        partial(_create, module, connection, marked, mark), label="opening an opensandbox sandbox"
    )
    try:
        client: Client = await asyncio.wrap_future(creating.future)
    except asyncio.CancelledError:
        creating.is_given_up = True
        creating.future.add_done_callback(partial(_end_unwanted, creating))
        raise
    return client


async def _create(module: Any, connection: Connection, wanted: Wanted, mark: str) -> Client:
    try:
        client: Client = await module.Client.create(connection, wanted)
    except AnswerLost as lost:
        found: Sequence[str] = await _marked(module, connection, mark, lost)
        if not found:
            raise
        client = await module.Client.connect(connection, found[0])
    return client


async def _marked(
    module: Any, connection: Connection, mark: str, lost: AnswerLost
) -> Sequence[str]:
    """Return the sandboxes of a request whose answer was lost: none, or one."""
    try:
        found: Sequence[str] = await module.ids_marked(connection, MARK, mark)
    except RemoteFault as exc:
        raise AnswerLost(
            f"{lost}; whether a sandbox was opened could not be found out either ({exc}). One that "
            f"was has the metadata {MARK}={mark} and ends with its lifetime"
        ) from lost
    return found


def _end_unwanted(creating: Running, _: object) -> None:
    if creating.future.exception() is None:
        runtime().close_soon(_Unwanted(creating.future.result()))


class _Unwanted:
    """A sandbox that nobody waits for any more."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def aclose(self) -> None:
        """End it on the server."""
        try:
            await self._client.kill()
        finally:
            await self._client.aclose()

    def __repr__(self) -> str:
        return f"<unwanted sandbox {self._client.id}>"
