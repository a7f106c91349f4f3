"""A fresh process that recalls from a store: its times and memory, as JSON on standard output."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from benchmarks.notes import queries
from rath.memory import MemoryOpFind, MemoryStoreSpec
from rath.memory.adapters.local import LocalMemoryBackend

_MEGABYTE = 1_000_000


def main(folder: str) -> None:
    """Open the store in `folder` and recall each query of the set."""
    before = _resident_bytes()
    start = time.perf_counter()
    times: list[float] = []
    spec = MemoryStoreSpec(options={"path": folder})
    with LocalMemoryBackend().open(spec) as store:
        for query in queries():
            store.dispatch(MemoryOpFind(query, top_k=4))
            times.append(time.perf_counter() - start)
            start = time.perf_counter()
        grown = _resident_bytes() - before
    print(
        json.dumps(
            {
                "first": times[0],
                "median": statistics.median(times),
                "megabytes": grown / _MEGABYTE,
            }
        )
    )


def _resident_bytes() -> int:
    """What the process holds in memory; 0 where the system does not tell it in this way."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    lines = status.read_text(encoding="ascii").splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith("VmRSS"))
    return int(kilobytes) * 1024


if __name__ == "__main__":
    main(sys.argv[1])
