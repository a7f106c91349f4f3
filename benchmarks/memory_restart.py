"""A fresh process that recalls from a store: its times and memory, as JSON on standard output."""

from __future__ import annotations

import json
import statistics
import sys
import time

from benchmarks.machine import status_of
from benchmarks.notes import queries
from rath.memory import MemoryOpFind, MemoryStoreSpec
from rath.memory.adapters.local import LocalMemoryBackend


def main(folder: str) -> None:
    """Open the store in `folder` and recall each query of the set."""
    before = _resident_kilobytes()
    start = time.perf_counter()
    times: list[float] = []
    spec = MemoryStoreSpec(options={"path": folder})
    with LocalMemoryBackend().open(spec) as store:
        for query in queries():
            store.dispatch(MemoryOpFind(query, top_k=4))
            times.append(time.perf_counter() - start)
            start = time.perf_counter()
        grown = _resident_kilobytes() - before
    print(
        json.dumps(
            {
                "first": times[0],
                "median": statistics.median(times),
                "megabytes": grown / 1e3,
            }
        )
    )


def _resident_kilobytes() -> int:
    """What the process holds in memory; 0 where the system does not tell it in this way."""
    try:
        return status_of()["VmRSS"]
    except OSError:
        return 0


if __name__ == "__main__":
    main(sys.argv[1])
