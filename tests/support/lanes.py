"""Which tests belong to the full lane alone: `bash .ci/test` leaves them out."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
FULL_LANE = (
    "backends/opensandbox/test_service.py",
    "bench",
    "concurrency/test_interrupt_and_exit.py",
    "conformance/test_backend_conformance.py",
    "conformance/test_chat_conformance.py",
    "conformance/test_engine_conformance.py",
    "conformance/test_engine_contract_catches.py",
    "conformance/test_memory_conformance.py",
    "conformance/test_memory_conformance_openviking.py",
    "conformance/test_store_conformance.py",
    "conformance/test_store_contract_catches.py",
    "flow/serving",
    "integration/test_five_questions.py",
    "llm/litellm/test_library.py",
    "mcp/test_real_agents.py",
    "mcp/test_real_lifetime.py",
    "mcp/test_real_servers.py",
    "mcp/test_transports.py",
    "memory/adapters/local/extraction/test_processes.py",
    "memory/adapters/local/test_crash.py",
    "memory/adapters/local/test_processes.py",
    "memory/adapters/local/vectors/test_processes.py",
    "memory/adapters/openviking/test_server.py",
    "memory/adapters/openviking/test_real_server.py",
    "session/resume/test_workspaces.py",
    "session/view/browser",
    "unit/test_error_messages.py",
)
"""Files and folders of tests that start servers, browsers and processes, or run whole contracts."""


@cache  # asked for each test of a file
def is_full_lane(path: Path) -> bool:
    """Tell whether a file of tests belongs to the full lane as a whole."""
    return any(path.is_relative_to(TESTS / each) for each in FULL_LANE)


def quick_sample(values: Iterable[Any], *, n_quick: int = 1) -> list[Any]:
    """The values of a parameter; all but the first `n_quick` are marked `full`."""
    return [
        value if at < n_quick else pytest.param(value, marks=pytest.mark.full)
        for at, value in enumerate(values)
    ]
