"""Frozen files of directories of this host."""

from __future__ import annotations

import asyncio
import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rath._core.retention import remove_tree
from rath.backend import (
    BackendError,
    BackendSandbox,
    BackendToolCommandRun,
    BackendToolFilesWrite,
    ToolExecutionFailure,
)
from rath.backend.changes import FileState
from rath.backend.host.paths import MAX_DEPTH
from rath.backend.host.snapshots import HostSnapshot
from rath.backend.local import LocalBackend
from rath.backend.snapshots import Seed
from tests.support.workspaces import (
    begun,
    content_of,
    fork_directories,
    forked,
    has,
    opened,
    put,
    sh,
    text_of,
    wait_for,
    wait_until_removed,
)

FILE = 0o100644
LINK = 0o120777


@pytest.fixture
def second(workspace: Path) -> BackendSandbox:
    return opened(LocalBackend(), workspace)


def test_it_keeps_the_files_of_its_moment(sandbox: BackendSandbox) -> None:
    put(sandbox, "a", "one")
    frozen = sandbox.freeze()
    put(sandbox, "a", "two")
    sh(sandbox, "echo three > a; echo new > b")
    assert wait_for(lambda: frozen.aread("a")) == b"one"
    assert list(wait_for(frozen.amanifest)) == ["a"]


def test_a_copy_goes_with_its_last_holder(sandbox: BackendSandbox) -> None:
    frozen = sandbox.freeze()
    put(sandbox, "a", "one")
    assert len(fork_directories()) == 1
    del frozen
    gc.collect()
    wait_until_removed()


def test_another_sandbox_on_the_same_directory_secures_it_too(
    sandbox: BackendSandbox, second: BackendSandbox
) -> None:
    put(sandbox, "a", "one")
    frozen = sandbox.freeze()
    put(second, "a", "two")
    assert wait_for(lambda: frozen.aread("a")) == b"one"


def test_a_sandbox_below_or_above_secures_it_too(sandbox: BackendSandbox, workspace: Path) -> None:
    put(sandbox, "below/a", "one")
    inner = opened(LocalBackend(), workspace / "below")
    whole = sandbox.freeze()
    put(inner, "a", "two")
    part = inner.freeze()
    put(sandbox, "below/a", "three")
    assert wait_for(lambda: whole.aread("below/a")) == b"one"
    assert wait_for(lambda: part.aread("a")) == b"two"


