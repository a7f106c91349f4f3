"""Runners of one session, by key: processes that stop themselves at one of their events."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import traceback
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from rath.errors import PersistenceError
from rath.session import Session
from rath.session.persistence.store import SessionStore, open_store
from rath.session.record import ModelCall, Operation
from tests.support import crash_program
from tests.support.crash_program import CrashProgram
from tests.support.fault_points import FaultPoints, send_self
from tests.support.killed_driver import has_no_line
from tests.support.waiting import wait_until

KEY = "nightly"
PAUSE = 0.002

# What is forked has all imports, and no threads.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


def program(folder: Path) -> CrashProgram:
    """Make the program; what it notes may be noted once."""
    return CrashProgram(
        folder / "effects", asked=folder / "calls", pause=PAUSE, effects="non_idempotent"
    )


def go(folder: Path, store: SessionStore | str) -> Session:
    """Run the program, or go on with it, to its end."""
    session = Session.from_user_message("go")
    return program(folder).run(session, run=KEY, store=store).synchronize()


def rows_of(session: Session) -> list[list[str]]:
    """Return the rows of a session, to be compared."""
    return [[row.kind_name, row.digest.hex()] for row in session.chunk_table]


def counted(folder: Path, name: str) -> Counter[str]:
    """Return how often each line stands in a file."""
    path = folder / name
    return Counter(path.read_text().splitlines()) if path.exists() else Counter()


def answered_calls(store: SessionStore) -> set[str]:
    """Return the model calls whose answer is recorded: role and turn."""
    found: dict[str, set[UUID]] = {}
    for session_id in store.stamps():
        if has_no_line(store, session_id):
            continue
        roles = dict[UUID, str]()
        for entry in Session.load(session_id, store=store).record:
            if isinstance(entry, Operation):
                role = entry.place.path.rpartition(".")[2]
                roles[entry.operation] = "helper" if role == "Agent" else role
            if isinstance(entry, ModelCall) and entry.status == "done":
                found.setdefault(roles[entry.operation], set()).add(entry.id)
    return {f"{role} {turn}" for role, made in found.items() for turn in range(len(made))}


def _run(folder: Path, url: str, at: int, result: Path) -> None:
    points = FaultPoints(at, partial(send_self, signal.SIGSTOP), tears="://" not in url)
    points.count_writes()
    points.count_calls(crash_program, "append_line")
    told: dict[str, Any]
    try:
        out = go(folder, open_store(url))
        told = {"end": type(out.outcome).__name__, "id": str(out.id), "rows": rows_of(out)}
    except PersistenceError as exc:
        told = {"end": type(exc).__name__, "is_told": True, "text": str(exc)}
    except Exception as exc:  # noqa: BLE001  # told to the test that waits for it
        told = {"end": type(exc).__name__, "text": traceback.format_exc()}
    result.write_text(json.dumps({**told, "n_events": points.n_events}))


class Runner:
    """One of the runners of a session, as a process.

    Args:
        folder: Where its program has its effects.
        url: The store, as it reaches it.
        at: The event at which it stops itself; 0 for none.
    """

    def __init__(self, folder: Path, url: str, at: int = 0) -> None:
        self._result = folder / f"result-{os.urandom(4).hex()}"
        self._process = _context.Process(target=_run, args=(folder, url, at, self._result))
        self._process.start()

    def wait_for_stop(self) -> bool:
        """Wait until it has stopped itself or ended; tell which."""
        wait_until(lambda: self._is_stopped() or not self._process.is_alive())
        return self._process.is_alive()

    def wake(self) -> None:
        """Let it go on, where it is stopped."""
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGCONT)

    def result(self) -> dict[str, Any]:
        """Wait for its end, and return what it says of it."""
        wait_until(lambda: not self._process.is_alive(), "the runner ends")
        found: dict[str, Any] = json.loads(self._result.read_text())
        return found

    def close(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.join()

    def _is_stopped(self) -> bool:
        try:
            text = Path(f"/proc/{self._process.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return text.rpartition(")")[2].split()[0] == "T"
