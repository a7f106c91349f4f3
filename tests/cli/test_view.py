from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import webbrowser
from pathlib import Path

import pytest

from rath import flow
from rath.session import Session
from rath.session.persistence import sessions_dir
from rath.testing import ScriptedClient
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


def test_branches_of_the_store_are_on_the_page_where_that_is_asked_for(
    rath: Rath, project: Path
) -> None:
    first = stored("I am first.")
    branches = [run([f"Way {at}."], user=first.fork(), persist=True).synchronize() for at in (1, 2)]
    other = Session.from_user_message("And what else?")
    run(["Of another lineage."], user=other, persist=True).synchronize()
    rath("view", str(branches[0].id), "-o", "one.html", ends=0)
    assert "Way 2." not in (project / "one.html").read_text("utf-8")
    rath("view", str(branches[0].id), "--branches", "-o", "all.html", ends=0)
    page = (project / "all.html").read_text("utf-8")
    assert "Way 2." in page
    assert "Of another lineage." not in page


def carry_out(job: str, *answers: str) -> None:
    """A job in the store of the home, an item for each answer."""
    agent = flow.Agent("Answer.", ScriptedClient(answers).provider, system_tools=False)
    items = [{"key": f"item {at}", "input": f"{at}?"} for at in range(len(answers))]
    flow.map(agent, items, key="key", job=job, concurrency=1, progress=False).synchronize()


def test_view_of_a_job_shows_its_runs_beside_those_of_another(rath: Rath, project: Path) -> None:
    carry_out("my/job", "One.", "Two.")
    carry_out("other", "Three.", "Four.")
    result = rath("view my/job --compare other")
    page = (project / "my-job.html").read_text("utf-8")
    assert (result.exit_code, result.stdout) == (0, "my-job.html\n")
    assert "<title>Job my/job</title>" in page
    assert all(text in page for text in ("item 1", "Two.", "Four."))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        pytest.param("--compare nothing", "there is no job 'nothing'", id="unknown"),
        pytest.param("--profile", "--profile and --branches are of a session", id="profile"),
    ],
)
def test_what_a_job_cannot_have_is_refused(
    rath: Rath, project: Path, options: str, error: str
) -> None:
    carry_out("job", "One.")
    rath(f"view job {options}", ends=2, err=error)
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


def test_the_page_holds_the_profile_where_that_is_asked_for(rath: Rath, project: Path) -> None:
    out = run(["done"], persist=True).synchronize()
    rath("view", str(out.id), "-o", "p.html", "--profile", ends=0)
    assert '<script type="application/json" id="profile">{"boxes":' in Path("p.html").read_text()
    assert [each.name for each in project.glob("*.html")] == ["p.html"]
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
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, notes = process.communicate(timeout=PATIENCE)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/\n", address)
    assert process.returncode == 0, notes
    assert "no longer served" in notes
