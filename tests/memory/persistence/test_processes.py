"""Kept memory stores between processes: killed ones, and many at once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from rath import memory
from rath._core.retention import in_trash
from rath.errors import MemoryBackendError
from rath.memory import MemoryOpRead, MemoryReadResult, MemoryStoreSpec
from rath.memory.persistence import PersistentMemoryRegistry, local_memory_root

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
        if process.stdout is not None:
            process.stdout.close()


OPEN = """
    import sys, time
    from rath import memory
    from rath.memory import MemoryOpWrite, MemoryStoreSpec
    from rath.memory.persistence import PersistentMemoryRegistry
    path = PersistentMemoryRegistry().local_path(sys.argv[1])
    store = memory.get("local").open(MemoryStoreSpec(options={"path": str(path)}))
    store.dispatch(MemoryOpWrite("memory://user/memories/a", "kept", wait=True))
    print("ready", flush=True)
    time.sleep(60)
"""


def test_store_of_another_process_is_in_use_until_that_is_killed(spawn: Spawn) -> None:
    registry = PersistentMemoryRegistry()
    store_id = registry.alloc_local_id()
    owner = spawn(OPEN, store_id)
    assert registry.prune_local(older_than=AT_ONCE) == []
    with pytest.raises(MemoryBackendError, match="is in use"):
        registry.delete_local(store_id)
    owner.kill()
    owner.wait()
    assert registry.prune_local(older_than=AT_ONCE) == [store_id]


def test_next_process_finds_the_notes_of_a_killed_one_by_id(spawn: Spawn) -> None:
    registry = PersistentMemoryRegistry()
    store_id = registry.alloc_local_id()
    owner = spawn(OPEN, store_id)
    owner.kill()
    owner.wait()
    spec = MemoryStoreSpec(options={"path": str(registry.local_path(store_id))})
    with memory.get("local").open(spec) as store:
        read = store.dispatch(MemoryOpRead("memory://user/memories/a"))
    assert read == MemoryReadResult("memory://user/memories/a", "kept", "detail")


USE_OFTEN = """
    import sys
    from itertools import count
    from pathlib import Path
    from rath import memory
    from rath.memory import MemoryOpRead, MemoryOpWrite, MemoryReadResult, MemoryStoreSpec
    from rath.memory.persistence import PersistentMemoryRegistry
    registry, backend = PersistentMemoryRegistry(), memory.get("local")
    me, rounds, enough, ids = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
    uri = f"memory://user/memories/{me}"
    print("ready", flush=True)
    for n in count():
        if n >= rounds and enough.exists():
            break
        path = str(registry.local_path(ids[n % len(ids)]))
        store = backend.open(MemoryStoreSpec(options={"path": path}))
        store.dispatch(MemoryOpWrite(uri, str(n)))
        for _ in range(3):
            read = store.dispatch(MemoryOpRead(uri))
            assert isinstance(read, MemoryReadResult) and read.data == str(n), read
        backend.close(store)
    print("kept all", flush=True)
"""


def test_pruning_and_using_at_once_loses_nothing_in_use(spawn: Spawn, tmp_path: Path) -> None:
    registry = PersistentMemoryRegistry()
    ids = [registry.alloc_local_id() for _ in range(2)]
    enough = tmp_path / "enough"
    users = [spawn(USE_OFTEN, name, 40, enough, *ids) for name in ("a", "b")]
    n_pruned = 0
    while any(user.poll() is None for user in users):
        n_pruned += len(registry.prune_local(older_than=AT_ONCE))
        if n_pruned:
            enough.touch()
    assert [user.communicate()[0] for user in users] == ["kept all\n"] * 2
    registry.prune_local(older_than=AT_ONCE)
    assert (registry.list_local(), in_trash(local_memory_root())) == ([], [])
