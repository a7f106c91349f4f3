"""Where the clients of SDKs go, for code that must not import an SDK."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rath.config.env import env_value
from rath.llm.endpoint import public_url
from rath.llm.failure import Asked
from rath.llm.pool import ConnectionPool
from rath.llm.wire import Wire

if TYPE_CHECKING:
    from rath.llm.sdk.binding import Sdk
    from rath.llm.sdk.connection import Connection

__all__ = ["Listing", "Target", "open_wire"]


@dataclass(frozen=True, slots=True)
class Listing:
    """How an endpoint is asked for its models."""

    path: str
    """Below the base URL, such as `/models`."""

    query: tuple[tuple[str, str], ...] = ()
    cursor: str | None = None
    """Query parameter that asks for what follows a page; None where there is one page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What one SDK client serves; equal targets share a connection.

    Raises:
        ValueError: The environment would add headers to calls of a project's own endpoint.
    """

    load: Callable[[], Sdk]
    """Imports the SDK, on a worker thread. A function of a module, so that targets are equal."""

    base_url: str = field(repr=False)
    """Without a slash at its end. User and password in it are sent in the place of the key."""

    key_origin: str | None
    """Where the key came from; None for one that only this process knows."""

    from_project: bool
    """Whether the endpoint is one that no secret of the environment may reach."""

    headers_variable: str | None
    """Environment variable whose headers the SDK adds to every call; None where it has none.

    They may hold a secret, so they are refused for an endpoint that a project's config names.
    """

    api_key: str = field(repr=False)
    api_version: str | None = None
    """Version of the API, for an endpoint that wants it in each call (Azure)."""

    listing: Listing | None = field(default=None, compare=False)
    """None where the names that a call may use cannot be listed."""

    def __post_init__(self) -> None:
        self.refuse_added_headers()

    def refuse_added_headers(self) -> None:
        """Refuse headers of the environment for an endpoint that a project's config names.

        Raises:
            ValueError: There are some.
        """
        name = self.headers_variable
        if self.from_project and name is not None and env_value(name):
            raise ValueError(
                f"{name} is set and would be sent to {public_url(self.base_url)!r}, which the "
                "project's own config names; unset it for this project"
            )


async def open_wire(target: Target, path: str, asked: Asked) -> Wire:
    """Return the way to a path of an endpoint.

    The connection is shared by all clients of the process. The first one imports the SDK, which
    takes 0.5 s, on a worker thread.
    """
    return (await _connections.get(target)).wire(path, asked)


def _connect(target: Target) -> Connection:
    from rath.llm.sdk.connection import Connection

    return Connection(target)


_connections: ConnectionPool[Target, Connection] = ConnectionPool(_connect)
