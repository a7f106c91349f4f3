"""A sandbox of the local backend, with a directory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rath.backend import BackendSandbox, BackendSandboxSpec
from rath.backend.local import LocalBackend
from tests.support.command_witness import Witness


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def sandbox(workspace: Path) -> Iterator[BackendSandbox]:
    backend = LocalBackend()
    opened = backend.open(BackendSandboxSpec(working_dir=str(workspace)))
    yield opened
    backend.close(opened)


@pytest.fixture
def witness(workspace: Path) -> Witness:
    return Witness(workspace / "witness")