def test_what_runs_when_it_is_frozen_belongs_to_it(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    os.mkfifo(workspace / "gate")
    with ThreadPoolExecutor() as pool:
        line = "echo begun > a; cat gate; echo ended > a"
        running = pool.submit(sandbox.dispatch, BackendToolCommandRun(line))
        while not has(sandbox, "a"):
            pass
        frozen = sandbox.freeze()
        reading = pool.submit(content_of, frozen, "a")
        writing = pool.submit(put, sandbox, "a", "later")
        (workspace / "gate").write_bytes(b"")
        running.result()
        writing.result()
        assert reading.result() == b"ended\n"
        assert content_of(frozen, "a") == b"ended\n"


def test_what_runs_in_the_background_changes_nothing_later(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    os.mkfifo(workspace / "gate")
    put(sandbox, "a", "one")
    line = "setsid -f sh -c 'touch begun; cat gate; echo later > a; touch done' >/dev/null 2>&1"
    sh(sandbox, f"{line}; while ! test -e begun; do :; done")
    frozen = sandbox.freeze()
    while not fork_directories():
        pass
    assert isinstance(frozen, HostSnapshot)
    wait_for(frozen.asecure)
    (workspace / "gate").write_bytes(b"")
    while not has(sandbox, "done"):
        pass
    assert content_of(frozen, "a") == b"one"
    assert text_of(sandbox, "a") == "later\n"


def test_the_manifest_has_digests_sizes_and_modes(sandbox: BackendSandbox) -> None:
    put(sandbox, "a", "")
    sh(sandbox, "mkdir .git; touch .git/x; ln -s nowhere link; chmod 755 a; rm -rf .git")
    manifest = wait_for(sandbox.freeze().amanifest)
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert manifest["a"] == FileState(empty, 0, 0o100755)
    assert set(manifest) == {"a", "link"}
    assert manifest["link"].mode == LINK


def test_the_directory_of_a_closed_sandbox_goes_though_its_files_are_held() -> None:
    sandbox = opened(LocalBackend())
    put(sandbox, "a", "one")
    frozen = sandbox.freeze()
    root = sandbox.handle
    sandbox.backend.close(sandbox)
    assert not os.path.exists(root)
    assert content_of(frozen, "a") == b"one"


def test_a_directory_that_was_not_opened_yet_can_be_frozen(workspace: Path) -> None:
    (workspace / "a").write_text("one")
    backend = LocalBackend()
    unopened = opened(backend, workspace)
    backend.close(unopened)
    lazy = backend.lazy(unopened.spec)
    frozen = lazy.freeze()
    put(lazy, "a", "two")
    assert content_of(frozen, "a") == b"one"


def test_a_directory_that_is_not_there_yet_is_frozen_as_empty(workspace: Path) -> None:
    backend = LocalBackend()
    lazy = backend.lazy(opened(backend, workspace / "new").spec)
    (workspace / "new").rmdir()
    frozen = lazy.freeze()
    put(lazy, "a", "one")
    assert wait_for(frozen.amanifest) == {}


def test_a_new_workspace_is_frozen_as_empty() -> None:
    lazy = LocalBackend().lazy().acquire()
    frozen = lazy.freeze()
    assert lazy.freeze() is frozen
    put(lazy, "a", "one")
    assert wait_for(frozen.amanifest) == {}
    assert lazy.freeze().base_with(frozen) is frozen


def test_the_origin_of_an_unopened_fork_is_asked_once(sandbox: BackendSandbox) -> None:
    asked: list[int] = []
    frozen = sandbox.freeze()

    async def origin() -> Seed:
        asked.append(1)
        return Seed(frozen)

    fork = sandbox.backend.lazy(origin=origin).acquire()
    kept = fork.freeze()
    assert wait_for(kept.amanifest) == {}
    put(fork, "a", "one")
    assert wait_for(kept.amanifest) == {}
    assert len(asked) == 1


def test_forks_have_in_common_what_they_began_with(sandbox: BackendSandbox) -> None:
    base = sandbox.freeze()
    left, right = forked(sandbox), forked(sandbox)
    put(left, "a", "left")
    put(right, "a", "right")
    put(sandbox, "a", "own")
    assert left.freeze().base_with(right.freeze()) is base
    assert left.freeze().base_with(sandbox.freeze()) is base
    below = forked(left)
    born = left.freeze()
    put(below, "b", "below")
    put(left, "b", "left")
    assert below.freeze().base_with(left.freeze()) is born
    assert below.freeze().base_with(right.freeze()) is base


def test_forks_of_an_unopened_fork_have_its_beginning_in_common(sandbox: BackendSandbox) -> None:
    fork = forked(sandbox)
    beginning = fork.freeze()
    below = begun(sandbox.backend, beginning)
    put(fork, "a", "one")
    put(below, "a", "two")
    assert below.freeze().base_with(fork.freeze()) is beginning


def test_a_fork_that_was_frozen_before_it_was_opened_knows_its_parent(
    sandbox: BackendSandbox,
) -> None:
    base = sandbox.freeze()
    fork = forked(sandbox)
    fork.freeze()
    put(fork, "a", "one")
    put(sandbox, "a", "two")
    assert fork.freeze().base_with(sandbox.freeze()) is base


def test_a_copy_that_fails_stops_the_write(sandbox: BackendSandbox, workspace: Path) -> None:
    deep = workspace.joinpath(*["d"] * (MAX_DEPTH + 1))
    deep.mkdir(parents=True)
    frozen = sandbox.freeze()
    result = sandbox.dispatch(BackendToolFilesWrite("a", "one"))
    assert isinstance(result, ToolExecutionFailure)
    assert result.kind == "workspace_copy_failed"
    assert "nothing was done" in result.message
    assert not has(sandbox, "a")
    assert fork_directories() == set()
    deep.rmdir()
    put(sandbox, "a", "one")
    assert wait_for(frozen.amanifest) == {}


def test_a_copy_that_fails_stops_nobody_when_it_is_not_held(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    workspace.joinpath(*["d"] * (MAX_DEPTH + 1)).mkdir(parents=True)
    frozen = sandbox.freeze()
    assert isinstance(sandbox.dispatch(BackendToolFilesWrite("a", "one")), ToolExecutionFailure)
    del frozen
    put(sandbox, "a", "one")


def test_without_a_place_for_copies_nothing_is_written(
    sandbox: BackendSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(sandbox, "a", "one")
    frozen = sandbox.freeze()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "sandboxes").write_text("no directory")
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "home"))
    result = sandbox.dispatch(BackendToolFilesWrite("a", "two"))
    assert isinstance(result, ToolExecutionFailure)
    assert result.kind == "workspace_copy_failed"
    assert text_of(sandbox, "a") == "one"
    with pytest.raises(BackendError, match="a copy of a workspace cannot be opened"):
        begun(sandbox.backend, frozen).ensure_open()


def test_closing_keeps_what_cannot_be_copied() -> None:
    sandbox = opened(LocalBackend())
    deep = Path(sandbox.handle).joinpath(*["d"] * (MAX_DEPTH + 1))
    deep.mkdir(parents=True)
    frozen = sandbox.freeze()
    with pytest.raises(BackendError, match="its files stay"):
        sandbox.backend.close(sandbox)
    assert deep.is_dir()
    del frozen
    remove_tree(Path(sandbox.handle))


def test_files_that_cannot_be_reported_apart_are_named(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    workspace.joinpath(*["d"] * (MAX_DEPTH + 2)).mkdir(parents=True)
    frozen = sandbox.freeze()
    with pytest.raises(BackendError, match="not all can be looked at"):
        wait_for(frozen.amanifest)


def test_a_writer_that_is_cancelled_leaves_the_copy_to_others(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    put(sandbox, "a", "one")
    frozen = sandbox.freeze()

    async def cancel_one() -> None:
        task = asyncio.ensure_future(sandbox.adispatch(BackendToolFilesWrite("a", "two")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    wait_for(cancel_one)
    put(sandbox, "a", "three")
    assert content_of(frozen, "a") == b"one"
    assert len(fork_directories()) == 1
