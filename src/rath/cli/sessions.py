"""What the verbs on stored sessions share: which store, which session, and how they end.

0  answered      1  what the world did      2  it was called in a wrong way
3  the evidence that was asked for is not there; it is named      4  a log is damaged
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from rath.cli.progress import progress
from rath.cli.terminal import Misuse, Problem, note
from rath.errors import StoreNotFound
from rath.session import log
from rath.session.log.files import FileStore
from rath.session.log.index import StoreIndex
from rath.session.log.paths import PARTIAL_SUFFIX, SESSION_FILE_SUFFIX
from rath.session.log.store import SessionStore, open_store

__all__ = [
    "AsJson",
    "Damaged",
    "EvidenceMissing",
    "Exit",
    "SessionText",
    "StoreUrl",
    "find_run",
    "find_session",
    "open_session_store",
    "opened_index",
    "opened_store",
    "session_id_of",
    "store_of",
]

MIN_PREFIX = 4
"""Hex digits of an id that are enough to name a session."""

_MAX_LISTED = 10
_ID_DIGITS = 32
_MAX_HEADER_BYTES = 16 << 20
"""Of the first line of a file, which may be any file."""

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Where the sessions are: a directory, or the URL of another store.",
    ),
]
SessionText = Annotated[
    str,
    typer.Argument(metavar="SESSION", help="An id, the beginning of one, or a session file."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]


class Exit(IntEnum):
    """The exit statuses of the verbs on sessions."""

    ANSWERED = 0
    WORLD = 1
    MISUSE = 2
    MISSING = 3
    DAMAGED = 4


class EvidenceMissing(Problem):
    """Ends the command with exit status 3: the store does not hold what was asked for."""

    exit_code = Exit.MISSING


class Damaged(Problem):
    """Ends the command with exit status 4: a log cannot be believed."""

    exit_code = Exit.DAMAGED


def open_session_store(option: str | None) -> SessionStore:
    """Return the store that `--store` names: a directory, a URL, or by default the one of rath.

    Raises:
        Misuse: No store has such a URL.
    """
    try:
        return open_store(option)
    except (StoreNotFound, ValueError) as exc:
        raise Misuse(str(exc)) from exc


@contextmanager
def opened_store(option: str | None) -> Generator[SessionStore]:
    """Open the store that `--store` names, and give back in the end what it holds."""
    store = open_session_store(option)
    try:
        yield store
    finally:
        store.close()


def find_session(text: str, store: SessionStore) -> UUID | Path:
    """Return the session that a command line names, in the form that `Session.load` takes.

    Args:
        text: A whole id, at least `MIN_PREFIX` hex digits with which only one id of the store
            begins, or the path of a session file.
        store: Where ids are looked for.

    Raises:
        Misuse: The text is none of these, or several ids begin with it: it lists them.
        Problem: No id begins with it, or there is no such file.
    """
    path = Path(text).expanduser()
    if _is_path(text):
        if not path.is_file():
            raise Problem(f"no session file {str(path)!r}")
        return path
    digits = _digits_in(text)
    if digits is None:
        if path.is_file():
            return path
        raise Misuse(
            f"{text!r} names no session; expected an id, its first digits, or a session file. "
            "`rath ls` lists the sessions"
        )
    if len(digits) == _ID_DIGITS:
        return UUID(digits)
    if len(digits) < MIN_PREFIX:
        raise Misuse(f"{text!r} is too short for an id; give at least {MIN_PREFIX} of its digits")
    return _only_one("session", text, [id for id in store.stamps() if id.hex.startswith(digits)])


def session_id_of(text: str, store: SessionStore) -> UUID:
    """Return the id of the session that a command line names; see `find_session`.

    Raises:
        Misuse: See `find_session`.
        Problem: See `find_session`.
        PersistenceError: It is a file whose first line cannot be believed.
    """
    found = find_session(text, store)
    return found if isinstance(found, UUID) else _session_in(found)


def store_of(found: UUID | Path, store: SessionStore) -> tuple[UUID, SessionStore]:
    """Return the id of a session that was found, and the store that has it.

    That of a file is the directory of the file, where its ancestors may stand too.

    Raises:
        PersistenceError: It is a file whose first line cannot be believed.
    """
    if isinstance(found, UUID):
        return found, store
    session = _session_in(found)
    plain = found.with_name(found.name.removesuffix(PARTIAL_SUFFIX))
    return session, FileStore.at(plain, session)


def find_run(text: str, index: StoreIndex) -> UUID:
    """Return the workflow call that a command line names, by its id or the beginning of it.

    Raises:
        Misuse: The text is no beginning of an id, or that of several.
        Problem: No session of the store was made in such a call.
    """
    digits = _digits_in(text)
    if digits is None or len(digits) < MIN_PREFIX:
        raise Misuse(f"{text!r} names no workflow call; expected an id, or its first digits")
    runs = index.runs()
    return _only_one("workflow call", text, [run for run in runs if run.hex.startswith(digits)])


@contextmanager
def opened_index(store: SessionStore) -> Generator[StoreIndex]:
    """Bring the index of a store up to date, with a bar where that takes long, and close it."""
    with StoreIndex(store) as index:
        with progress("reading sessions") as report:
            index.refresh(report)
        yield index
        if index.note:
            note(index.note)


def _session_in(file: Path) -> UUID:
    with file.open("rb") as opened:
        first = opened.readline(_MAX_HEADER_BYTES)
    return log.session_in(first, str(file))


def _is_path(text: str) -> bool:
    separators = {os.sep, os.altsep or os.sep}
    is_named_so = text.endswith((SESSION_FILE_SUFFIX, PARTIAL_SUFFIX))
    return is_named_so or any(separator in text for separator in separators)


def _digits_in(text: str) -> str | None:
    """Return the hex digits with which an id begins, None for any other text."""
    digits = text.replace("-", "").lower()
    is_one = digits and set(digits) <= set("0123456789abcdef") and len(digits) <= _ID_DIGITS
    return digits if is_one else None


def _only_one(noun: str, text: str, found: list[UUID]) -> UUID:
    if not found:
        raise Problem(f"no {noun} of the store begins with {text!r}; `rath ls` lists them")
    if len(found) > 1:
        listed = _listed(sorted(found))
        raise Misuse(f"{text!r} begins {len(found)} ids; give more digits: {listed}")
    return found[0]


def _listed(ids: Iterable[UUID]) -> str:
    names = [str(one) for one in ids]
    more = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
