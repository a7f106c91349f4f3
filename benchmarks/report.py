"""A run of the table as one JSON document, a history of such, and what became slower since."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.measure import Runs
from benchmarks.table import AtLeast, Row, describe_target

Document = dict[str, Any]

_ROOT = Path(__file__).parents[1]
_WORSE = 1.1
"""Times that a figure may grow from one commit to another."""


def cache_folder() -> Path:
    """Return the folder of the benchmarks in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "openrath-benchmarks")


def default_history() -> Path:
    """Return the file in which all runs on this machine stand."""
    return cache_folder() / "history.jsonl"


def document(rows: Sequence[Row], sizes: str, crashed: Sequence[str]) -> Document:
    """Return the run as JSON data."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": describe_machine(),
        "sizes": sizes,
        "rows": [_encode(row) for row in rows],
        "crashed": list(crashed),
    }


def read_history(path: Path) -> list[Document]:
    """Return the runs in a file, oldest first; a line that was cut off is left out."""
    runs: list[Document] = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):
            runs.append(json.loads(line))
    return runs


def append_history(path: Path, run: Document) -> None:
    """Add a run to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(run) + "\n")


def regressions(run: Document, history: Sequence[Document]) -> list[str]:
    """Return a text for each row that is worse by more than 10 % than at the last other commit.

    Runs on the same machine with the same sizes count, each row where it was measured last. The
    ratio is compared where there is one. What was measured on a busy machine is not compared.
    """
    earlier: dict[tuple[str, ...], tuple[str, Document]] = {}
    for old in history:
        if (old["machine"], old["sizes"]) != (run["machine"], run["sizes"]):
            continue
        if old["commit"] != run["commit"]:
            earlier |= {_key(row): (old["commit"], row) for row in old["rows"] if not row["busy"]}
    return list(_worse_rows(run, earlier))


def _worse_rows(
    run: Document, earlier: dict[tuple[str, ...], tuple[str, Document]]
) -> Iterator[str]:
    for row in run["rows"]:
        if row["busy"] or _key(row) not in earlier:
            continue
        commit, old = earlier[_key(row)]
        measure = "value" if row["ratio"] is None or old["ratio"] is None else "ratio"
        before, now = old[measure], row[measure]
        worse, better = (before, now) if row["more_is_better"] else (now, before)
        if better > 0 and worse > better * _WORSE:
            unit = row["unit"] if measure == "value" else f"of {row['reference']['name']}"
            yield (
                f"{row['row']}: {before:.4g} -> {now:.4g} {unit} "
                f"({now / before - 1:+.0%} since {commit})"
            )


def _encode(row: Row) -> Document:
    line, theirs, ratio = row.line, row.line.reference_value, row.line.ratio
    shown = line.value if ratio is None else ratio
    return {
        "name": row.name,
        "row": line.row,
        "value": line.value.median,
        "unit": line.unit,
        "reference": _encode_reference(line.reference.name, theirs)
        if line.reference is not None and theirs is not None
        else None,
        "ratio": None if ratio is None else ratio.median,
        "spread": list(shown.spread),
        "repeats": len(shown.values),
        "target": describe_target(line) or None,
        "verdict": row.verdict or None,
        "busy": row.is_busy,
        "others": row.others,
        "more_is_better": isinstance(line.target, AtLeast),
    }


def _encode_reference(name: str, value: Runs) -> Document:
    return {"name": name, "value": value.median}


def _key(row: Document) -> tuple[str, ...]:
    reference = row["reference"]
    return row["name"], row["row"], row["unit"], reference["name"] if reference else ""


def _commit() -> str:
    """Return the commit that is checked out, with a mark when files differ from it."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return f"{head}+changes" if _git("status", "--porcelain") else head
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=_ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
