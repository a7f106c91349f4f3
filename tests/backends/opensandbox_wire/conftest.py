"""A server for each test, and plain ways to ask it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.opensandbox_calls import opensandbox_server
from tests.support.opensandbox_server import OpenSandboxServer
from tests.support.opensandbox_server.replay import IMAGE, Api, WireAnswer, ask

__all__ = ["opensandbox_server"]


@pytest.fixture
def server(opensandbox_server: OpenSandboxServer) -> OpenSandboxServer:
    return opensandbox_server


@pytest.fixture
def api(server: OpenSandboxServer) -> Api:
    """Plain requests to the lifecycle API: method, path below `/v1`, body, key."""

    def call(
        method: str, path: str, body: Any = b"", key: str | None = server.api_key
    ) -> WireAnswer:
        headers = {} if key is None else {"OPEN-SANDBOX-API-KEY": key}
        return ask(server.domain, method, f"/v1{path}", body, headers)

    return call


@pytest.fixture
def daemon(api: Api) -> Api:
    """Plain requests to the daemon of a new sandbox: method, path and query, body, headers."""
    sandbox_id = api("POST", "/sandboxes", {"image": {"uri": IMAGE}, "timeout": 300}).json()["id"]
    endpoint = api("GET", f"/sandboxes/{sandbox_id}/endpoints/44772").json()["endpoint"]
    place, _, prefix = endpoint.partition("/")

    def call(method: str, target: str, body: Any = b"", headers: Any = None) -> WireAnswer:
        return ask(place, method, f"/{prefix}{target}", body, headers)

    return call
