"""What every test gets: a home of its own, no credentials, and a hypothesis profile."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

import rath
from tests.support.api import look_again
from tests.support.lanes import is_full_lane

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

# A shell that starts the tests in the background has them, and what they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A run that a failed test left behind does not hold up the end of its worker.
rath.at_exit("cancel")

# No deadlines: a busy machine must not decide whether a property holds.
settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("full", max_examples=3000, deadline=None)
settings.load_profile("full" if FULL else "ci" if os.environ.get("CI") else "dev")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(CREDENTIAL_PREFIXES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "openrath-home"))
    look_again()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Give `-n auto` two workers more than there are cores: many tests wait for a process."""
    return (os.cpu_count() or 1) + 2


def patience(item: pytest.Item) -> float:
    """Seconds that a test may take by its own mark; 0 for one with the limit of all."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark else 0.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `.ci/test` ask for the quick lane; without it, all but the tests marked slow run."""
    parser.addoption("--quick", action="store_true", help="leave out the tests marked full")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the lanes that were not asked for, and begin with what takes longest.

    So the long tests, on real models, servers and browsers, run side by side with the many short
    ones, and none of them is left alone at the end.
    """
    for item in items:
        if is_full_lane(item.path):
            item.add_marker("full")
    lanes = {"slow": FULL, "full": FULL or not config.getoption("--quick")}
    left_out = [name for name, is_run in lanes.items() if not is_run]
    deselected = [item for item in items if any(map(item.get_closest_marker, left_out))]
    config.hook.pytest_deselected(items=deselected)
    chosen = set(items).difference(deselected)
    items[:] = sorted((item for item in items if item in chosen), key=patience, reverse=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays to the end: 11,000 tests and what they import."""
    gc.collect()
    gc.freeze()
