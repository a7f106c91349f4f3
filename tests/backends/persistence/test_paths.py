"""Where kept sandboxes are, and what may become part of a path."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from rath.backend.persistence import paths
from rath.backend.persistence.paths import (
    ensure_forks_root,
    ensure_local_root,
    ensure_opensandbox_root,
    fork_dir,
    forks_root,
    local_root,
    local_sandbox_dir,
    opensandbox_index_path,
    opensandbox_root,
    sandboxes_dir,
)
from rath.config.paths import resolve_config_dir
from rath.errors import BackendError

ID = UUID("0f0f0f0f-0000-4000-8000-000000000001")
ROOTS = [
    pytest.param(ensure_local_root, local_root, id="local"),
    pytest.param(ensure_opensandbox_root, opensandbox_root, id="remote"),
    pytest.param(ensure_forks_root, forks_root, id="forks"),
]
OF_AN_ID = [local_sandbox_dir, opensandbox_index_path, fork_dir]


def test_documented_layout() -> None:
    home = resolve_config_dir()
    assert sandboxes_dir() == home / "sandboxes"
    assert local_sandbox_dir(ID) == home / "sandboxes" / "local" / str(ID)
    assert opensandbox_index_path(ID) == home / "sandboxes" / "opensandbox" / f"{ID}.json"
    assert fork_dir(ID) == home / "sandboxes" / "forks" / str(ID)
    assert not home.exists()


def test_all_documented_names_are_there() -> None:
    assert [name for name in paths.__all__ if not hasattr(paths, name)] == []


@pytest.mark.parametrize("path_of", OF_AN_ID)
@pytest.mark.parametrize("bad", ["", "..", "../../etc", "/etc/passwd", "notes", f"{ID}/.."])
def test_nothing_but_a_uuid_becomes_a_path(path_of: Callable[[str], Path], bad: str) -> None:
    with pytest.raises(ValueError, match="expected a UUID"):
        path_of(bad)


@pytest.mark.parametrize("path_of", OF_AN_ID)
@pytest.mark.parametrize("spelt", [str(ID).upper(), ID.hex, f"{{{ID}}}", f"urn:uuid:{ID}"])
def test_every_spelling_of_an_id_is_one_path(
    path_of: Callable[[UUID | str], Path], spelt: str
) -> None:
    assert path_of(spelt) == path_of(ID)


@pytest.mark.parametrize(("ensure", "root"), ROOTS)
def test_roots_are_private(ensure: Callable[[], Path], root: Callable[[], Path]) -> None:
    assert ensure() == ensure() == root()
    for directory in (root(), sandboxes_dir(), resolve_config_dir()):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_root_that_cannot_be_made_says_what_to_do() -> None:
    sandboxes_dir().parent.mkdir()
    sandboxes_dir().touch()
    with pytest.raises(BackendError, match="name another one in OPENRATH_HOME"):
        ensure_local_root()
