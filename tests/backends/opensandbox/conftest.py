"""A sandbox of the test server, opened by a backend of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rath.backend import BackendSandbox
from rath.backend.opensandbox import OpenSandboxBackend
from rath.backend.opensandbox.connection import is_installed
from tests.support.opensandbox_server.fixtures import opensandbox_server
from tests.support.opensandbox_server.server import OpenSandboxServer

__all__ = ["opensandbox_server"]


@pytest.fixture
def backend(opensandbox_server: OpenSandboxServer) -> OpenSandboxBackend:
    if not is_installed():
        pytest.skip('needs the SDK: pip install "openrath[opensandbox]"')
    server = opensandbox_server
    return OpenSandboxBackend(domain=server.domain, api_key=server.api_key)


@pytest.fixture
def sandbox(backend: OpenSandboxBackend) -> Iterator[BackendSandbox]:
    opened = backend.open()
    yield opened
    backend.close(opened)
