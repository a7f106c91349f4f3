"""Plain requests to the test server, without the SDK."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

IMAGE = "opensandbox/code-interpreter:v1.1.0"
"""An image that can run code."""
_TIMEOUT = 50.0


@dataclass(frozen=True, slots=True)
class Said:
    """One answer: its status, its headers by lower-case name, its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Decode the body."""
        return json.loads(self.body)

    def texts(self, kind: str = "stdout") -> list[str]:
        """What the events of one kind say."""
        return [event["text"] for event in self.frames() if event["type"] == kind]

    def error(self) -> dict[str, Any] | None:
        """The error of a stream that has one."""
        return next((event["error"] for event in self.frames() if "error" in event), None)

    def frames(self) -> list[dict[str, Any]]:
        """The events of a stream."""
        return [json.loads(each) for each in self.body.split(b"\n\n") if each.strip()]


Api = Callable[..., Said]
"""A way to ask one of the APIs: method, path, and what else it takes."""


def ask(
    place: str,
    method: str,
    target: str,
    body: bytes | Mapping[str, Any] = b"",
    headers: Mapping[str, str] | None = None,
) -> Said:
    """Send one request on a connection of its own.

    Args:
        place: Host and port.
        target: Path and query.

    Raises:
        OSError, http.client.HTTPException: The connection broke.
    """
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(place, timeout=_TIMEOUT)
    try:
        connection.request(method, target, data or None, dict(headers or {}))
        response = connection.getresponse()
        said = {name.lower(): value for name, value in response.getheaders()}
        return Said(response.status, said, response.read())
    finally:
        connection.close()
