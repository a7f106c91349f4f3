"""Listing the sessions of a large store: the whole command, and what its index takes of that."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from msgspec import structs

from benchmarks.by_hand import add_tool
from benchmarks.endpoint import Endpoint
from benchmarks.measure import interleave, measure, measure_child
from benchmarks.ours import AddTool, provider
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, Line, Reference
from rath.session import Session, create_system_session, run_session_loop
from rath.session.events import Header
from rath.session.log.format import Encoder
from rath.session.log.index import SessionFilter, StoreIndex
from rath.session.log.reader import read_lines
from rath.session.persistence.store import FileStore

_ROUNDS = 3
_SHOWN = 50

_BY_HAND = """
import json, os, sys
found = []
with os.scandir(sys.argv[1]) as entries:
    for entry in entries:
        if entry.name.endswith(".jsonl"):
            with open(entry.path, "rb") as file:
                header = json.loads(file.readline())
            found.append((header["created_at"], header["id"], header["lineage_operator"]))
found.sort(reverse=True)
for created_at, id, operator in found[:50]:
    print(id[:8], created_at, operator)
"""


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Make a store of many small runs, build its index, and list it."""
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(folder)
        _fill(store.directory, _run(endpoint, store.directory), sizes.stored_sessions)
        first = measure(partial(_refresh, store)).wall
        list_them = [sys.executable, "-m", "rath", "ls", "--store", folder]
        cost = interleave(
            {
                "newest": lambda: measure_child(list_them),
                "all": lambda: measure_child([*list_them, "--all"]),
                "by hand": lambda: measure_child([sys.executable, "-c", _BY_HAND, folder]),
                "index": lambda: measure(partial(_ask, store)),
            },
            repeats=sizes.repeats,
        )
    n = f"{sizes.stored_sessions:,} sessions"
    by_hand = Reference("headers by hand", cost["by hand"].wall)
    return [
        Line(f"ls, {n}", cost["newest"].wall, "s", by_hand, AtMost(0.25)),
        Line(f"ls --all, {n}", cost["all"].wall, "s", by_hand, AtMost(1)),
        Line(f"its index, {n}", cost["index"].wall, "s"),
        Line(f"the index anew, {n}", first, "s", target=AtMost(4)),
    ]


def _run(endpoint: Endpoint, directory: Path) -> Sequence[Any]:
    """Return the lines of a run with a few tool rounds."""
    path = directory / "run.log"
    run_session_loop(
        Session.from_user_message(add_tool.QUESTION),
        create_system_session(add_tool.SYSTEM),
        agent_provider=provider(endpoint.url(f"tools-{_ROUNDS}")),
        tools=[AddTool()],
        persist_path=path,
    ).synchronize()
    data = path.read_bytes()
    path.unlink()
    return read_lines(data, str(path)).lines


def _fill(directory: Path, run: Sequence[Any], n_sessions: int) -> None:
    """Write the log of one run under many ids."""
    for number in range(n_sessions):
        session = uuid4()
        encoder = Encoder(session)
        data = b"".join(encoder.add(line).data for line in _as_of(session, run, number))
        (directory / f"{session}.jsonl").write_bytes(data)


def _as_of(session: UUID, run: Sequence[Any], number: int) -> Iterator[Any]:
    for line in run:
        if isinstance(line, Header):
            at = line.created_at + timedelta(seconds=number)
            yield structs.replace(line, session=session, created_at=at)
        else:
            yield line


def _refresh(store: FileStore) -> None:
    with StoreIndex(store) as index:
        index.refresh()
        assert not index.note, index.note


def _ask(store: FileStore) -> None:
    with StoreIndex(store) as index:
        assert len(index.summaries(SessionFilter(is_said=True, limit=_SHOWN))) == _SHOWN
