"""A sandbox of the bubblewrap backend, where bubblewrap works; elsewhere its tests are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rath.backend import BackendSandbox, BackendSandboxSpec, SandboxLimits
from rath.backend.bubblewrap import BubblewrapBackend
from tests.backends.bubblewrap.running import Open


@pytest.fixture
def backend() -> BubblewrapBackend:
    reason = BubblewrapBackend.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    return BubblewrapBackend()


@pytest.fixture
def opened(backend: BubblewrapBackend, workspace: Path) -> Iterator[Open]:
    """Opens sandboxes on the workspace, or on `working_dir`, and closes them."""
    sandboxes: list[BackendSandbox] = []

    def open_one(
        *,
        working_dir: Path | str | None = None,
        env: dict[str, str] | None = None,
        network: bool = False,
        limits: SandboxLimits | None = None,
    ) -> BackendSandbox:
        spec = BackendSandboxSpec(
            working_dir=str(working_dir or workspace), env=env, network=network, limits=limits
        )
        sandboxes.append(backend.open(spec))
        return sandboxes[-1]

    yield open_one
    for sandbox in sandboxes:
        backend.close(sandbox)


@pytest.fixture
def sandbox(opened: Open) -> BackendSandbox:
    return opened()
