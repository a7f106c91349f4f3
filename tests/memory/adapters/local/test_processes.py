"""Several threads and processes share a store and lose nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import rath
from rath.memory import MemoryExecutionFailure, MemoryOpFind, MemoryOpWrite, MemoryStore
from rath.memory.adapters.local.catalog import rebuild
from rath.memory.adapters.local.index import NoteIndex
from rath.memory.adapters.local.layout import INDEX_NAME
from tests.support.memory_index import kept, rebuilt

N_PROCESSES = 3
N_NOTES = 15

WRITER = """
import sys
from rath.memory import MemoryExecutionFailure, MemoryOpFind, MemoryOpWrite, MemoryStoreSpec, get
backend = get("local")
name, root, n_notes = sys.argv[1], sys.argv[2], int(sys.argv[3])
with backend.open(MemoryStoreSpec(options={"path": root})) as store:
    for number in range(n_notes):
        for op in (
            MemoryOpWrite(f"memory://user/{name}-{number}", f"tea {name}x{number}"),
            MemoryOpWrite("memory://user/shared", f"milk {name}x{number}"),
            MemoryOpFind(f"{name}x{number}"),
        ):
            result = store.dispatch(op)
            assert not isinstance(result, MemoryExecutionFailure), result
        assert result.hits[0].uri in {f"memory://user/{name}-{number}", "memory://user/shared"}
"""

SECONDS = 60.0 if os.environ.get("RATH_FULL") else 2.0

BUSY = """
import sys, time
from rath.memory import (
    MemoryExecutionFailure, MemoryOpCommit, MemoryOpFind, MemoryOpRead, MemoryOpWrite,
    MemoryStoreSpec, get,
)
name, root, others, until = sys.argv[1], sys.argv[2], sys.argv[3].split(","), float(sys.argv[4])

def done(op):
    result = store.dispatch(op)
    assert not isinstance(result, MemoryExecutionFailure), (op, result)
    return result

with get("local").open(MemoryStoreSpec(options={"path": root})) as store:
    number = 0
    while number < 3 or time.time() < until:
        number += 1
        done(MemoryOpWrite(f"memory://user/{name}/{number}", f"tea {name}n{number}"))
        done(MemoryOpWrite(f"memory://user/{name}/now", f"milk {name}v{number} " * 50))
        done(MemoryOpWrite("memory://user/shared", f"sugar {name}s{number} " * 50))
        own = [hit.uri for hit in done(MemoryOpFind(f"{name}n{number}")).hits]
        assert own == [f"memory://user/{name}/{number}"], own
        now = [hit.uri for hit in done(MemoryOpFind(f"{name}v{number}")).hits]
        assert now == [f"memory://user/{name}/now"], now
        assert not done(MemoryOpFind(f"{name}v{number - 1}")).hits
        for other in others:
            for hit in done(MemoryOpFind(f"{other}n1")).hits:
                assert done(MemoryOpRead(hit.uri)).data == f"tea {other}n1"
        if number % 5 == 0:
            done(MemoryOpCommit(f"s-{name}", ({"role": "user", "content": f"{name}c{number}"},)))
            assert len(done(MemoryOpFind(f"{name}c{number}")).hits) == 1
print(number)
"""


def run_all(commands: list[list[str]]) -> list[str]:
    """Run Python programs side by side and return what they wrote; none may fail or warn."""
    environment = {**os.environ, "PYTHONPATH": str(Path(rath.__file__).parents[1])}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    wrote = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0] * len(running), wrote
    assert [errors for _, errors in wrote] == [""] * len(running)
    return [output for output, _ in wrote]


def indexed_terms(root: Path) -> dict[str, str]:
    """The terms in the index by the names of the files."""
    with closing(NoteIndex(root / INDEX_NAME)) as index:
        rows = index.rows("SELECT name, terms FROM files JOIN notes ON notes.rowid = files.id")
    return {str(name): str(terms) for name, terms in rows}


def test_processes_that_start_together_lose_nothing(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    run_all([[WRITER, f"p{number}", str(root), str(N_NOTES)] for number in range(N_PROCESSES)])
    found = indexed_terms(root)
    for process in range(N_PROCESSES):
        for number in range(N_NOTES):
            assert found[f"p{process}-{number}.md"] == f"tea p{process}x{number}"
    assert found["shared.md"] == (root / "user/shared.md").read_text()


def test_threads_lose_nothing(store: MemoryStore, root: Path) -> None:
    def write_and_find(number: int) -> None:
        text = f"tea n{number}"
        for op in (
            MemoryOpWrite(f"memory://user/{number}", text),
            MemoryOpWrite("memory://user/shared", text),
            MemoryOpFind(f"n{number}"),
        ):
            assert not isinstance(store.dispatch(op), MemoryExecutionFailure)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write_and_find, range(40)))
    found = indexed_terms(root)
    assert {found[f"{number}.md"] for number in range(40)} == {f"tea n{n}" for n in range(40)}
    assert found["shared.md"] == (root / "user/shared.md").read_text()


@pytest.mark.timeout(SECONDS + 60)
def test_processes_that_write_and_recall_at_once_find_all_and_lose_nothing(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    names = ["pa", "pb", "pc", "pd"]
    until = str(time.time() + SECONDS)
    commands = [[BUSY, name, str(root), ",".join(names), until] for name in names]
    for name, n_written in zip(names, map(int, run_all(commands)), strict=True):
        for number in range(1, n_written + 1):
            assert (root / f"user/{name}/{number}.md").read_text() == f"tea {name}n{number}"
        assert (root / f"user/{name}/now.md").read_text() == f"milk {name}v{n_written} " * 50
    # Whoever came last: no mixture of two texts.
    assert len(set((root / "user/shared.md").read_text().split())) == 2
    assert rebuild(root).n_wrong == 0
    assert kept(root) == rebuilt(root)
