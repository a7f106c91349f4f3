from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import webbrowser
from pathlib import Path

import pytest

from rath.session import Session
from rath.session.persistence import sessions_dir
from tests.cli.conftest import Rath
from tests.support.sessions import run
from tests.support.waiting import PATIENCE


def stored(text: str = "I am here.") -> Session:
    """A session in the store of the home."""
    return run([text], persist=True).synchronize()


def test_view_writes_one_file_and_says_where(rath: Rath, project: Path) -> None:
    session = stored()
    result = rath("view", str(session.id))
    name = f"session-{str(session.id)[:8]}.html"
    assert (result.exit_code, result.stdout) == (0, f"{name}\n")
    assert "I am here." in (project / name).read_text("utf-8")


def test_view_compares_and_writes_to_the_given_file(rath: Rath, project: Path) -> None:
    one, two = stored("One."), stored("Two.")
    result = rath("view", str(one.id)[:8], "--compare", str(two.id), "-o", "both.html")
    page = (project / "both.html").read_text("utf-8")
    assert result.exit_code == 0
    assert f'data-head="{one.id} {two.id}"' in page
    assert "One." in page
    assert "Two." in page


def test_long_texts_are_cut_where_that_is_asked_for(rath: Rath, project: Path) -> None:
    session = stored("x" * 50)
    rath("view", str(session.id), "-o", "page.html", "--max-chars", "30")
    assert f'["{"x" * 20}",20,"{"x" * 10}"]' in (project / "page.html").read_text("utf-8")


def test_an_unknown_session_is_a_problem(rath: Rath, project: Path) -> None:
    rath("view 0000aaaa", ends=1, err="no session")
    assert list(project.glob("*.html")) == []


@pytest.mark.parametrize("verb", ["view", "view --live"])
def test_a_damaged_session_is_reported_as_such(rath: Rath, verb: str) -> None:
    session = stored()
    path = sessions_dir() / f"{session.id}.jsonl"
    path.write_bytes(path.read_bytes().replace(b"I am here.", b"I am hero."))
    assert rath(verb, str(session.id)).exit_code == 4


def test_a_directory_that_cannot_be_written_is_a_problem(rath: Rath) -> None:
    result = rath("view", str(stored().id), "-o", "nowhere/page.html", ends=1)
    assert "error: nowhere/page.html cannot be written: No such file" in result.stderr


def test_the_page_is_opened_where_that_is_asked_for(
    rath: Rath, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    rath("view", str(stored().id), "-o", "page.html", "--open")
    assert opened == [(project / "page.html").as_uri()]


def test_the_profile_is_written_beside_the_page(rath: Rath, project: Path) -> None:
    out = run(["done"], persist=True).synchronize()
    rath("view", str(out.id), "-o", "p.html", "--profile", ends=0)
    assert 'data-profile="p.profile.html"' in (project / "p.html").read_text()
    assert "Profile of session" in (project / "p.profile.html").read_text()
    rath("view", str(out.id), "--live", "--profile", ends=2, err="--live has no profile")


def test_live_and_a_file_exclude_each_other(rath: Rath) -> None:
    assert rath("view", str(stored().id), "--live", "-o", "page.html").exit_code == 2


def test_live_says_its_address_and_ends_with_an_interrupt(project: Path) -> None:
    session = stored()
    command = [sys.executable, "-W", "error", "-m", "rath", "view", "--live", str(session.id)]
    with subprocess.Popen(
        command,
        cwd=project,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts the tests in the background has them ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, notes = process.communicate(timeout=PATIENCE)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/\n", address)
    assert process.returncode == 0
    assert "no longer served" in notes
