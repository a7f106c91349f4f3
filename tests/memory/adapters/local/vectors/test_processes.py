"""Several processes make and use the vectors of one store, and may be killed at any moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rath
from rath.memory import MemoryFindResult, MemoryOpFind, MemoryStoreSpec
from rath.memory.adapters.local import LocalMemoryBackend
from tests.support.meanings import Meanings

WRITER = """
import sys
from rath.memory import MemoryOpFind, MemoryOpWrite, MemoryStoreSpec
from rath.memory.adapters.local import LocalMemoryBackend
from tests.support.meanings import GROUPS, Meanings

path, name, n_notes = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = LocalMemoryBackend().open(MemoryStoreSpec(options={"path": path, "embedding": Meanings()}))
words = [sorted(group)[0] for group in GROUPS]
for number in range(n_notes):
    text = f"{words[number % len(words)]} {name} {number}"
    store.dispatch(MemoryOpWrite(f"memory://user/{name}/{number}", text, wait=number % 3 == 0))
    if number % 5 == 0:
        assert store.dispatch(MemoryOpFind("kitten")).hits is not None
    print(number, flush=True)
store.backend.close(store)
"""


PATHS = (str(Path(rath.__file__).parents[1]), str(Path(__file__).parents[5]))


def start(root: Path, name: str, n_notes: int) -> subprocess.Popen[str]:
    """Start a process that writes notes and searches them."""
    command = [sys.executable, "-c", WRITER, str(root), name, str(n_notes)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)},
    )


def found(root: Path, query: str, top_k: int) -> tuple[list[str], Meanings]:
    """What a query finds in a store that is opened anew."""
    model = Meanings()
    backend = LocalMemoryBackend()
    store = backend.open(
        MemoryStoreSpec(options={"path": str(root), "embedding": model, "ranking": "vectors"})
    )
    result = store.dispatch(MemoryOpFind(query, top_k=top_k))
    assert isinstance(result, MemoryFindResult)
    backend.close(store)
    return [hit.uri for hit in result.hits], model


def test_processes_share_the_vectors_that_each_of_them_makes(root: Path) -> None:
    started = [start(root, name, 40) for name in ("a", "b")]
    for process in started:
        out, err = process.communicate(timeout=50)
        assert (process.returncode, err) == (0, "")
        assert len(out.split()) == 40
    uris, model = found(root, "feline", 100)
    # Every fourth note of each is about the third of the meanings.
    assert sorted(uris) == sorted(
        f"memory://user/{name}/{number}" for name in ("a", "b") for number in range(2, 40, 4)
    )
    assert len(model.asked) <= 65


@pytest.mark.parametrize("n_written", [3, 11, 26])
def test_a_killed_process_leaves_nothing_wrong(root: Path, n_written: int) -> None:
    process = start(root, "a", 10_000)
    assert process.stdout is not None
    assert process.stderr is not None
    for _ in range(n_written):
        process.stdout.readline()
    process.kill()
    process.wait(timeout=50)
    process.stdout.close()
    process.stderr.close()
    written = len(list((root / "user" / "a").glob("*.md")))
    assert written >= n_written
    uris, _ = found(root, "feline", 10_000)
    assert sorted(uris) == sorted(f"memory://user/a/{number}" for number in range(2, written, 4))


WITHOUT = """
import sys
import rath.flow
from rath.memory import MemoryOpFind, MemoryOpForget, MemoryOpWrite, MemoryStoreSpec
from rath.memory.adapters.local import LocalMemoryBackend

backend = LocalMemoryBackend()
store = backend.open(MemoryStoreSpec(options={"path": sys.argv[1]}))
store.dispatch(MemoryOpWrite("memory://user/a", "tea", wait=True))
assert store.dispatch(MemoryOpFind("tea")).hits
store.dispatch(MemoryOpForget("memory://user/a"))
backend.close(store)
assert "numpy" not in sys.modules
"""


def test_a_store_without_vectors_does_not_load_numpy(root: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}
    subprocess.run([sys.executable, "-c", WITHOUT, str(root)], check=True, timeout=50, env=env)
