"""Holds on kept sandboxes: which directories are held, and by what."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from uuid import uuid4

import pytest

from rath import backend
from rath._core.usage_locks import claimed, is_used
from rath.backend import BackendSandboxSpec, BackendToolCommandRun
from rath.backend.workspace import begin_use_of, try_use_of
from rath.errors import BackendError

LONG_AGO = 1_000_000.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of uses that is not there yet, in a directory that is not there either."""
    return tmp_path / "sandboxes" / "local" / f"{uuid4()}.use"


@pytest.mark.parametrize("inside", ["", "project/src"], ids=["itself", "a directory in it"])
def test_directory_of_a_preserved_sandbox_is_held(tmp_path: Path, inside: str) -> None:
    sandbox = tmp_path / "sandboxes" / "local" / str(uuid4())
    hold = begin_use_of(str(sandbox / inside))
    assert hold is not None
    assert is_used(sandbox.with_suffix(".use"))
    hold.end()


def test_preserved_sandbox_is_known_through_links_and_from_elsewhere(
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
    with caplog.at_level(logging.WARNING, "rath._core.persistent_dirs"):
        assert begin_use_of(str(tmp_path / "sandboxes" / "local" / str(uuid4()))) is None
    assert "used without a lock" in caplog.text


def test_sandbox_that_cannot_be_locked_is_not_opened(tmp_path: Path) -> None:
    sandbox = tmp_path / "sandboxes" / "local" / str(uuid4())
    sandbox.with_suffix(".use").mkdir(parents=True)
    with pytest.raises(BackendError, match="cannot be marked as in use"):
        begin_use_of(str(sandbox))


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
