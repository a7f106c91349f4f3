"""Stored sessions of many rows read back, and a store of them listed: wall time."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.endpoint import Endpoint
from benchmarks.measure import Sample, interleave, measure
from benchmarks.ours import new_home
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, AtMostTimes, Line, Reference
from rath.session import ChunkTable, Session, list_persisted_sessions, load_session, user_text_chunk

_ROWS_A_FILE = 100


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Load one long session, and list many short ones."""
    del endpoint
    return [*_load_lines(sizes), *_list_lines(sizes)]


def _load_lines(sizes: Sizes) -> list[Line]:
    session = _session(sizes.table_rows)
    with tempfile.TemporaryDirectory(prefix="rath-stored-") as folder:
        path = Path(folder, "session.jsonl")
        session.save(path=path)

        def load() -> None:
            assert len(load_session(session.id, path=path).chunk_table) == sizes.table_rows

        def parse() -> None:
            for line in path.read_bytes().splitlines():
                json.loads(line)

        cost = interleave(
            {"ours": lambda: measure(load), "parse": lambda: measure(parse)},
            repeats=sizes.repeats,
        )
    parsed = Reference("json.loads", cost["parse"].wall)
    row = f"load of {sizes.table_rows} rows"
    return [Line(row, cost["ours"].wall, "ms", parsed, AtMostTimes(1.3))]


def _list_lines(sizes: Sizes) -> list[Line]:
    """The first list of files that are there already, and the next one."""
    n_files = sizes.sessions
    sessions = [_session(_ROWS_A_FILE) for _ in range(n_files)]

    def list_them(*, is_first: bool) -> Sample:
        with new_home():
            for session in sessions:
                session.save()
            if not is_first:
                _list(n_files)
            return measure(lambda: _list(n_files))

    cost = interleave(
        {
            "first": lambda: list_them(is_first=True),
            "next": lambda: list_them(is_first=False),
        },
        repeats=sizes.repeats,
    )
    row = f"list of {n_files} files of {_ROWS_A_FILE} rows"
    return [
        Line(f"{row}, the first", cost["first"].wall, "ms", target=AtMost(60)),
        Line(f"{row}, the next", cost["next"].wall, "ms"),
    ]


def _list(n_files: int) -> None:
    found = list_persisted_sessions()
    assert len(found) == n_files, found


def _session(n_rows: int) -> Session:
    rows = (user_text_chunk(f"row {i}: it says what it has to say") for i in range(n_rows))
    return Session(ChunkTable().extend(*rows))
