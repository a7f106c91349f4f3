"""Holds on kept sandboxes: who may remove one, and when it was last used."""

from __future__ import annotations

import errno
import gc
import itertools
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from rath import backend
from rath.backend import BackendSandboxSpec, BackendToolCommandRun
from rath.backend.use import (
    begin_use,
    begin_use_of,
    claimed,
    forget_unused,
    is_used,
    last_use,
    try_use_of,
)
from rath.errors import BackendError

LONG_AGO = 1_000_000.0


def no_wait(_: float) -> None:
    """Take the place of `time.sleep`."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of uses that is not there yet, in a directory that is not there either."""
    return tmp_path / "sandboxes" / "local" / f"{uuid4()}.use"


def test_many_users_hold_a_sandbox_at_once(file: Path) -> None:
    first, second = begin_use(file), begin_use(file)
    first.end()
    assert is_used(file)
    second.end()
    assert not is_used(file)


def test_end_is_safe_to_repeat(file: Path) -> None:
    hold = begin_use(file)
    hold.end()
    hold.end()
    assert not is_used(file)


def test_a_forgotten_use_ends(file: Path) -> None:
    hold = begin_use(file)
    assert is_used(file)
    del hold
    gc.collect()
    assert not is_used(file)


def test_a_sandbox_nobody_ever_used_is_not_used(file: Path) -> None:
    assert not is_used(file)
    assert not file.exists()


def test_what_cannot_be_looked_at_counts_as_used(file: Path) -> None:
    file.mkdir(parents=True)
    assert is_used(file)


def test_claim_fails_while_somebody_uses_it(file: Path) -> None:
    hold = begin_use(file)
    with claimed(file, used_at=0.0) as is_free:
        assert not is_free
    hold.end()
    with claimed(file, used_at=0.0) as is_free:
        assert is_free


def test_claim_keeps_the_time_of_last_use(file: Path) -> None:
    file.parent.mkdir(parents=True)
    with claimed(file, used_at=LONG_AGO) as is_free:
        assert is_free
    assert last_use(file) == LONG_AGO
    with claimed(file, used_at=LONG_AGO * 2):
        assert last_use(file) == LONG_AGO


def test_user_waits_for_a_removal_and_gets_a_lock_on_the_new_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.parent.mkdir(parents=True)
    removal = claimed(file, used_at=0.0)
    assert removal.__enter__()

    def finish(_: float) -> None:
        file.unlink()
        removal.__exit__(None, None, None)

    monkeypatch.setattr(time, "sleep", finish)
    hold = begin_use(file)
    assert is_used(file)
    hold.end()


