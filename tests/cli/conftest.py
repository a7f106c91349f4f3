"""A machine of its own for each test, and ways to call the command on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rath.cli.app import app
from tests.support.machine import own_project
from tests.support.store_family import Family, saved_family

Rath = Callable[..., Result]
Texts = str | tuple[str, ...]
Process = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; the user's home stands beside it as `home`."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("LOGNAME", "ann")
    # Workers of xdist have it; without it nothing is cut, as in a pipe.
    monkeypatch.delenv("COLUMNS", raising=False)
    # A command that runs a program looks for it in the directory of that first.
    monkeypatch.setattr(sys, "path", list(sys.path))
    return own_project(tmp_path, monkeypatch)


@pytest.fixture
def home(project: Path) -> Path:
    """The user's home directory, which is empty."""
    return project.with_name("home")


@pytest.fixture
def rath(project: Path) -> Rath:
    """Call the command in this process: `rath("config get", key, ends=0, out="...")`.

    The first argument may hold many words. `ends` is the exit status, `out` and `err` are texts in
    stdout and stderr, checked where they are given; an empty text means that nothing is written.
    """
    assert Path.cwd() == project

    def call(
        words: str = "",
        *args: str,
        input: str | None = None,
        ends: int | None = None,
        out: Texts = (),
        err: Texts = (),
    ) -> Result:
        done = CliRunner().invoke(app, [*words.split(" ")[not words :], *args], input=input)
        assert ends in (None, done.exit_code), done.output
        for texts, written in ((out, done.stdout), (err, done.stderr)):
            for text in (texts,) if isinstance(texts, str) else texts:
                assert text in written if text else not written
        return done

    return call


@pytest.fixture
def process(project: Path) -> Process:
    """Call the command in a process of its own."""

    def call(*args: str, input: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "rath", *args],
            cwd=project,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            input=input,
            capture_output=True,
            text=True,
            check=False,
        )

    return call


@pytest.fixture
def sessions(home: Path) -> Path:
    """The directory of stored sessions, which is not there yet."""
    return home / ".openrath" / "sessions"


@pytest.fixture
def family(sessions: Path) -> Family:
    """A few stored sessions."""
    return saved_family(sessions)
