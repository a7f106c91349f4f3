"""One writer for each log, in all threads and processes, and what a killed one leaves."""

from __future__ import annotations

import base64
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

from rath.conformance.report import Skipped, Unlike, expect
from rath.conformance.store.subject import (
    FIRST,
    SECOND,
    Check,
    Subject,
    cut_off,
    expect_refused,
    finished,
    going_on,
    shown,
    stored,
    writing,
)
from rath.errors import PersistenceError
from rath.session.log.store import SessionLog, SessionStore

__all__ = ["CHECKS"]

_CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from rath.conformance.store.child import main
main(*sys.argv[2:])
"""
_SECONDS = 60.0
_N_LINES = 20

_LOCK_SECONDS = 10.0
"""How long the lock of a killed process may outlive it; a guess for a busy machine."""
_N_RACERS = 8
_N_LOGS = 120  # more than the connections that a database server offers


def a_second_writer_is_refused(subject: Subject) -> None:
    with writing(subject.store) as log:
        for _ in range(2):
            for store in (subject.store, subject.other):
                expect_refused("a second writer", store.create, log.session)
                expect_refused("a second writer", store.reopen, log.session, 0)
            log.append(FIRST)
    expect(stored(subject.store, log.session).data == FIRST * 2, "what the first writer wrote")


def a_writer_is_seen_as_long_as_it_has_the_log(subject: Subject) -> None:
    both = (subject.store, subject.other)
    for end in ("finish", "abandon"):
        with writing(subject.store) as log:
            log.append(FIRST)
            expect(all(s.is_being_written(log.session) for s in both), "a writer to be seen")
            getattr(log, end)()
            expect(not any(s.is_being_written(log.session) for s in both), f"none after {end}")
    with going_on(subject.store, log.session, 0):
        expect(subject.other.is_being_written(log.session), "a writer that goes on to be seen")
    expect(not subject.store.is_being_written(uuid4()), "none of a session without a log")


def a_log_that_is_there_is_not_begun_anew(subject: Subject) -> None:
    for session in (finished(subject.store), cut_off(subject.store)):
        expect_refused("create of a log that is there", subject.other.create, session)
        expect(stored(subject.store, session).data == FIRST, "the log as it was")
        expect(not subject.store.is_being_written(session), "no lock left by who was refused")


def of_many_that_begin_a_log_one_does(subject: Subject) -> None:
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
        stores = (subject.store, subject.other) * (_N_RACERS // 2)
        n_won = sum(pool.map(race, stores))
    expect(n_won == 1, f"one writer of {_N_RACERS} to begin the log, got {n_won}")
    expect(stored(subject.store, session).data == FIRST, "what that one wrote")


def many_logs_are_open_side_by_side(subject: Subject) -> None:
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
        expected = log.session.hex.encode() + b"\n" + SECOND
        expect(stored(subject.other, log.session).data == expected, "each log with its own lines")


def a_writer_in_another_process_is_seen_and_refused(subject: Subject) -> None:
    session = uuid4()
    with _child(subject, session, "hold") as said:
        expect(said.readline() == "1\n", "a writer in another process to write")
        expect(subject.store.is_being_written(session), "the writer in another process to be seen")
        for what in ("create", "delete"):
            expect_refused(f"{what} beside it", getattr(subject.store, what), session)
        expect_refused("reopen beside it", subject.store.reopen, session, 0)


def a_killed_writer_leaves_whole_lines_and_no_lock(subject: Subject) -> None:
    session = uuid4()
    with _child(subject, session, "append") as said:
        n_durable = [int(said.readline()) for _ in range(_N_LINES)][-1]
    found = stored(subject.store, session)
    expected = b"".join(b"%d\n" % number for number in range(1, found.data.count(b"\n") + 2))
    expect(expected.startswith(found.data), f"a prefix of what it wrote, got {shown(found.data)}")
    n_lines = found.data.count(b"\n")
    expect(n_lines >= n_durable, f"at least the {n_durable} durable lines, got {n_lines}")
    expect(not found.is_finished, "an unfinished log")
    # A server may learn of the end of a process a moment after it.
    deadline = time.monotonic() + _LOCK_SECONDS
    while subject.store.is_being_written(session) and time.monotonic() < deadline:
        time.sleep(0.01)
    expect(not subject.store.is_being_written(session), "no lock after the end of its process")
    keep = found.data.rfind(b"\n") + 1
    with going_on(subject.store, session, keep, size=len(found.data)) as log:
        log.append(FIRST)
    expect(stored(subject.store, session).data == found.data[:keep] + FIRST, "it to go on")


@contextmanager
def _child(subject: Subject, session: UUID, work: Literal["hold", "append"]) -> Generator[IO[str]]:
    """Let another process write a log, and kill it in the end; give what it says."""
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


_FEATURE = "One writer for each log"

CHECKS = (
    Check(_FEATURE, a_second_writer_is_refused),
    Check(_FEATURE, a_writer_is_seen_as_long_as_it_has_the_log),
    Check(_FEATURE, a_log_that_is_there_is_not_begun_anew),
    Check(_FEATURE, of_many_that_begin_a_log_one_does),
    Check(_FEATURE, many_logs_are_open_side_by_side),
    Check(_FEATURE, a_writer_in_another_process_is_seen_and_refused),
    Check(_FEATURE, a_killed_writer_leaves_whole_lines_and_no_lock),
)
