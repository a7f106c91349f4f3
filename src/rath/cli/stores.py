"""Stores and sessions that a command line names."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from rath import session
from rath._core.text import did_you_mean, short_id
from rath.cli.render import progress
from rath.cli.terminal import CommandError, Damaged, Misuse, misuse_on, note
from rath.errors import SessionDamaged, StoreNotFound
from rath.session import log
from rath.session.log.files import FileStore
from rath.session.log.index import SessionFilter, SessionSummary, StoreIndex
from rath.session.log.paths import PARTIAL_SUFFIX, SESSION_FILE_SUFFIX
from rath.session.log.store import SessionStore, open_store

if TYPE_CHECKING:
    from rath.jobs.record import JobReport
    from rath.session import Session

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


@contextmanager
def use_store(option: str | None) -> Generator[SessionStore]:
    """Open the store of `--store`, a directory, a URL or by default the one of rath.

    Raises:
        Misuse: No store has such a URL.
    """
    with misuse_on(StoreNotFound, ValueError):
        store = open_store(option)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def use_index(store: SessionStore, *, with_text: bool = False) -> Generator[StoreIndex]:
    """Bring the index of a store up to date, with a bar where that takes long, and close it.

    Args:
        store: The store.
        with_text: Whether rows are searched.
    """
    with StoreIndex(store) as index:
        with progress("reading sessions") as report:
            index.refresh(report, with_text=with_text)
        yield index
        if index.note:
            note(index.note)


@contextmanager
def load_sessions(*texts: str, store: str | None) -> Generator[tuple[Session, ...]]:
    """Load the sessions that a command line names.

    Args:
        texts: Ids, their beginnings, or session files.
        store: The value of `--store`.

    Raises:
        Misuse: A text names no session, or several.
        CommandError: There is no such session.
        Damaged: A log cannot be believed.
    """
    try:
        with use_store(store) as opened:
            yield tuple(
                session.Session.load(_find_session(text, opened), store=opened) for text in texts
            )
    except SessionDamaged as exc:
        raise Damaged(str(exc)) from exc


def session_id_of(text: str, store: SessionStore) -> UUID:
    """Return the id of the session that a command line names; see `locate`."""
    return locate(text, store)[0]


def locate(text: str, store: SessionStore) -> tuple[UUID, SessionStore]:
    """Return the id of the session that a command line names, and the store that has it.

    Args:
        text: A whole id, at least `MIN_PREFIX` hex digits with which only one id of the store
            begins, or the path of a session file. The store of a file is its directory, where its
            ancestors may stand too.
        store: Where ids are looked for.

    Raises:
        Misuse: The text is none of these, or several ids begin with it: it lists them.
        CommandError: No id begins with it, or there is no such file.
        PersistenceError: It is a file whose first line cannot be believed.
    """
    found = _find_session(text, store)
    if isinstance(found, UUID):
        return found, store
    with found.open("rb") as opened:
        ident = log.session_in(opened.readline(_MAX_HEADER_BYTES), str(found))
    return ident, FileStore.at(found.with_name(found.name.removesuffix(PARTIAL_SUFFIX)), ident)


def find_job(text: str, store: SessionStore) -> Session:
    """Return the record of the job that a command line names, by its name or its id; blocks.

    Raises:
        CommandError: There is no such job.
    """
    from rath.jobs.record import load_job  # noqa: PLC0415  # most verbs ask for no job

    found = load_job(store, text)
    if found is None and _digits_in(text) is not None:
        found = load_job(store, session_id_of(text, store))
    if found is None:
        with use_index(store) as index:
            near = did_you_mean(text, [report.name for _, report in iter_jobs(store, index)])
        raise CommandError(f"no job {text!r} in {store.where}.{near} `rath jobs ls` lists them")
    return found


def iter_jobs(store: SessionStore, index: StoreIndex) -> Iterator[tuple[str, JobReport]]:
    """Yield the reports of the jobs of a store, each with its state, the newest first."""
    from rath.jobs.record import OPERATOR, load_job, report_of  # noqa: PLC0415  # as above

    for each in index.summaries(SessionFilter(operator=OPERATOR)):
        job = load_job(store, each.id)
        report = None if job is None else report_of(job.record)
        if report is not None:
            yield each.state, report


def find_run(text: str | None, index: StoreIndex) -> UUID | None:
    """Return the workflow call that a command line names, by its id or the beginning of it.

    Raises:
        Misuse: The text is no beginning of an id, or that of several.
        CommandError: No session of the store was made in such a call.
    """
    if text is None:
        return None
    digits = _digits_in(text)
    if digits is None or len(digits) < MIN_PREFIX:
        raise Misuse(f"{text!r} names no workflow call; expected an id, or its first digits")
    return _only_one("workflow call", text, digits, index.runs())


def known_with_ancestors(
    index: StoreIndex, ident: UUID, *, has_descendants: bool = False
) -> list[SessionSummary]:
    """Return a session and all that it came from, perhaps also all that came from it.

    Raises:
        CommandError: The store has no such session.
    """
    wanted = [ident, *index.ancestors(ident)]
    if has_descendants:
        wanted += index.descendants(ident)
    found = index.known(wanted)
    if ident not in {each.id for each in found}:
        raise CommandError(
            f"session {ident} is not in {index.store.where}; `rath ls` lists what is"
        )
    return found


def _find_session(text: str, store: SessionStore) -> UUID | Path:
    """Return the session that a command line names, in the form that `Session.load` takes."""
    path = Path(text).expanduser()
    if text.endswith((SESSION_FILE_SUFFIX, PARTIAL_SUFFIX)) or {os.sep, os.altsep} & {*text}:
        if not path.is_file():
            raise CommandError(f"no session file {str(path)!r}")
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
    return _only_one("session", text, digits, store.stamps())


def _digits_in(text: str) -> str | None:
    """Return the hex digits with which an id begins, None for any other text."""
    digits = text.replace("-", "").lower()
    is_one = digits and set(digits) <= set("0123456789abcdef") and len(digits) <= _ID_DIGITS
    return digits if is_one else None


def _only_one(noun: str, text: str, digits: str, ids: Collection[UUID]) -> UUID:
    found = sorted(each for each in ids if each.hex.startswith(digits))
    if not found:
        near = did_you_mean(text, {short_id(each) for each in ids})
        raise CommandError(
            f"no {noun} of the store begins with {text!r}.{near} `rath ls` lists them"
        )
    if len(found) > 1:
        listed = ", ".join(map(str, found[:_MAX_LISTED]))
        more = f" and {len(found) - _MAX_LISTED} more" if len(found) > _MAX_LISTED else ""
        raise Misuse(f"{text!r} begins {len(found)} ids; give more digits: {listed}{more}")
    return found[0]
