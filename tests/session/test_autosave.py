"""A program on a terminal whose runs are not recorded is told so, once."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from rath import flow
from rath.session import Session
from rath.testing import ScriptedClient
import rath
{first}
agent = flow.Agent("", ScriptedClient(["one", "two"]).provider)
agent(Session.from_user_message("a")).synchronize()
agent(Session.from_user_message("b")).synchronize()
"""


def run(home: Path, first: str = "", **variables: str) -> str:
    """Run the program with a terminal as stderr, and return what it says there."""
    controller, terminal = pty.openpty()
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM.format(first=first)],
        env={**environment, "OPENRATH_HOME": str(home / "rath"), **variables},
        stderr=terminal,
    ) as process:
        os.close(terminal)
        said = b""
        while True:
            try:
                part = os.read(controller, 4096)
            except OSError:  # Linux says so where nobody has the other side any more
                break
            if not part:
                break
            said += part
        os.close(controller)
    assert process.returncode == 0, said
    return said.decode()


def test_it_is_told_once_for_each_user(tmp_path: Path) -> None:
    assert run(tmp_path).count("rath.autosave()") == 1
    assert run(tmp_path) == ""


@pytest.mark.parametrize(
    ("first", "variables"),
    [
        ("rath.autosave()", {}),
        ("rath.autosave(False)", {}),
        ("", {"OPENRATH_PERSIST": "1"}),
        ("", {"OPENRATH_PERSIST": "0"}),
    ],
    ids=["recorded", "decided", "recorded by the environment", "decided by the environment"],
)
def test_who_has_decided_is_not_told(tmp_path: Path, first: str, variables: dict[str, str]) -> None:
    assert run(tmp_path, first, **variables) == ""


@pytest.mark.parametrize("is_recorded", ["true", "false"])
def test_the_notice_is_silent_where_the_config_decides(tmp_path: Path, is_recorded: str) -> None:
    (tmp_path / "rath").mkdir()
    text = f'{{"sessions": {{"persist": {is_recorded}}}}}'
    config = tmp_path / "rath" / "config.json"
    config.touch(0o600)
    config.write_text(text)
    assert run(tmp_path) == ""
