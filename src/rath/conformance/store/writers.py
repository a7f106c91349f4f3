"""Clauses on writers: one for each log, in all threads and processes, and what a killed one leaves.

Run as a module it is the writer in another process. Its standard input gives what opens the store,
pickled and in base64; on standard output it counts its durable lines.
"""

from __future__ import annotations

import base64
import itertools
import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, Literal
from uuid import UUID, uuid4

from rath.conformance.contract import Clauses, Skipped, Unlike, expect, expect_equal, shown
from rath.conformance.store.subject import (
    FIRST,
    SECOND,
    StoreOpener,
    StoreSubject,
    expect_refused,
)
from rath.errors import PersistenceError
from rath.session.log.store import SessionLog, SessionStore

__all__ = ["WRITERS", "write_until_killed"]

WRITERS = Clauses[StoreSubject]()

_clause = WRITERS.add("One writer for each log")

_CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from rath.conformance.store.writers import write_until_killed
write_until_killed(*sys.argv[2:])
"""
_SECONDS = 60.0
_N_LINES = 20
_MAX_LINES = 100_000

_LOCK_SECONDS = 10.0
"""How long the lock of a killed process may outlive it; a guess for a busy machine."""
_N_RACERS = 8
_N_LOGS = 120  # more than the connections that a database server offers


@_clause
def a_second_writer_is_refused(subject: StoreSubject) -> None:
    with subject.writing() as log:
        for _ in range(2):
            for store in subject.both:
                expect_refused("a second writer", store.create, log.session)
                expect_refused("a second writer", store.reopen, log.session, 0)
            log.append(FIRST)
    subject.expect_data(log.session, FIRST * 2)


@_clause
def a_writer_is_seen_as_long_as_it_has_the_log(subject: StoreSubject) -> None:
    for end in ("finish", "abandon"):
        with subject.writing() as log:
            log.append(FIRST)
            seen = [store.is_being_written(log.session) for store in subject.both]
            expect(all(seen), "a writer to be seen")
            getattr(log, end)()
            seen = [store.is_being_written(log.session) for store in subject.both]
            expect(not any(seen), f"none after {end}")
    with subject.reopening(log.session, 0):
        expect(subject.other.is_being_written(log.session), "a writer that goes on to be seen")
    expect(not subject.store.is_being_written(uuid4()), "none of a session without a log")


@_clause
def a_log_that_is_there_is_not_begun_anew(subject: StoreSubject) -> None:
    for is_finished in (True, False):
        session = subject.write(is_finished=is_finished)
        expect_refused("create of a log that is there", subject.other.create, session)
        subject.expect_data(session, FIRST)
        expect(not subject.store.is_being_written(session), "no lock left by who was refused")


@_clause
def of_many_that_begin_a_log_one_does(subject: StoreSubject) -> None:
    session = uuid4()
    gate, done = threading.Barrier(_N_RACERS), threading.Barrier(_N_RACERS)

    def race(store: SessionStore) -> bool:
        gate.wait(_SECONDS)
        try:
            log = store.create(session)
        except PersistenceError:
            done.wait(_SECONDS)
            return False
        done.wait(_SECONDS)
        try:
            log.append(FIRST)
        finally:
            log.abandon()
        return True

    with ThreadPoolExecutor(_N_RACERS) as pool:
        n_won = sum(pool.map(race, subject.both * (_N_RACERS // 2)))
    expect_equal(n_won, 1, f"writer of {_N_RACERS} to begin the log")
    subject.expect_data(session, FIRST)


@_clause
def many_logs_are_open_side_by_side(subject: StoreSubject) -> None:
    logs: list[SessionLog] = []
    try:
        for _ in range(_N_LOGS):
            logs.append(subject.store.create(uuid4()))
        for log in logs:
            log.append(log.session.hex.encode() + b"\n")
        for log in logs:
            log.append(SECOND)
            log.finish()
    finally:
        for log in logs:
            log.abandon()
    for log in logs:
        subject.expect_data(log.session, log.session.hex.encode() + b"\n" + SECOND)


@_clause
def a_writer_in_another_process_is_seen_and_refused(subject: StoreSubject) -> None:
    session, store = uuid4(), subject.store
    with _child(subject, session, "hold") as output:
        expect(output.readline() == "1\n", "a writer in another process to write")
        expect(store.is_being_written(session), "the writer in another process to be seen")
        for name in ("create", "delete"):
            expect_refused(f"{name} beside it", getattr(store, name), session)
        expect_refused("reopen beside it", store.reopen, session, 0)


@_clause
def a_killed_writer_leaves_whole_lines_and_no_lock(subject: StoreSubject) -> None:
    session = uuid4()
    with _child(subject, session, "append") as output:
        n_durable = [int(output.readline()) for _ in range(_N_LINES)][-1]
    found = subject.stored(session)
    n_lines = found.data.count(b"\n")
    expected = b"".join(b"%d\n" % number for number in range(1, n_lines + 2))
    expect(expected.startswith(found.data), f"a prefix of what it wrote, got {shown(found.data)}")
    expect(n_lines >= n_durable, f"at least the {n_durable} durable lines, got {n_lines}")
    expect(not found.is_finished, "an unfinished log")
    # A server may learn of the end of a process a moment after it.
    deadline = time.monotonic() + _LOCK_SECONDS
    while subject.store.is_being_written(session) and time.monotonic() < deadline:
        time.sleep(0.01)
    expect(not subject.store.is_being_written(session), "no lock after the end of its process")
    keep = found.data.rfind(b"\n") + 1
    with subject.reopening(session, keep, size=len(found.data)) as log:
        log.append(FIRST)
    subject.expect_data(session, found.data[:keep] + FIRST)


def write_until_killed(session: str, work: str) -> None:
    """Write one durable line and wait, or write one after the other."""
    # From our parent, and nobody else.
    opener: StoreOpener = pickle.loads(base64.b64decode(sys.stdin.readline()))
    log = opener().create(UUID(session))
    for number in itertools.count(1):
        log.append(b"%d\n" % number, durable=True)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        if work == "hold" or number == _MAX_LINES:
            break
    sys.stdin.read()


@contextmanager
def _child(
    subject: StoreSubject, session: UUID, work: Literal["hold", "append"]
) -> Generator[IO[str]]:
    """Let another process write a log, and kill it in the end; give its output."""
    try:
        opener = base64.b64encode(pickle.dumps(subject.opener)).decode()
    except (pickle.PicklingError, AttributeError, TypeError) as exc:
        raise Skipped(f"what opens it cannot be pickled for another process: {exc}") from exc
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD, json.dumps(sys.path), str(session), work],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    guard = threading.Timer(_SECONDS, process.kill)
    guard.start()
    try:
        process.stdin.write(f"{opener}\n")
        process.stdin.flush()
        yield process.stdout
        process.kill()
        process.wait()
    except ValueError as exc:
        raise Unlike(f"expected another process to open the store and write: {exc}") from exc
    finally:
        guard.cancel()
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
