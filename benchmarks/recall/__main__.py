"""Print the table of recall at four: `python -m benchmarks.recall [--markdown FILE]`."""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from pathlib import Path

from benchmarks.recall.table import markdown, measure

_TABLE = re.compile(r"^\| queries \|.*\n(?:\|.*\n)+", re.MULTILINE)


def main() -> None:
    """Print the table, or put it in the place of the one in a page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall", description=__doc__)
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="a page with such a table")
    page: Path | None = parser.parse_args().markdown
    with tempfile.TemporaryDirectory(prefix="rath-recall-") as home:
        os.environ["OPENRATH_HOME"] = home
        table = markdown(measure())
    if page is None:
        print(table, end="")
        return
    text, n_tables = _TABLE.subn(lambda _: table, page.read_text(encoding="utf-8"))
    if n_tables != 1:
        parser.error(f"{page} has {n_tables} tables that begin with '| queries |'; expected one")
    page.write_text(text, encoding="utf-8")


main()
