"""Measure every row and print the table: `python -m benchmarks [--small] [--only NAME]`."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable

from benchmarks.endpoint import Endpoint, serve
from benchmarks.sizes import FULL, SMALL, Sizes
from benchmarks.table import Line, render

Measure = Callable[[Endpoint, Sizes], list[Line]]

_ROWS = {
    "import": ("benchmarks.startup", "import_lines"),
    "first-answer": ("benchmarks.startup", "first_answer_lines"),
    "loop": ("benchmarks.loop", "lines"),
    "long-loop": ("benchmarks.loop", "long_lines"),
    "round": ("benchmarks.depth", "lines"),
    "path": ("benchmarks.path", "lines"),
    "stream": ("benchmarks.stream", "lines"),
    "fanout": ("benchmarks.fanout", "lines"),
    "rows": ("benchmarks.rows", "lines"),
    "tools": ("benchmarks.tools", "lines"),
    "memory": ("benchmarks.memory", "lines"),
    "vectors": ("benchmarks.vectors", "lines"),
    "recording": ("benchmarks.recording", "lines"),
    "load": ("benchmarks.load", "lines"),
    "replay": ("benchmarks.replay", "lines"),
    "listing": ("benchmarks.listing", "lines"),
    "commands": ("benchmarks.commands", "lines"),
    "mcp": ("benchmarks.mcp", "lines"),
    "effects": ("benchmarks.effects", "lines"),
    "workspace": ("benchmarks.workspace", "lines"),
    "explorer": ("benchmarks.explorer", "lines"),
}


def main() -> int:
    """Print the table.

    Returns:
        0, or 1 when a row crashed; a missed target is no error.
    """
    options = _parse_options()
    sizes = SMALL if options.small else FULL
    lines: list[Line] = []
    crashed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rath-benchmarks-") as home, serve() as endpoint:
        os.environ.update(OPENRATH_HOME=home, NO_PROXY="127.0.0.1")
        for name in options.only or _ROWS:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            try:
                lines += _load(name)(endpoint, sizes)
            except Exception:  # noqa: BLE001  # one broken row must not hide the others
                traceback.print_exc()
                crashed.append(name)
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    print(
        f"Python {platform.python_version()} on {platform.system()}, {cpus} CPUs, load {load:.1f}"
    )
    if load > cpus:
        print("The machine was busy: all times are too long, and walls say little.")
    if options.small:
        print("Small sizes: the targets are meant for the full ones.")
    print(render(lines))
    for name in crashed:
        print(f"{name}: crashed, see above")
    return 1 if crashed else 0


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--small", action="store_true", help="sizes for CI")
    parser.add_argument(
        "--only", action="append", choices=list(_ROWS), metavar="NAME", help=", ".join(_ROWS)
    )
    return parser.parse_args()


def _load(name: str) -> Measure:
    """The measuring function of a row; loaded late, so that its import error stays its own."""
    module, function = _ROWS[name]
    measure: Measure = getattr(importlib.import_module(module), function)
    return measure


if __name__ == "__main__":
    sys.exit(main())