def test_a_removal_without_end_is_an_error_of_the_user(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.parent.mkdir(parents=True)
    seconds = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(time, "sleep", no_wait)
    with claimed(file, used_at=0.0), pytest.raises(BackendError, match="is being removed"):
        begin_use(file)


def test_what_cannot_be_locked_is_an_error(file: Path) -> None:
    file.mkdir(parents=True)
    with pytest.raises(BackendError, match="cannot be marked as in use"):
        begin_use(file)


def test_begin_and_end_are_uses(file: Path) -> None:
    hold = begin_use(file)
    assert (last_use(file) or 0) > LONG_AGO
    os.utime(file, (LONG_AGO, LONG_AGO))
    hold.end()
    assert (last_use(file) or 0) > LONG_AGO


def test_touch_keeps_the_time_once_a_minute(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = begin_use(file)
    os.utime(file, (LONG_AGO, LONG_AGO))
    hold.touch()
    assert last_use(file) == LONG_AGO
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    hold.touch()
    assert (last_use(file) or 0) > LONG_AGO


@pytest.mark.parametrize("inside", ["", "project/src"], ids=["itself", "a directory in it"])
def test_directory_of_a_kept_sandbox_is_held(tmp_path: Path, inside: str) -> None:
    sandbox = tmp_path / "sandboxes" / "local" / str(uuid4())
    hold = begin_use_of(str(sandbox / inside))
    assert hold is not None
    assert is_used(sandbox.with_suffix(".use"))
    hold.end()


def test_kept_sandbox_is_known_through_links_and_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = tmp_path / "sandboxes" / "local" / str(uuid4())
    sandbox.mkdir(parents=True)
    (tmp_path / "link").symlink_to(sandbox)
    monkeypatch.chdir(tmp_path)
    hold = begin_use_of("link")
    assert is_used(sandbox.with_suffix(".use"))
    assert hold is not None
    hold.end()


def test_home_is_meant_by_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    sandbox_id = uuid4()
    hold = begin_use_of(f"~/sandboxes/local/{sandbox_id}")
    assert hold is not None
    assert is_used(tmp_path / "sandboxes" / "local" / f"{sandbox_id}.use")
    hold.end()


def test_trying_to_hold_never_waits(file: Path) -> None:
    file.parent.mkdir(parents=True)
    with claimed(file, used_at=LONG_AGO) as is_free:
        assert is_free
        assert try_use_of(str(file.with_suffix(""))) is None
    hold = try_use_of(str(file.with_suffix("") / "below"))
    assert hold is not None
    hold.end()
    assert try_use_of(str(file.parent)) is None


@pytest.mark.parametrize("name", ["project", "sandboxes/local/notes", "local/{id}", "{id}"])
def test_other_directories_are_left_alone(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name.format(id=uuid4())
    assert begin_use_of(str(directory)) is None
    assert list(tmp_path.iterdir()) == []


def test_sandbox_in_a_place_that_cannot_be_written_is_used_without_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    with caplog.at_level(logging.WARNING, "rath.backend.use"):
        assert begin_use_of(str(tmp_path / "sandboxes" / "local" / str(uuid4()))) is None
    assert "used without a lock" in caplog.text


def test_sandbox_that_cannot_be_locked_is_not_opened(tmp_path: Path) -> None:
    sandbox = tmp_path / "sandboxes" / "local" / str(uuid4())
    sandbox.with_suffix(".use").mkdir(parents=True)
    with pytest.raises(BackendError, match="cannot be marked as in use"):
        begin_use_of(str(sandbox))


def test_files_of_uses_without_a_sandbox_are_removed(tmp_path: Path) -> None:
    kept, used, left = (tmp_path / f"{UUID(int=n)}.use" for n in range(3))
    for file in (kept, left):
        file.touch()
    kept.with_suffix("").mkdir()
    hold = begin_use(used)
    forget_unused(tmp_path, "")
    assert sorted(tmp_path.glob("*.use")) == [kept, used]
    hold.end()


FORKED = """
import os, sys
from pathlib import Path
from rath.backend.use import begin_use
hold = begin_use(Path(sys.argv[1]))
ready, tell = os.pipe()
if os.fork() == 0:
    os.write(tell, b"x")
    os.read(int(sys.argv[2]), 1)
    os._exit(0)
os.read(ready, 1)
os._exit(0)
"""


def test_forked_child_that_lives_on_holds_nothing(file: Path) -> None:
    waiting, waker = os.pipe()
    subprocess.run(
        [sys.executable, "-c", FORKED, str(file), str(waiting)], check=True, pass_fds=[waiting]
    )
    assert not is_used(file)
    os.close(waker)
    os.close(waiting)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_leaves_the_lock_to_its_parent(file: Path) -> None:
    hold = begin_use(file)
    child = os.fork()
    if child == 0:
        hold.end()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert is_used(file)
    hold.end()


def test_open_sandbox_holds_its_directory_until_it_is_closed(tmp_path: Path) -> None:
    directory = tmp_path / "sandboxes" / "local" / str(uuid4())
    file = directory.with_suffix(".use")
    sandbox = backend.get("local").open(BackendSandboxSpec(working_dir=str(directory)))
    sandbox.dispatch(BackendToolCommandRun("true"))
    assert is_used(file)
    backend.get("local").close(sandbox)
    assert not is_used(file)


def test_lazy_sandbox_holds_nothing_before_its_first_use(tmp_path: Path) -> None:
    directory = tmp_path / "sandboxes" / "local" / str(uuid4())
    sandbox = backend.get("local").lazy(BackendSandboxSpec(working_dir=str(directory)))
    assert not directory.with_suffix(".use").exists()
    sandbox.acquire().release()
    assert not directory.with_suffix(".use").exists()


def test_sandbox_that_cannot_be_opened_holds_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "sandboxes" / "local" / str(uuid4())
    directory.parent.mkdir(parents=True)
    directory.touch()
    sandbox = backend.get("local").lazy(BackendSandboxSpec(working_dir=str(directory)))
    with pytest.raises(BackendError, match="cannot open"):
        sandbox.ensure_open()
    assert not is_used(directory.with_suffix(".use"))


def test_sandbox_that_is_found_gone_is_not_in_use(tmp_path: Path) -> None:
    directory = tmp_path / "sandboxes" / "local" / str(uuid4())
    sandbox = backend.get("local").open(BackendSandboxSpec(working_dir=str(directory)))
    sandbox.closed = True
    assert not is_used(directory.with_suffix(".use"))
