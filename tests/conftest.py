"""What every test gets: a home of its own, no credentials, and a hypothesis profile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

CREDENTIAL_PREFIXES = (
    "ANTHROPIC_",
    "AZURE_",
    "LITELLM_",
    "OPENAI_",
    "OPENRATH_",
    "OPENSANDBOX_",
    "OPENVIKING_",
    "OPEN_SANDBOX_",
    "RATH_OPENSANDBOX_",
)
FULL = os.environ.get("RATH_FULL") == "1"

# No deadlines: a busy machine must not decide whether a property holds.
settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("full", max_examples=3000, deadline=None)
settings.load_profile("full" if FULL else "ci" if os.environ.get("CI") else "dev")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(CREDENTIAL_PREFIXES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "openrath-home"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked slow, unless the full campaign was asked for."""
    if FULL:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]
