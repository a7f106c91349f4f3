"""Where bubblewrap does not work, the reason is said, and nothing is run on the host instead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rath.backend import BackendError, BackendSandboxSpec, is_available
from rath.backend.bubblewrap import BubblewrapBackend, backend


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory on PATH."""
    path = tmp_path / "programs"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    return path


def write_bwrap(programs: Path, script: str) -> None:
    (programs / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (programs / "bwrap").chmod(0o755)


linux_only = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux")


@linux_only
def test_a_missing_program_is_named_with_its_package(programs: Path) -> None:
    reason = BubblewrapBackend.unavailable_reason()
    assert reason is not None
    assert "not on PATH" in reason
    assert "package is called bubblewrap" in reason
    assert not BubblewrapBackend.is_available()
    assert not is_available("bubblewrap")


@linux_only
@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("bwrap: No permissions to create new namespace", "kernel.unprivileged_userns_clone=1"),
        ("bwrap: setting up uid map: Permission denied", "apparmor_restrict_unprivileged_userns"),
        ("bwrap: Creating new namespace failed: Operation not permitted", "by sysctl"),
        ("bwrap: Unknown option --disable-userns", "version 0.8.0 or newer"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "unmasked /proc"),
        ("bwrap: something nobody knows", "by hand"),
    ],
)
def test_what_the_program_says_is_reported_with_what_helps(
    programs: Path, said: str, hint: str
) -> None:
    write_bwrap(programs, f'echo "{said}" >&2; exit 1')
    reason = str(BubblewrapBackend.unavailable_reason())
    assert said.removeprefix("bwrap: ") in reason
    assert hint in reason


@linux_only
def test_a_program_that_says_nothing_is_reported_by_its_status(programs: Path) -> None:
    write_bwrap(programs, "exit 7")
    assert "status 7, no message" in str(BubblewrapBackend.unavailable_reason())


@linux_only
def test_a_program_that_cannot_be_run_is_reported(programs: Path) -> None:
    (programs / "bwrap").write_bytes(b"\0no program")
    (programs / "bwrap").chmod(0o755)
    assert BubblewrapBackend.unavailable_reason() is not None


@linux_only
def test_a_program_that_hangs_is_ended(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "ATTEMPT_SECONDS", 0.2)
    write_bwrap(programs, "/bin/sleep 30 & /bin/sleep 30")
    assert "no end within 0.2 s" in str(BubblewrapBackend.unavailable_reason())


@linux_only
def test_it_is_tried_once_for_each_path(programs: Path, tmp_path: Path) -> None:
    write_bwrap(programs, f"echo tried >> {tmp_path}/log; exit 1")
    assert BubblewrapBackend.unavailable_reason() == BubblewrapBackend.unavailable_reason()
    assert (tmp_path / "log").read_text() == "tried\n"


@linux_only
def test_nothing_of_an_attempt_is_left(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    write_bwrap(programs, "exit 1")
    BubblewrapBackend.unavailable_reason()
    assert os.listdir(tmp_path / "temporary") == []


@linux_only
def test_opening_where_it_does_not_work_raises_the_reason(programs: Path, workspace: Path) -> None:
    write_bwrap(programs, "echo 'bwrap: broken' >&2; exit 1")
    with pytest.raises(BackendError, match="broken"):
        BubblewrapBackend().open(BackendSandboxSpec(working_dir=str(workspace)))


def test_another_system_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert "needs Linux, this is darwin" in str(BubblewrapBackend.unavailable_reason())


def test_a_reason_and_availability_agree() -> None:
    reason = BubblewrapBackend.unavailable_reason()
    assert BubblewrapBackend.is_available() == (reason is None)
