"""Measure every row and print the table: `python -m benchmarks [--small] [--only NAME]`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.endpoint import Endpoint, serve
from benchmarks.machine import CpuClock, adopt_orphans, is_busy
from benchmarks.report import (
    Document,
    append_history,
    default_history,
    document,
    read_history,
    regressions,
)
from benchmarks.sizes import FULL, SMALL, Sizes
from benchmarks.table import Line, Row, render

Measure = Callable[[Endpoint, Sizes], list[Line]]

_PEERS = "peers"
_ROWS = {
    "import": ("benchmarks.startup", "import_lines"),
    "first-answer": ("benchmarks.startup", "first_answer_lines"),
    "command-line": ("benchmarks.startup", "command_line_lines"),
    "turn": ("benchmarks.loop", "turn_lines"),
    "loop": ("benchmarks.loop", "lines"),
    "long-loop": ("benchmarks.loop", "long_lines"),
    "round": ("benchmarks.depth", "lines"),
    "own-round": ("benchmarks.depth", "own_lines"),
    "path": ("benchmarks.path", "lines"),
    "stream": ("benchmarks.stream", "lines"),
    "fanout": ("benchmarks.fanout", "lines"),
    "jobs": ("benchmarks.jobs", "lines"),
    "crowd": ("benchmarks.crowd", "lines"),
    "rows": ("benchmarks.rows", "lines"),
    "tools": ("benchmarks.tools", "lines"),
    "memory": ("benchmarks.memory", "lines"),
    "vectors": ("benchmarks.vectors", "lines"),
    "recording": ("benchmarks.recording", "lines"),
    "stored": ("benchmarks.stored", "lines"),
    "replay": ("benchmarks.replay", "lines"),
    "profiling": ("benchmarks.profiling", "lines"),
    "serving": ("benchmarks.serving", "lines"),
    "listing": ("benchmarks.listing", "lines"),
    "commands": ("benchmarks.commands", "lines"),
    "mcp": ("benchmarks.mcp", "lines"),
    "effects": ("benchmarks.effects", "lines"),
    "workspace": ("benchmarks.workspace", "lines"),
    "explorer": ("benchmarks.explorer", "lines"),
    _PEERS: ("benchmarks.peers.table", "lines"),
}


def main() -> int:
    """Print the table, or the JSON document.

    Returns:
        0, or 1 when a row crashed; a missed target is no error, and slower rows are none.
    """
    options = _parse_options()
    adopt_orphans()
    names = options.only or [name for name in _ROWS if name != _PEERS]
    if options.peers and _PEERS not in names:
        names.append(_PEERS)
    rows, crashed = _measure(names, SMALL if options.small else FULL)
    run = document(rows, "small" if options.small else "full", crashed)
    slower = _compare(run, options.history)
    if options.json:
        print(json.dumps(run | {"regressions": slower}, indent=2))
        return 1 if crashed else 0
    print(f"Python {platform.python_version()} on {platform.system()}, {os.cpu_count()} CPUs")
    busy = [row for row in rows if row.is_busy]
    if busy:
        most = max((row.others or 0.0) for row in busy)
        print(
            f"{len(busy)} of {len(rows)} lines were measured while others took up to {most:.0%} "
            "of the CPUs: no verdict on them."
        )
    if options.small:
        print("Small sizes: the targets are meant for the full ones.")
    print(render(rows))
    for text in slower:
        print(f"slower: {text}")
    for name in crashed:
        print(f"{name}: crashed, see above")
    return 1 if crashed else 0


def _measure(names: Sequence[str], sizes: Sizes) -> tuple[list[Row], list[str]]:
    """Measure one group of lines after another; return them, and the names of those that crashed.

    How busy others keep the machine is told once for a group.
    """
    rows: list[Row] = []
    crashed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rath-benchmarks-") as home, serve() as endpoint:
        os.environ.update(OPENRATH_HOME=home, NO_PROXY="127.0.0.1")
        # As programs are installed: compiled once.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        for name in names:
            print(f"measuring {name} ...", end="", file=sys.stderr, flush=True)
            start, began = CpuClock.read(), time.monotonic()
            try:
                lines = _load(name)(endpoint, sizes)
            except Exception:  # noqa: BLE001  # one broken row must not hide the others
                traceback.print_exc()
                crashed.append(name)
                continue
            end = CpuClock.read()
            others = end.others_since(start) if start and end else None
            notes = [f"{time.monotonic() - began:.0f} s"]
            if is_busy(others):
                notes.append("the machine was busy")
            print(f" {', '.join(notes)}", file=sys.stderr)
            rows += [Row(name, line, others) for line in lines]
    return rows, crashed


def _compare(run: Document, path: Path | None) -> list[str]:
    """Return what is slower than before, and add the run to the history; in CI there is none."""
    if path is None and os.environ.get("CI"):
        return []
    history = path or default_history()
    try:
        slower = regressions(run, read_history(history))
        append_history(history, run)
    except OSError as error:  # the figures are worth more than what they are compared with
        print(f"the history cannot be used: {error}", file=sys.stderr)
        return []
    return slower


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--small", action="store_true", help="sizes for CI")
    parser.add_argument(
        "--only", action="append", choices=list(_ROWS), metavar="NAME", help=", ".join(_ROWS)
    )
    parser.add_argument(
        "--peers", action="store_true", help="install other frameworks, and measure them too"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help="earlier runs, to which this one is compared and added; in the user's cache "
        "by default, and none in CI",
    )
    return parser.parse_args()


def _load(name: str) -> Measure:
    """The measuring function of a row; loaded late, so that its import error stays its own."""
    module, function = _ROWS[name]
    measure: Measure = getattr(importlib.import_module(module), function)
    return measure


if __name__ == "__main__":
    sys.exit(main())
