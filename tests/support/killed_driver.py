"""The driver of a job as a program of its own, which ends itself at one of its events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Literal, NamedTuple, TypeAlias
from uuid import UUID

from rath import flow
from rath.conformance import engine_program
from rath.jobs.job import Job
from rath.session import Session
from rath.session.log.verify import verify
from rath.session.persistence.store import SessionStore
from rath.session.record import ModelCall, Operation
from tests.support.fault_points import FaultPoints, send_self
from tests.support.job_program import CountedItem, counted_items, lines

TEAM = "tests.support.job_program:team"
End: TypeAlias = Literal["kill", "cancel"]


class JobSetup(NamedTuple):
    """A job of the tests."""

    folder: str
    store: str
    engine: str
    n_items: int
    concurrency: int
    seconds: float = 0.0
    """How long each model call takes."""

    def start(self) -> Job:
        """Start the job, or go on with it; its last item is held until `release`."""
        *others, last = counted_items(self.n_items, Path(self.folder), seconds=self.seconds)
        return flow.map(
            TEAM,
            [*others, CountedItem(last.key, last.folder, "hold", last.seconds)],
            key="key",
            session=CountedItem.session,
            job=self.folder,
            store=self.store,
            engine=self.engine,
            concurrency=self.concurrency,
            progress=False,
        )

    def start_process(self, at: int = 0, end: End = "kill") -> subprocess.Popen[bytes]:
        """Start the job in a process that ends itself at an event; 0: it never does."""
        command = [sys.executable, "-m", __name__, json.dumps([*self]), str(at), end]
        return subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE)


def has_no_line(store: SessionStore, session: UUID) -> bool:
    """Tell whether the writer of a log was cut off in the first line, so that it says nothing."""
    log = store.read(session)
    return log is None or b"\n" not in log.data


def answered_calls(store: SessionStore, sessions: Iterable[UUID]) -> set[tuple[str, ...]]:
    """Return the model calls whose answer is recorded: item, agent and turn."""
    found: dict[tuple[str, str], set[UUID]] = defaultdict(set)
    for session_id in sessions:
        if has_no_line(store, session_id):
            continue
        session = Session.load(session_id, store=store)
        agents = dict[UUID, str]()
        for entry in session.record:
            if isinstance(entry, Operation):
                agents[entry.operation] = entry.place.path.rpartition(".")[2]
            if isinstance(entry, ModelCall) and entry.status == "done":
                item = json.loads(session.chunk_table.rows[0].payload["content"])["key"]
                found[item, agents[entry.operation]].add(entry.id)
    return {(*place, str(turn)) for place, entries in found.items() for turn in range(len(entries))}


def unsound_sessions(store: SessionStore, sessions: Iterable[UUID]) -> list[str]:
    """Return what `verify` finds that is not as it was written."""
    found = (verify(store, each) for each in sessions)
    return [str(each) for each in found if not each.is_sound]


@contextmanager
def driver_program(folder: Path, text: str, *arguments: str) -> Generator[subprocess.Popen[str]]:
    """Start a program that drives a job in `folder`, its first argument; kill it in the end."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    process = subprocess.Popen(
        [sys.executable, str(path), str(folder), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def holding_pids(folder: Path) -> set[int]:
    """Return the processes in which items are held."""
    return {int(words[2]) for words in lines(folder, "held")}


def is_running(pid: int) -> bool:
    """Tell whether there is such a process, and it is not only waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def main(setup: JobSetup, at: int, end: End) -> None:
    """Run the job; tell on stdout how many events there were."""
    jobs: list[Job] = []
    act = partial(send_self, SIGKILL) if end == "kill" else lambda: jobs[0].cancel()
    # In a database a line is written as a whole or not at all.
    points = FaultPoints(at, act, tears="://" not in setup.store)
    points.count_writes()
    points.count_calls(engine_program, "_append")
    jobs.append(setup.start())
    jobs[0].synchronize()
    print(points.n_events)  # noqa: T201  # the answer of the program


if __name__ == "__main__":
    main(JobSetup(*json.loads(sys.argv[1])), int(sys.argv[2]), sys.argv[3])  # type: ignore[arg-type]
