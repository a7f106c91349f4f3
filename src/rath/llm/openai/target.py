"""Where the SDK's clients go, for code that must not import the SDK."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rath.llm.failure import Asked
from rath.llm.pool import ConnectionPool
from rath.llm.wire import Wire

if TYPE_CHECKING:
    from rath.llm.openai.connection import Connection

__all__ = ["Target", "open_wire"]


@dataclass(frozen=True, slots=True)
class Target:
    """What one SDK client serves."""

    base_url: str
    key_origin: str | None
    """Where the key came from; None for one that only this process knows."""

    azure_version: str | None
    """API version of an Azure endpoint that wants one."""

    from_project: bool
    """Whether the endpoint is one that no secret of the environment may reach."""

    api_key: str = field(repr=False)


async def open_wire(target: Target, path: str, asked: Asked) -> Wire:
    """Return the way to a path of an endpoint.

    The connection is shared by all clients of the process. The first one imports the SDK, which
    takes 0.5 s, on a worker thread.
    """
    return (await _connections.get(target)).wire(path, asked)


def _connect(target: Target) -> Connection:
    from rath.llm.openai.connection import Connection

    return Connection(target)


_connections: ConnectionPool[Target, Connection] = ConnectionPool(_connect)
