"""Fixtures around the test server, to be imported by a `conftest.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.opensandbox_server.server import OpenSandboxServer, unavailable_reason


@pytest.fixture
def opensandbox_server(tmp_path: Path) -> Iterator[OpenSandboxServer]:
    """A server for one test, whose temporary directory may be bound into sandboxes."""
    reason = unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    with OpenSandboxServer() as server:
        server.allowed_host_paths.append(tmp_path)
        yield server
