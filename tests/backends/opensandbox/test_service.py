"""The contract and more against a real server, where `RATH_SERVICE_OPENSANDBOX` names one.

Its key stands in `RATH_SERVICE_OPENSANDBOX_KEY`; `RATH_SERVICE_OPENSANDBOX_MOUNT` names a directory
of this host that it may mount.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rath.backend import (
    BackendSandbox,
    BackendSandboxClosed,
    BackendSandboxSpec,
    BackendToolCodeRun,
    BackendToolCommandRun,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    CodeResult,
    FileContent,
)
from rath.backend.opensandbox import OpenSandboxBackend
from rath.conformance import check_backend
from tests.support.opensandbox_calls import end_of, failed

DOMAIN = os.environ.get("RATH_SERVICE_OPENSANDBOX", "")
KEY = os.environ.get("RATH_SERVICE_OPENSANDBOX_KEY", "")
MOUNT = os.environ.get("RATH_SERVICE_OPENSANDBOX_MOUNT", "")

pytestmark = [
    pytest.mark.skipif(not DOMAIN, reason="RATH_SERVICE_OPENSANDBOX names no real server"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def service() -> OpenSandboxBackend:
    return OpenSandboxBackend(domain=DOMAIN, api_key=KEY)


@pytest.fixture
def remote(service: OpenSandboxBackend) -> Iterator[BackendSandbox]:
    opened = service.open()
    yield opened
    service.close(opened)


def test_the_real_server_keeps_the_contract(service: OpenSandboxBackend) -> None:
    check_backend(service)


def test_the_real_interpreters_keep_their_state(remote: BackendSandbox) -> None:
    remote.dispatch(BackendToolCodeRun("x = 41"))
    ran = remote.dispatch(BackendToolCodeRun("print('hi')\nx + 1"))
    assert isinstance(ran, CodeResult)
    assert (ran.text, ran.stdout, ran.error) == ("42", b"hi\n", None)
    broken = remote.dispatch(BackendToolCodeRun("1/0"))
    assert isinstance(broken, CodeResult)
    assert "ZeroDivisionError" in str(broken.error)


def test_the_real_server_ends_a_command_at_its_deadline(remote: BackendSandbox) -> None:
    call = BackendToolCommandRun("echo begun; sleep 60", timeout=1.0)
    failure = failed(remote, call)
    assert (failure.kind, failure.detail) == ("timeout", "begun\n")
    said = end_of(remote, BackendToolCommandRun("pgrep sleep || echo none"))
    assert said.stdout == b"none\n"


def test_a_real_sandbox_is_found_again_and_lives_longer(
    service: OpenSandboxBackend, remote: BackendSandbox
) -> None:
    remote.dispatch(BackendToolFilesWrite("a.txt", "kept"))
    other = OpenSandboxBackend(domain=DOMAIN, api_key=KEY)
    attached = other.attach(remote.handle)
    assert attached.dispatch(BackendToolFilesRead("a.txt")) == FileContent("kept")
    until = other.renew(attached, timedelta(minutes=30))
    assert until > datetime.now(UTC) + timedelta(minutes=25)
    other.detach(attached)


def test_a_real_sandbox_that_was_ended_is_gone(service: OpenSandboxBackend) -> None:
    sandbox = service.open()
    service.close(sandbox)
    with pytest.raises(BackendSandboxClosed):
        service.attach(sandbox.handle)


@pytest.mark.skipif(not MOUNT, reason="RATH_SERVICE_OPENSANDBOX_MOUNT names no directory")
def test_the_real_server_mounts_a_directory(service: OpenSandboxBackend) -> None:
    workspace = Path(MOUNT) / "workspace"
    sandbox = service.open(BackendSandboxSpec(working_dir=str(workspace)))
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "seen"))
    service.close(sandbox)
    assert (workspace / "a.txt").read_text() == "seen"
