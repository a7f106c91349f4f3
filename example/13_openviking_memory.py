"""13: memory on a server of OpenViking: one that runs, or one that this program starts."""

from __future__ import annotations

import tempfile
from pathlib import Path

from _shared import memory_server_from_env
from rath import memory
from rath.memory import (
    MemoryFindResult,
    MemoryOpFind,
    MemoryOpRead,
    MemoryOpWrite,
    MemoryReadResult,
    MemoryWriteResult,
)
from rath.memory.notes import note_op


def remember_and_recall(store: memory.MemoryStore) -> None:
    # A waited write is found from then on: its vectors are made.
    store.dispatch(note_op("The heron waits at the pond.", category="places", wait=True))
    uri = "memory://user/memories/places/quarry"
    written = store.dispatch(MemoryOpWrite(uri, "Swallows nest in the quarry.", wait=True))
    assert isinstance(written, MemoryWriteResult)
    print("written to", written.uri)
    read = store.dispatch(MemoryOpRead(uri))
    assert isinstance(read, MemoryReadResult)
    print("read there:", read.data)

    found = store.dispatch(MemoryOpFind("where does the heron wait", top_k=3))
    assert isinstance(found, MemoryFindResult)
    for hit in found.hits:
        print(f"found, score {hit.score:.2f}: {hit.snippet} ({hit.level}, {hit.uri})")


def main() -> None:
    if not memory.is_available("openviking"):
        print("skipped: the SDK is missing; `uv sync --extra openviking` installs it")
        return
    with (
        tempfile.TemporaryDirectory() as directory,
        memory_server_from_env(Path(directory)) as spec,
    ):
        if spec is None:
            return
        backend = memory.get("openviking")
        store = backend.open(spec)
        try:
            remember_and_recall(store)
        finally:
            backend.close(store)


if __name__ == "__main__":
    main()
