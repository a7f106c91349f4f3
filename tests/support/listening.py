"""The addresses on which a process and those that it started listen; Linux only."""

from __future__ import annotations

import os
from pathlib import Path


def process_tree(pid: int) -> set[int]:
    """A process and all that descend from it."""
    tree = {pid}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            tree |= process_tree(int(child))
    return tree


def listening(pids: set[int]) -> set[str]:
    """The hexadecimal addresses on which they listen for TCP."""
    found: set[str] = set()
    for pid in pids:
        links = (os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir())
        sockets = {link[8:-1] for link in links if link.startswith("socket:[")}
        for table in ("tcp", "tcp6"):
            rows = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
            for row in map(str.split, rows):
                if row[3] == "0A" and row[9] in sockets:
                    found.add(row[1].partition(":")[0])
    return found


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same mapped into IPv6, and ::1."""
