"""A server through the SDK, which only this module imports: load it in a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
from openviking_sdk import AsyncHTTPClient, OpenVikingError

from rath.config.redaction import guard_logs
from rath.memory.adapters.openviking.addresses import Addresses
from rath.memory.adapters.openviking.asking import Asking, faults
from rath.memory.adapters.openviking.defaults import USER
from rath.memory.adapters.openviking.faults import Fault
from rath.memory.adapters.openviking.wire import Answer, Sdk

__all__ = ["ERRORS", "Access", "connect"]

ERRORS = (OpenVikingError, httpx.HTTPError, httpx.InvalidURL, httpx.StreamError)

_LIBRARIES = ("openviking_sdk", "httpx", "httpcore")
_HOME = "viking://~"
_NO_LIMIT = 86400.0
"""Seconds: each operation has a deadline of its own, and some are longer than others."""

_IDENTITY = (
    "X-API-Key",
    "X-OpenViking-Account",
    "X-OpenViking-User",
    "X-OpenViking-Actor-Peer",
    "X-Gateway-Token",
    "Authorization",
)


@dataclass(frozen=True, slots=True)
class Access:
    """A server, and as whom it is asked."""

    url: str
    api_key: str = field(default="", repr=False)
    account_id: str = ""
    user_id: str | None = None
    agent_id: str | None = None

    def headers(self) -> Mapping[str, str]:
        """Return what tells the server who asks."""
        told = {
            "X-API-Key": self.api_key,
            "X-OpenViking-Account": self.account_id,
            "X-OpenViking-User": self.user_id or "",
            "X-OpenViking-Actor-Peer": self.agent_id or "",
        }
        return {name: value for name, value in told.items() if value}


async def connect(access: Access) -> Asking:
    """Return what asks a server, which was found to answer.

    Raises:
        Fault: It does not answer, or does not let us in.
    """
    guard_logs(_LIBRARIES, access.api_key)
    async with faults(ERRORS, access.api_key):
        sdk = _sdk(access)
        await sdk.initialize()
    asking = Asking(sdk, Addresses(access.user_id or USER), ERRORS, access.api_key)
    try:
        user_id = await _user_id(asking, access)
    except BaseException:
        await sdk.close()
        raise
    return Asking(sdk, Addresses(user_id), ERRORS, access.api_key)


def _sdk(access: Access) -> Sdk:
    headers = access.headers()

    async def tell(request: httpx.Request) -> None:
        # What is not given here the SDK takes from the environment and from a file in the home:
        # a key for one server would go to any other.
        for name in _IDENTITY:
            request.headers.pop(name, None)
        request.headers.update(headers)

    made: Any = AsyncHTTPClient(
        url=access.url,
        api_key=access.api_key or None,
        timeout=_NO_LIMIT,
        extra_headers={},
        profile_enabled=False,
        event_hooks={"request": [tell]},
    )
    return cast("Sdk", made)  # its signatures are wider


async def _user_id(asking: Asking, access: Access) -> str:
    """Return as whom the server knows us: a key may belong to another user than was named."""
    try:
        home = await _home(asking)
    except Fault as fault:
        if fault.failure.kind != "not_found":
            raise
        return access.user_id or USER  # a user without any file
    table = cast("Answer", home if isinstance(home, Mapping) else {})
    found: object = table.get("uri")
    if not isinstance(found, str) or not found.startswith("viking://"):
        raise Fault("internal", "what answers there is no server of OpenViking")
    user_id = found.rstrip("/").rpartition("/")[2]
    return user_id or access.user_id or USER


async def _home(asking: Asking) -> object:
    try:
        return await asking.ask(lambda sdk: sdk.stat(_HOME))
    except Fault as fault:
        if fault.failure.detail != "CancelledError":
            raise
    # Once more: the first connection of a busy program is the one that is given up.
    return await asking.ask(lambda sdk: sdk.stat(_HOME))
