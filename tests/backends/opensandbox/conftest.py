"""A sandbox of the test server, opened by a backend of its own."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from rath.backend import BackendSandbox
from rath.backend.opensandbox import OpenSandboxBackend
from rath.backend.opensandbox.connection import is_installed
from tests.support.opensandbox_calls import Remote, Service, opensandbox_server
from tests.support.opensandbox_server.server import OpenSandboxServer
from tests.support.waiting import wait_until

__all__ = ["opensandbox_server"]


@pytest.fixture
def backend(opensandbox_server: OpenSandboxServer) -> OpenSandboxBackend:
    if not is_installed():
        pytest.skip("needs the SDK: uv sync --extra opensandbox")
    server = opensandbox_server
    return OpenSandboxBackend(domain=server.domain, api_key=server.api_key)


@pytest.fixture
def sandbox(backend: OpenSandboxBackend) -> Iterator[BackendSandbox]:
    opened = backend.open()
    yield opened
    backend.close(opened)


@pytest.fixture
def service(backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer) -> Service:
    return Service(backend, opensandbox_server)


@pytest.fixture
def remote(service: Service, sandbox: BackendSandbox) -> Remote:
    return Remote(service.backend, service.server, sandbox)


@pytest.fixture
def nothing_left(opensandbox_server: OpenSandboxServer) -> Iterator[None]:
    """Fail a test that leaves a sandbox or a snapshot on the server."""
    server = opensandbox_server
    yield
    server.clear_faults()

    def is_empty() -> bool:
        # What ended on the runtime may hold frozen files in a cycle.
        gc.collect()
        server.advance(0)
        return not server.sandbox_ids and not server.snapshot_ids

    wait_until(is_empty, "nothing is left on the server")
