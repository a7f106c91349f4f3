"""Write the golden corpus: `python -m tests.golden.write_corpus [--outputs [GROUP ...]]`.

Without `--outputs` the programs of `scenarios` run. Their sessions, and logs of them that were cut
off, become the archives that `tests/data/golden` has not yet, with their outputs; an archive that
is there stays as the code of its day wrote it. With `--outputs` only what is expected of these
groups, or of all, is written anew. The group `postgres` needs a PostgreSQL server on this machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.golden.corpus import (
    PARTIAL,
    POSTGRES,
    Files,
    Group,
    content,
    group_outputs,
    groups,
    import_bundles,
    is_packed,
    is_told_fully,
    kinds_in,
    log_id,
    pack,
    postgres_outputs,
    targets_in,
    unpack,
    write_expected,
)
from tests.golden.scenarios import CUT, SCENARIOS
from tests.support.postgres_server import running_postgres

ROOT = Path(__file__).parents[2]
_STEP_SECONDS = 120


def main(args: list[str]) -> None:
    """Write what the command line names."""
    wanted = [arg for arg in args if not arg.startswith("-")]
    is_outputs = "--outputs" in args
    if set(args) - {*wanted, "--outputs"} or (wanted and not is_outputs):
        sys.exit(__doc__)
    written = (wanted or [*groups(), POSTGRES]) if is_outputs else _write_archives()
    for group in written:
        _write_outputs(group)


def _write_outputs(group: str) -> None:
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        stores = unpack(group, Path(folder))
        if group == POSTGRES:
            with running_postgres() as server:
                outputs = postgres_outputs(stores, server.url)
        else:
            outputs = import_bundles(stores)
            outputs |= group_outputs(stores, full=is_told_fully(group))
    write_expected(group, outputs)
    sys.stdout.write(f"{group}: {len(outputs)} outputs of {len(stores)} stores\n")


def _write_archives() -> list[str]:
    """Run the programs of the groups that have no archive, and return these groups."""
    written: list[str] = []
    for group, scenarios in SCENARIOS.items():
        if is_packed(group):
            continue
        with tempfile.TemporaryDirectory(prefix="golden-") as folder:
            stores = {name: _run(Path(folder), group, name) for name in scenarios}
        whole: Group = {name: (files, targets_in(files)) for name, files in stores.items()}
        cut = {
            f"{name}-{point}": (left, [session])
            for name in CUT
            if name in stores
            for point, left, session in _cut_off(stores[name])
        }
        for made, archive in ((group, whole), (f"cut-{group}", cut)):
            if archive:
                pack(made, archive)
                written.append(made)
    return written


def _run(folder: Path, group: str, name: str) -> Files:
    """Run the steps of a scenario, and return what it stored."""
    place = folder / name
    work = place / "work"
    work.mkdir(parents=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith("OPEN")}
    env |= {
        "OPENRATH_HOME": str(place),
        "OPENRATH_PERSIST": "1",
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
    }
    for number in range(len(SCENARIOS[group][name])):
        step = [sys.executable, "-m", "tests.golden.scenarios", group, name, str(number)]
        done = subprocess.run(
            step, cwd=work, env=env, capture_output=True, timeout=_STEP_SECONDS, check=False
        )
        if done.returncode != 0:
            sys.exit(f"{group} {name} {number} has failed:\n{done.stderr.decode()}")
    return content(place / "sessions")


def _cut_off(files: Files) -> Iterator[tuple[str, Files, str]]:
    """Yield a store for each kind of line after which its richest log may have been cut off.

    Nothing of it is left that came later, and every third of these ends in the middle of a line.
    """
    path = max((each for each in files if log_id(each)), key=lambda each: _n_kinds(files[each]))
    session = log_id(path)
    assert session is not None
    lines = files[path].splitlines(keepends=True)
    kinds = kinds_in(files[path])
    for number, kind in enumerate(dict.fromkeys(kinds[:-1])):
        at = kinds.index(kind)
        torn = lines[at + 1][: len(lines[at + 1]) // 2] if number % 3 == 2 else b""
        left = {name: data for name, data in files.items() if session.encode() not in data}
        left.pop(path, None)
        left[f"{session}.jsonl{PARTIAL}"] = b"".join(lines[: at + 1]) + torn
        yield f"{at:02}-{kind}{'-torn' if torn else ''}", left, session


def _n_kinds(log: bytes) -> int:
    return len(set(kinds_in(log)))


if __name__ == "__main__":
    main(sys.argv[1:])
