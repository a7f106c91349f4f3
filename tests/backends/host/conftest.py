"""What every test of workspaces gets: nothing of it stays open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.workspaces import close_all


@pytest.fixture(autouse=True)
def _close_all(_own_home: None) -> Iterator[None]:
    yield
    close_all()
