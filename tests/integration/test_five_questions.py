"""The five questions, answered from a store alone: its process, workspace and network are gone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from rath.session.questions import NEEDS
from tests.support import history_program
from tests.support.asking import KEY
from tests.support.chat_server import CapturedRequest, ChatServer
from tests.support.history_program import NOTE, replies

ROOT = Path(__file__).parents[2]
NO_NETWORK = ("unshare", "--map-root-user", "--net")


@dataclass(frozen=True)
class Told:
    """A store that a process has left."""

    store: Path
    session: str
    requests: list[CapturedRequest]
    empty: Path
    """A directory with nothing in it."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Run the program, and take away everything but its store."""
    home, workspace = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("workspace")
    with ChatServer() as server:
        server.queue(*replies())
        done = subprocess.run(
            [sys.executable, "-m", history_program.__name__, server.base_url, str(workspace)],
            env={"PATH": os.environ["PATH"], "OPENRATH_HOME": str(home), "OPENRATH_PERSIST": "1",
                 "OPENAI_API_KEY": KEY, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        requests = server.calls
    assert done.returncode == 0, done.stderr
    store = tmp_path_factory.mktemp("kept") / "sessions"
    shutil.copytree(home / "sessions", store)
    shutil.rmtree(home)
    shutil.rmtree(workspace)
    return Told(store, done.stdout.strip(), requests, tmp_path_factory.mktemp("empty"))


def rath(reports: Told, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Call the command in an environment without variables, home, files and network."""
    way = NO_NETWORK if _can_unshare() else ()
    return subprocess.run(
        [*way, sys.executable, "-m", "rath", *arguments, "--store", str(reports.store)],
        env={"HOME": str(reports.empty), "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "60"},
        cwd=reports.empty, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def _can_unshare() -> bool:
    if shutil.which(NO_NETWORK[0]) is None:
        return False
    return subprocess.run([*NO_NETWORK, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def answers(reports: Told) -> Any:
    """What all five questions are answered with."""
    done = rath(reports, "explain", reports.session, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_the_models_saw_is_what_the_server_was_sent(reports: Told, answers: Any) -> None:
    bodies = {sha256(request.body).hexdigest(): request.body for request in reports.requests}
    calls = answers["seen"]["calls"]
    assert len(calls) == len(reports.requests) == 10
    assert {each["proof"] for each in calls} == {"same"}
    assert {each["request_digest"] for each in calls} == set(bodies)
    assert [note["uri"] for note in calls[0]["recalled"]] == [NOTE]
    done = rath(reports, "explain", reports.session, "--seen", "--turn", "1", "--json")
    (failed, first) = json.loads(done.stdout)["seen"]["calls"]
    assert first["request"] == json.loads(bodies[first["request_digest"]])
    assert failed["request"]["model"] == "first"


def test_which_provider_answered(answers: Any) -> None:
    told_calls = answers["provider"]
    calls = told_calls["calls"]
    assert [(each["requested_model"], each["status"]) for each in calls[:2]] == [
        ("first", "failed"),
        ("second", "done"),
    ]
    assert calls[0]["attempts"][0]["status"] == 500
    assert calls[1]["fallback_from"].endswith(" first")
    assert calls[1]["origins"] == {
        "model": "call",
        "base_url": "call",
        "api_key": "env OPENAI_API_KEY",
    }
    assert calls[1]["credential"].startswith("env OPENAI_API_KEY ")
    assert {each["provider_kind"] for each in calls} == {"openai"}
    assert all(each["endpoint"].endswith("/v1/chat/completions") for each in calls)
    assert told_calls["tokens"] > 0


def test_the_key_is_in_no_file_of_the_store(reports: Told) -> None:
    remaining = [path.read_bytes() for path in reports.store.rglob("*") if path.is_file()]
    assert len(remaining) > 10
    assert not any(KEY.encode() in content for content in remaining)


def test_where_tools_ran(answers: Any) -> None:
    where = answers["where"]
    assert [(each["turn"], each["run"]["tool"]) for each in where["runs"]] == [
        (1, "write_workspace_file"),
        (None, "run_shell_command"),
        (3, "write_workspace_file"),
        (5, "write_workspace_file"),
    ]
    places = {each["run"]["sandbox"]["sandbox_id"] for each in where["runs"]}
    assert len(places) == len(where["sandboxes"]) == 3
    assert {each["run"]["sandbox"]["backend"] for each in where["runs"]} == {"local"}


def test_what_changed(answers: Any) -> None:
    changed = answers["changed"]
    assert [(each["path"], each["kind"]) for each in changed["files"]] == [
        ("left.txt", "created"),
        ("plan.txt", "created"),
        ("right.txt", "created"),
    ]
    assert "+step two\n" in changed["diff"]
    assert "+from the right\n" in changed["diff"]
    (verdict,) = changed["verdicts"]
    assert verdict["verdict"]["passed"] is True


def test_where_the_final_state_came_from(answers: Any) -> None:
    origin = answers["origin"]
    operators = [each["operator"] for each in origin["ancestors"]]
    assert operators.count("Session.fork") == 2
    assert operators[-1] == "run_session_loop"
    assert {"Session.merge", "run_session_compress"} < set(operators)
    (summary,) = [each["summary"] for each in origin["ancestors"] if each["summary"]]
    assert len(summary["replaced"]) == 10
    assert [each["does"] for each in origin["ancestors"][-1]["selections"]] == ["select"]
    assert [(each["by"], each["turn"]) for each in origin["rows"]] == [("summary", 7), ("model", 8)]


def test_all_five_in_brief_fit_a_narrow_terminal(reports: Told) -> None:
    done = rath(reports, "explain", reports.session[:8])
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 60
    for question in NEEDS:
        assert f"\n{question}: " in done.stdout


def test_a_line_of_a_file_is_traced_to_the_call_that_wrote_it(reports: Told) -> None:
    done = rath(reports, "blame", reports.session, "from the left", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["appearances"]
    assert [(each["place"], each["turn"], each["path"]) for each in found] == [
        ("row", 3, ""),
        ("file", 3, "left.txt"),
    ]
