"""Starts processes that run the program of `crash_program`, or go on with it, and can be killed.

It is imported once and forked for each of them: a child is there in milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from rath import autosave
from rath.session import Session
from rath.session.persistence.store import FileStore
from tests.support.api import program_of
from tests.support.crash_program import PAUSE, CrashProgram

ROWS = "rows.json"
CALLS = "calls"
PROBLEM = "problem"


class Zygote:
    """The process that is forked, seen from the tests."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, home: Path, seed: int, *, kill_after: float | None = None) -> int:
        """Have the program run in `home`, or go on there, to its end; return its wait status.

        Args:
            home: The home, with the store and the file of the calls.
            seed: Chooses from which session it goes on.
            kill_after: Seconds after which it is killed, if it has not ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(home), seed, kill_after]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def zygote() -> Generator[Zygote]:
    """Give a process to fork, and end it after the block."""
    made = Zygote()
    try:
        yield made
    finally:
        made.close()


def sessions_of(home: Path) -> FileStore:
    """Return the store of a home."""
    return FileStore(home / "sessions")


def attempt(home: Path, seed: int) -> None:
    """Run the program, or go on with it from any session that is stored."""
    os.environ["OPENRATH_HOME"] = str(home)
    program = CrashProgram(home / CALLS, pause=PAUSE)
    with autosave():
        started = _any_session(home, random.Random(seed))
        if started is None:
            out = program(Session.from_user_message("go"))
        else:
            out = program.resume(started)
        rows = [(row.kind_name, row.digest.hex()) for row in out.chunk_table]
    (home / f"{ROWS}.new").write_text(json.dumps(rows))
    (home / f"{ROWS}.new").rename(home / ROWS)


def _any_session(home: Path, chance: random.Random) -> Session | None:
    """Return one session of the run that is stored, None where there is none."""
    store = sessions_of(home)
    ids = sorted(store.stamps())
    chance.shuffle(ids)
    for session_id in ids:
        session = Session.load(session_id, store=store)
        try:
            program_of(session, store).place()
        except ValueError:
            continue
        return session
    return None


def _serve() -> None:
    for line in sys.stdin:
        home, seed, kill_after = json.loads(line)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                attempt(Path(home), seed)
                status = 0
            except BaseException:  # noqa: BLE001  # told to the test that waits for it
                (Path(home) / PROBLEM).write_text(traceback.format_exc())
            finally:
                os._exit(status)
        if kill_after is not None:
            time.sleep(kill_after)
            # Nobody has waited for it yet, so the id is still that of this child.
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        print(status, flush=True)  # noqa: T201  # the answer on the pipe


if __name__ == "__main__":
    _serve()
