"""Processes that are killed in the middle of writes leave a store whole."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import rath
from rath import memory
from rath.memory.adapters.local import LocalMemoryBackend
from rath.memory.adapters.local.catalog import Catalog, RebuildReport, rebuild
from rath.memory.adapters.local.files import STALE_SECONDS
from rath.memory.adapters.local.layout import DRAFTS_NAME
from tests.support.memory_index import kept, rebuilt

N_AT_ONCE = 4
N_ROUNDS = 25 if os.environ.get("RATH_FULL") else 2

WRITER = """
import json, sys
from rath.memory import MemoryOpCommit, MemoryOpWrite, MemoryStoreSpec, get
name, root = sys.argv[1:]
with get("local").open(MemoryStoreSpec(options={"path": root})) as store:
    number = 0
    while True:
        number += 1
        for place, part in ((f"{name}-{number}", f"tea {name}x{number} "),
                            (f"{name}-again", f"milk x{number}x ")):
            result = store.dispatch(MemoryOpWrite(f"memory://user/{place}", part * 500))
            print(json.dumps([result.uri, part]), flush=True)
        said = f"sugar {name}x{number}"
        op = MemoryOpCommit(f"s-{name}", ({"role": "user", "content": said},))
        print(json.dumps([store.dispatch(op).archived_uri + "/messages.json", said]), flush=True)
"""


def killed_writers(root: Path, number: int, chance: random.Random) -> Iterator[tuple[str, str]]:
    """Let several processes write and kill each at some moment; yields where they wrote what.

    A note is what is yielded 500 times over; the last text of each place comes last.
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(rath.__file__).parents[1])}
    with ExitStack() as running:
        writers = [
            running.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", WRITER, f"w{number}n{each}", str(root)],
                    env=environment,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for each in range(N_AT_ONCE)
        ]
        for writer in writers:
            assert writer.stdout is not None
            for _ in range(chance.randrange(1, 15)):
                uri, part = json.loads(writer.stdout.readline())
                yield uri, part
            writer.kill()
            # What was told between the last look and the end; its last line may be torn.
            for line in writer.stdout.read().split("\n")[:-1]:
                uri, part = json.loads(line)
                yield uri, part


def file_of(root: Path, uri: str) -> Path:
    """The file of a note or transcript."""
    place = uri.removeprefix("memory://")
    return root / (place if place.endswith(".json") else f"{place}.md")


def assert_kept(root: Path, told: dict[str, str]) -> None:
    """Everything that was told to be written is there, whole."""
    for uri, part in told.items():
        found = file_of(root, uri).read_text("utf-8")
        if uri.endswith("-again"):
            # A later text may have been on its way; it is whole, too.
            version, last = (int(each.split("x")[1]) for each in (found, part))
            assert version in {last, last + 1}
            assert found == f"milk x{version}x " * 500
        elif uri.endswith(".json"):
            assert json.loads(found)[0]["content"] == part
        else:
            assert found == part * 500


def assert_no_drafts(store: memory.MemoryStore) -> None:
    """No listing and no search shows a file that was on its way."""
    tree = store.dispatch(memory.MemoryOpTree("memory://user"))
    top = store.dispatch(memory.MemoryOpList("memory://session"))
    found = store.dispatch(memory.MemoryOpFind("tea milk sugar", top_k=1000))
    assert isinstance(tree, memory.MemoryListResult)
    assert isinstance(top, memory.MemoryListResult)
    assert isinstance(found, memory.MemoryFindResult)
    uris = [*(each.uri for each in (*tree.entries, *top.entries)), *(hit.uri for hit in found.hits)]
    assert not [uri for uri in uris if "atomic" in uri or "draft" in uri]


@pytest.mark.timeout(30 * N_ROUNDS)
def test_nothing_is_lost_or_torn_when_writers_are_killed(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    chance = random.Random(5)
    backend = LocalMemoryBackend()
    told: dict[str, str] = {}
    for number in range(N_ROUNDS):
        told.update(killed_writers(root, number, chance))
        assert_kept(root, told)
        store = backend.open(memory.MemoryStoreSpec(options={"path": str(root)}))
        assert_no_drafts(store)
        catalog = Catalog(root)
        catalog.catch_up()
        catalog.wait_for_walk()
        catalog.close()
        backend.close(store)
        assert kept(root) == rebuilt(root)
    n_files = len([*root.rglob("*.md"), *root.rglob("messages.json")])
    assert rebuild(root) == RebuildReport(n_files, 0)


def test_what_killed_writers_left_behind_is_removed_later(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    drafts = root / DRAFTS_NAME
    for directory in (drafts, root / "user"):
        directory.mkdir()
        for name in (".atomic_old.tmp", ".atomic_new.tmp", "theirs.txt"):
            (directory / name).write_text("tea")
            if "new" not in name:
                old = time.time() - 2 * STALE_SECONDS
                os.utime(directory / name, (old, old))
    with LocalMemoryBackend().open(memory.MemoryStoreSpec(options={"path": str(root)})) as store:
        store.dispatch(memory.MemoryOpFind("tea"))
    left = sorted(path.relative_to(root).as_posix() for path in root.glob("*/*"))
    assert left == [
        f"{place}/{name}"
        for place in (DRAFTS_NAME, "user")
        for name in (".atomic_new.tmp", "theirs.txt")
    ]
