"""Errors around sessions: their rows, files, stores and records."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from unittest import mock
from uuid import UUID

import rath
from rath.session import Session
from rath.session.persistence.store import open_store
from rath.session.questions import blame, what_was_seen
from tests.support.error_cases import ErrorCase, Machine, odd, user

_ABSENT = UUID("0f8fad5b-d9cb-469f-a165-70867728950e")


def _changed(machine: Machine) -> object:
    log = machine.log_of(machine.stored("The answer is 42."))
    log.write_text(log.read_text().replace("is 42", "is 43"))
    return Session.load(log)


def _cut(machine: Machine) -> object:
    log = machine.log_of(machine.stored())
    log.write_bytes(log.read_bytes()[:40])
    return Session.load(log)


def _newer(machine: Machine) -> object:
    log = machine.log_of(machine.stored())
    first, rest = log.read_text().split("\n", 1)
    log.write_text(first.replace('"schema_version":', '"schema_version":9') + "\n" + rest)
    return Session.load(log)


def _full_disk(machine: Machine) -> object:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    agent = machine.scripted("Done.", persist=True, system_tools=False)
    session = user()
    with mock.patch.object(os, "write", full), mock.patch.object(os, "writev", full):
        return agent(session).text()


def _read_only_home(machine: Machine) -> object:
    (machine.home / ".openrath").write_text("a file")
    return machine.stored().id


def _deleted(machine: Machine) -> object:
    session = machine.stored()
    machine.log_of(session).unlink()
    return Session.load(session.id)


def _cassette(machine: Machine, *, write: bool) -> object:
    agent = machine.scripted("Hello.", "Hello.")
    path = machine.project / "tape.jsonl"

    def program(text: str) -> str | None:
        return agent(Session.from_user_message(text)).text()

    if write:
        with rath.cassette(path):
            program("one")
    with rath.cassette(path, mode="replay"):
        return program("two")


def _other_type(machine: Machine) -> object:
    return user().merge(odd("a text"))


CASES = [
    ErrorCase(
        cause="A message that is not a text.",
        cure="Give a str.",
        meet=lambda m: Session.from_user_message(odd(7)),
    ),
    ErrorCase(
        cause="A payload of a row was written to.",
        cure="Make a copy and a new row of that: other sessions share this one.",
        meet=lambda m: odd(user().chunk_table[0].payload).update(content="x"),
    ),
    ErrorCase(
        cause="A row was asked for that is not there.",
        cure="Count from 0; `len(session.chunk_table)` says how many there are.",
        meet=lambda m: user().chunk_table[7],
    ),
    ErrorCase(
        cause="Something else than a session was merged.",
        cure="Merge sessions.",
        meet=_other_type,
    ),
    ErrorCase(
        cause="A session that is not stored was loaded by its id.",
        cure="`rath ls` lists those that are; run with `persist=True` to store one.",
        meet=lambda m: Session.load(_ABSENT),
    ),
    ErrorCase(
        cause="A session file that is not there.",
        cure="Correct the path.",
        meet=lambda m: Session.load(Path("none.jsonl")),
    ),
    ErrorCase(
        cause="The file of a session was removed by hand.",
        cure="Take it from a backup; `rath rm` moves to the trash instead.",
        meet=_deleted,
    ),
    ErrorCase(
        cause="The file of a session was changed by hand, or by a broken disk.",
        cure="`rath verify ID` says where; `rath show` reads what stands before that.",
        meet=_changed,
    ),
    ErrorCase(
        cause="The file of a session was cut in its first line.",
        cure="Take it from a backup: nothing of it can be read.",
        meet=_cut,
    ),
    ErrorCase(
        cause="The file of a session was written by a later version.",
        cure="Upgrade rath.",
        meet=_newer,
    ),
    ErrorCase(
        cause="A file that is no session.",
        cure="Name the file of a session.",
        meet=lambda m: Session.load(m.file("notes.jsonl", "a text\n")),
    ),
    ErrorCase(
        cause="The disk is full.",
        cure="Free space, and go on with the run: `rath resume ID`.",
        meet=_full_disk,
    ),
    ErrorCase(
        cause="Where the home of rath should be, there is a file.",
        cure="Remove the file, or name another directory by `OPENRATH_HOME`.",
        meet=_read_only_home,
    ),
    ErrorCase(
        cause="`OPENRATH_HOME` names a file.",
        cure="Name a directory, which may be new.",
        meet=lambda m: m.variables(OPENRATH_HOME=str(m.file("a.txt"))).stored(),
    ),
    ErrorCase(
        cause="`OPENRATH_HOME` names a user who is not there.",
        cure="Name a directory.",
        meet=lambda m: m.variables(OPENRATH_HOME="~nobody-here/rath").stored(),
    ),
    ErrorCase(
        cause="The URL of a store is of an unknown kind.",
        cure="Take one of those that the text lists.",
        meet=lambda m: open_store("redis://localhost"),
    ),
    ErrorCase(
        cause="The URL of a PostgreSQL store cannot be read.",
        cure="Write special characters of the password as %XX.",
        meet=lambda m: open_store("postgres://user:p%ss@[host/database").read(_ABSENT),
    ),
    ErrorCase(
        cause="The URL of a file store names another machine.",
        cure="Write three slashes: `file:///var/lib/sessions`.",
        meet=lambda m: open_store("files://var/lib/sessions"),
    ),
    ErrorCase(
        cause="There is no cassette, and none is to be recorded.",
        cure='Record it once with `mode="auto"`.',
        meet=lambda m: _cassette(m, write=False),
    ),
    ErrorCase(
        cause="The program asks something else than when the cassette was recorded.",
        cure="Undo the change, or record anew.",
        meet=lambda m: _cassette(m, write=True),
    ),
    ErrorCase(
        cause="A mode of a cassette that does not exist.",
        cure='Give "auto", "record" or "replay".',
        meet=lambda m: rath.cassette(m.project / "a.jsonl", mode=odd("write")),
    ),
    ErrorCase(
        cause="A decision for a call that does not wait.",
        cure="`rath show ID` says what waits.",
        meet=lambda m: m.stored().approve("call_1"),
    ),
    ErrorCase(
        cause="An answer of a session was read as a type that it does not fit.",
        cure="Ask for the type: `Agent(..., output=Type)`.",
        meet=lambda m: m.stored("no number").output_as(int),
    ),
    ErrorCase(
        cause="A typed answer was read of a session without any answer.",
        cure="Run an agent on it first.",
        meet=lambda m: user().output_as(int),
    ),
    ErrorCase(
        cause="The origin of a blank text was asked for.",
        cure="Give some words.",
        meet=lambda m: blame(m.stored(), " "),
    ),
    ErrorCase(
        cause="A turn was asked for that a session does not have.",
        cure="Count the answers of the model from 1.",
        meet=lambda m: what_was_seen(m.stored(), turn=9),
    ),
    ErrorCase(
        cause="A session that is stored nowhere was pickled.",
        cure="Save it first, or run with `persist=True`.",
        meet=lambda m: pickle.dumps(user()),
    ),
]
