"""Several threads and processes share a store and lose nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import rath
from rath.memory import MemoryExecutionFailure, MemoryOpFind, MemoryOpWrite, MemoryStore
from rath.memory.adapters.local.index import NoteIndex
from rath.memory.adapters.local.layout import INDEX_NAME

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


def indexed_terms(root: Path) -> dict[str, str]:
    """The terms in the index by the names of the files."""
    with closing(NoteIndex(root / INDEX_NAME)) as index:
        rows = index.rows("SELECT name, terms FROM files JOIN notes ON notes.rowid = files.id")
    return {str(name): str(terms) for name, terms in rows}


def test_processes_that_start_together_lose_nothing(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    environment = {**os.environ, "PYTHONPATH": str(Path(rath.__file__).parents[1])}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, f"p{number}", str(root), str(N_NOTES)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(N_PROCESSES)
    ]
    errors = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0] * N_PROCESSES, errors
    assert errors == [""] * N_PROCESSES
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
