"""Kept sandboxes between processes: killed ones, and many at once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from rath import backend
from rath._core.retention import in_trash
from rath._core.usage_locks import is_used, use_file
from rath.backend import BackendSandboxSpec, BackendToolFilesRead, FileContent
from rath.backend.persistence import PersistentSandboxRegistry, prune_forks
from rath.backend.persistence.paths import fork_dir, local_root
from rath.errors import BackendError

AT_ONCE = timedelta()
Process = subprocess.Popen[str]
Spawn = Callable[..., Process]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start a program in a process of its own, and give it once it has printed a line."""
    running: list[Process] = []

    def start(body: str, *args: object) -> Process:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(body), *map(str, args)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


OPEN = """
    import sys, time
    from rath import backend
    from rath.backend import BackendSandboxSpec, BackendToolFilesWrite
    from rath.backend.persistence import PersistentSandboxRegistry
    path = PersistentSandboxRegistry().local_path(sys.argv[1])
    sandbox = backend.get("local").open(BackendSandboxSpec(working_dir=str(path)))
    sandbox.dispatch(BackendToolFilesWrite("note", "kept"))
    print("ready", flush=True)
    time.sleep(60)
"""


def test_workspace_of_another_process_is_in_use_until_that_is_killed(spawn: Spawn) -> None:
    registry = PersistentSandboxRegistry()
    sandbox_id = registry.alloc_local_id()
    owner = spawn(OPEN, sandbox_id)
    assert registry.prune_local(older_than=AT_ONCE) == []
    with pytest.raises(BackendError, match="is in use"):
        registry.delete_local(sandbox_id)
    owner.kill()
    owner.wait()
    assert registry.prune_local(older_than=AT_ONCE) == [sandbox_id]


def test_next_process_finds_the_files_of_a_killed_one_by_id(spawn: Spawn) -> None:
    registry = PersistentSandboxRegistry()
    sandbox_id = registry.alloc_local_id()
    owner = spawn(OPEN, sandbox_id)
    owner.kill()
    owner.wait()
    spec = BackendSandboxSpec(working_dir=str(registry.local_path(sandbox_id)))
    sandbox = backend.get("local").open(spec)
    assert sandbox.dispatch(BackendToolFilesRead("note")) == FileContent("kept")
    assert registry.prune_local(older_than=AT_ONCE) == []
    backend.get("local").close(sandbox)


def test_program_that_just_ends_keeps_the_time_of_its_use(spawn: Spawn) -> None:
    registry = PersistentSandboxRegistry()
    sandbox_id = registry.alloc_local_id()
    file = use_file(registry.local_path(sandbox_id))
    owner = spawn(OPEN.replace("time.sleep(60)", "sys.stdin.read()"), sandbox_id)
    os.utime(file, (1.0, 1.0))
    assert owner.stdin is not None
    owner.stdin.close()
    assert owner.wait() == 0
    assert registry.prune_local(older_than=timedelta(days=1)) == []
    assert not is_used(file)


def test_remote_sandbox_is_attached_to_until_its_process_is_killed(spawn: Spawn) -> None:
    registry = PersistentSandboxRegistry()
    sandbox_id = registry.record_remote("far", "c-1")
    body = """
        import sys, time
        from rath import backend
        from rath.backend import BackendSandbox
        from rath.backend.persistence import PersistentSandboxRegistry
        from rath.testing import FakeBackend

        @backend.register("far")
        class Far(FakeBackend):
            def attach(self, remote_id, *, spec=None):
                return self.open(spec)

        sandbox = PersistentSandboxRegistry().reattach_remote(sys.argv[1])
        print("ready", flush=True)
        time.sleep(60)
    """
    owner = spawn(body, sandbox_id)
    assert registry.prune_remote(older_than=AT_ONCE) == []
    owner.kill()
    owner.wait()
    assert registry.prune_remote(older_than=AT_ONCE) == [sandbox_id]


def test_forks_of_a_killed_process_are_removed(spawn: Spawn) -> None:
    body = """
        import sys, time
        from rath._core.files import FileLock
        lock = FileLock(sys.argv[1])
        assert lock.acquire()
        print("ready", flush=True)
        time.sleep(60)
    """
    fork_id = UUID(int=1)
    fork_dir(fork_id).mkdir(parents=True)
    owner = spawn(body, fork_dir(fork_id) / "lock")
    assert prune_forks() == []
    owner.kill()
    owner.wait()
    assert prune_forks() == [fork_id]


USE_OFTEN = """
    import sys
    from itertools import count
    from pathlib import Path
    from rath.backend.persistence import PersistentSandboxRegistry
    from rath.backend.workspace import begin_use_of
    registry = PersistentSandboxRegistry()
    me, rounds, enough, ids = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
    print("ready", flush=True)
    for n in count():
        if n >= rounds and enough.exists():
            break
        path = registry.local_path(ids[n % len(ids)])
        use = begin_use_of(str(path))
        path.mkdir(exist_ok=True)
        (path / me).write_text(str(n))
        for _ in range(3):
            assert (path / me).read_text() == str(n), "removed while in use"
        use.end()
    print("kept all", flush=True)
"""


def test_pruning_and_using_at_once_loses_nothing_in_use(spawn: Spawn, tmp_path: Path) -> None:
    registry = PersistentSandboxRegistry()
    ids = [registry.alloc_local_id() for _ in range(2)]
    enough = tmp_path / "enough"
    users = [spawn(USE_OFTEN, name, 300, enough, *ids) for name in ("a", "b")]
    n_pruned = 0
    while any(user.poll() is None for user in users):
        n_pruned += len(registry.prune_local(older_than=AT_ONCE))
        if n_pruned:
            enough.touch()
    assert [user.communicate()[0] for user in users] == ["kept all\n"] * 2
    registry.prune_local(older_than=AT_ONCE)
    assert (registry.list_local(), in_trash(local_root())) == ([], [])


PRUNE_OFTEN = """
    import sys
    from datetime import timedelta
    from rath.backend.persistence import PersistentSandboxRegistry
    registry = PersistentSandboxRegistry()
    print("ready", flush=True)
    for _ in range(int(sys.argv[1])):
        for pruned in registry.prune_local(older_than=timedelta()):
            print(pruned, flush=True)
"""


def test_two_that_prune_at_once_remove_each_workspace_once(spawn: Spawn) -> None:
    registry = PersistentSandboxRegistry()
    ids = [registry.alloc_local_id() for _ in range(100)]
    others = [spawn(PRUNE_OFTEN, 3) for _ in range(2)]
    pruned = [str(each) for each in registry.prune_local(older_than=AT_ONCE)]
    for other in others:
        pruned += other.communicate()[0].split()
        assert other.returncode == 0
    assert sorted(pruned) == sorted(map(str, ids))
    assert registry.list_local() == []
