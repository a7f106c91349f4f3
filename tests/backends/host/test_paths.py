"""Temporary directories of dead processes go, and nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rath.backend.host.paths import is_stale, new_directory, new_name, prune

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(path))
    return path


def stale_name() -> str:
    prefix, started, suffix = new_name("local").rsplit("-", 2)
    return f"{prefix}-{int(started) + 1}-{suffix}"


def test_a_name_of_this_process_is_new_and_not_stale() -> None:
    assert new_name("code") != new_name("code")
    assert not is_stale(new_name("code"))


def test_a_process_with_the_number_of_a_dead_one_is_another() -> None:
    assert is_stale(stale_name())


def test_a_directory_is_private_and_says_what_it_is_for(temporary: Path) -> None:
    path = Path(new_directory("output"))
    assert (path.parent, path.name.startswith("rath-output-")) == (temporary, True)
    assert path.stat().st_mode & 0o777 == 0o700


PROGRAM = """
import sys, time
from rath.backend import BackendToolCodeRun, BackendToolCommandRun, get
sandbox = get("local").open()
sandbox.dispatch(BackendToolCommandRun("seq 10000; echo kept > file"))
print("ready", flush=True)
sandbox.dispatch(BackendToolCodeRun("import sys, time; time.sleep(60)"))
"""


def test_what_a_killed_program_leaves_is_removed_by_the_next(temporary: Path) -> None:
    path = os.pathsep.join(sys.path)
    env = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(temporary)}
    program = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(program, env=env, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        prune()
        assert len(os.listdir(temporary)) >= 2  # its own are left alone while it lives
        child.send_signal(signal.SIGKILL)
    assert {name.split("-")[1] for name in os.listdir(temporary)} >= {"local", "output"}
    prune()
    assert os.listdir(temporary) == []


def test_only_directories_with_our_mark_are_removed(temporary: Path) -> None:
    stale, kept = stale_name(), ["rath-local-abc", f"x{stale_name()}", "other"]
    for name in (stale, *kept):
        (temporary / name).mkdir()
    (temporary / stale / "file").touch()
    (temporary / "target").mkdir()
    link, file = stale_name(), stale_name()
    (temporary / link).symlink_to(temporary / "target")
    (temporary / file).touch()
    prune()
    assert sorted(os.listdir(temporary)) == sorted([*kept, "target", link, file])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_directories_of_others_are_left_alone(temporary: Path) -> None:
    theirs = temporary / stale_name()
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    prune()
    assert theirs.is_dir()


def test_a_directory_that_cannot_be_listed_is_no_error(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(temporary / "missing"))
    prune()


def test_removing_stops_in_time(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rath.backend.host.paths.PRUNE_SECONDS", 0.0)
    left = temporary / stale_name()
    left.mkdir()
    prune()
    assert left.is_dir()
