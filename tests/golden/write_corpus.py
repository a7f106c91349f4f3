"""Write the golden corpus: `python -m tests.golden.write_corpus [--outputs [GROUP ...]]`.

Without `--outputs` the programs of `scenarios` run, which takes minutes. Their sessions, and those
that `crashes` makes of them, become the archives that `tests/data/golden` has not yet, with
their outputs; an archive that is there stays as the code of its day wrote it. With `--outputs` only
what is expected of these groups, or of all, is written anew. The group `postgres` needs a
PostgreSQL server on this machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from uuid import UUID

from rath.session.outcome import Completed, NeedsInput
from rath.session.persistence.store import open_store
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
    pack,
    postgres_outputs,
    unpack,
    write_expected,
)
from tests.golden.crashes import CUTS, cut_stores, damaged_stores, richest, targets_in
from tests.golden.outputs import command
from tests.golden.scenarios import SCENARIOS
from tests.support.logs import LogMaker
from tests.support.postgres_server import PostgresServer, running_postgres
from tests.support.store_family import saved_family

ROOT = Path(__file__).parents[2]
_V1 = ROOT / "tests" / "data" / "v1"
_BUNDLED = ("derived/branches", "contents/images", "helpers/nested", "files/merged")
_N_AT_ONCE = 2
_STEP_SECONDS = 120
_DIGEST = re.compile(rb"[0-9a-f]{64}")


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
    """Run all programs, and return the groups whose archives were not there."""
    with tempfile.TemporaryDirectory(prefix="golden-") as made_folder:
        folder = Path(made_folder)
        names = [(of, name) for of, each in SCENARIOS.items() if of != POSTGRES for name in each]
        with ThreadPoolExecutor(_N_AT_ONCE) as pool:
            ran = pool.map(partial(_run, folder), *zip(*names, strict=True))
            stores = {"/".join(key): files for key, files in zip(names, ran, strict=True)}
        made: dict[str, Group] = {}
        for (group, name), files in zip(names, stores.values(), strict=True):
            made.setdefault(group, {})[name] = (files, targets_in(files))
        made |= _derived(stores, folder)
        if not is_packed(POSTGRES):
            with running_postgres() as server:
                made[POSTGRES] = _on_postgres(folder, server)
        written = [group for group in made if not is_packed(group)]
        for group in written:
            pack(group, made[group])
        return written


def _derived(stores: dict[str, Files], folder: Path) -> dict[str, Group]:
    """Return the groups that are made of the stores of others, and of lines."""
    seen: set[object] = set()
    made: dict[str, Group] = {
        group: {
            f"{name}-{point}": (files, targets)
            for of, name, count in sources
            for point, files, targets in cut_stores(stores[f"{of}/{name}"], count=count, seen=seen)
        }
        for group, sources in CUTS.items()
    }
    damaged = {name: (files, targets) for name, files, targets in damaged_stores(stores)}
    made["damaged"] = dict(list(damaged.items())[::2])
    made["damaged-more"] = dict(list(damaged.items())[1::2])
    made["bundles"] = {
        key.replace("/", "-"): _bundled(stores[key], folder / "bundles" / key) for key in _BUNDLED
    }
    made["lines"] = {name: (files, targets_in(files)) for name, files in _lines(folder / "lines")}
    first = {path.name: path.read_bytes() for path in sorted(_V1.glob("*.jsonl*"))}
    made["version-1"] = {"files": (first, sorted(first))}
    return made


def _bundled(files: Files, folder: Path) -> tuple[Files, list[str]]:
    """Return a store that holds nothing but a bundle, of the session with the most lines."""
    _put_files(files, folder / "sessions")
    (path,) = richest(files, 1)
    session = path.partition(".")[0]
    bundle = folder / "bundle"
    command("export", session, str(bundle), store=str(folder / "sessions"))
    return {"bundle": bundle.read_bytes()}, [session]


def _lines(folder: Path) -> Iterator[tuple[str, Files]]:
    """Yield stores whose lines were written one by one, in an order that runs have rarely."""
    yield "family", content(saved_family(folder / "family").directory)
    for name, log in _odd_logs():
        suffix = "" if b'"trailer"' in log.data else PARTIAL
        blobs = {f"blobs/{digest}": data for digest, data in log.blobs.items()}
        yield name, {f"{log.session}.jsonl{suffix}": log.data, **blobs}


def _odd_logs() -> Iterator[tuple[str, LogMaker]]:
    def log() -> LogMaker:
        return LogMaker(UUID("0ddba11c-0000-4000-8000-000000000002")).said("go").begun()

    yield "streamed", log().streamed("I am ").streamed("in the middle of th")
    yield "streamed-then-failed", log().streamed("I am ").failed("it broke off")
    yield "cancelled", log().answered("one").failed("stop", how="cancelled")
    yield "failed-twice", log().failed("once").reopened().streamed("a").failed("twice")
    yield "reopened", log().failed().reopened()
    yield "open-round", log().round("a", "b", is_done=False)
    yield "done-round", log().round("a", "b").ended()
    yield "two-intents", log().intended("a").intended("b", effects="read_only", call=1)
    asked = NeedsInput(UUID("0ddba11c-0000-4000-8000-000000000002"), "which?")
    yield "asked", log().answered("x").ended(asked)
    yield "asked-and-decided", log().answered("x").ended(asked).decided(Completed())
    yield "ended-and-reopened", log().answered("x").ended().reopened().answered("y").ended()


def _run(folder: Path, group: str, name: str, *, store: str | None = None) -> Files:
    """Run the steps of a scenario, and return what it stored in files."""
    place = folder / (group if store is None else f"{group}-server") / name
    work = place / "work"
    work.mkdir(parents=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith("OPEN")}
    env |= {
        "OPENRATH_HOME": str(place),
        "OPENRATH_PERSIST": "1",
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        **({} if store is None else {"OPENRATH_STORE": store}),
    }
    for number in range(len(SCENARIOS[group][name])):
        step = [sys.executable, "-m", "tests.golden.scenarios", group, name, str(number)]
        done = subprocess.run(
            step, cwd=work, env=env, capture_output=True, timeout=_STEP_SECONDS, check=False
        )
        if done.returncode != 0:
            sys.exit(f"{group} {name} {number} has failed:\n{done.stderr.decode()}")
    return content(place / "sessions") if store is None else {}


def _on_postgres(folder: Path, server: PostgresServer) -> Group:
    """Run the scenarios of the group on a server, and return what it holds as files."""
    made: Group = {}
    for name in SCENARIOS[POSTGRES]:
        url = server.url()
        _run(folder, POSTGRES, name, store=url)
        with contextlib.closing(open_store(url)) as store:
            files: Files = {}
            for session in store.stamps():
                log = store.read(session)
                assert log is not None
                files[f"{session}.jsonl{'' if log.is_finished else PARTIAL}"] = log.data
            for digest in _digests(files.values()):
                data = store.blob(digest)
                if data is not None:
                    files[f"blobs/{digest}"] = data
        made[name] = (files, targets_in(files))
    return made


def _digests(logs: Iterable[bytes]) -> set[str]:
    return {digest.decode() for log in logs for digest in _DIGEST.findall(log)}


def _put_files(files: Files, directory: Path) -> None:
    for path, data in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)


if __name__ == "__main__":
    main(sys.argv[1:])
