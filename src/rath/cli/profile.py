"""`rath profile`: where the time, tokens and money of a stored session or job went."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, cast, get_args
from uuid import UUID

import typer

from rath._core.text import short_id
from rath.cli.render import count_of
from rath.cli.stores import StoreUrl, find_job, load_sessions, use_store
from rath.cli.terminal import AsJson, CommandError, Damaged, misuse_on, note, say, say_json
from rath.errors import PersistenceError, SessionDamaged
from rath.jobs.record import attempts_of, load_job
from rath.profiler import GroupBy, Profile, SortBy, profile_sessions
from rath.session import Session
from rath.session.log.store import SessionStore


def profile(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="SESSION|JOB",
            help="An id, the beginning of one, a session file, or the name of a job.",
        ),
    ],
    group_by: Annotated[
        str, typer.Option("--by", help=f"What a row is for: {', '.join(get_args(GroupBy))}.")
    ] = "path",
    sort_by: Annotated[
        str, typer.Option("--sort", help=f"The column that orders: {', '.join(get_args(SortBy))}.")
    ] = "wall",
    row_limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="So many rows.")] = 100,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write a Chrome trace, for Perfetto."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with a flame view.")
    ] = None,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Profile a session or a job: time, tokens and cost by module path.

    Of a session counts all that it came from, of a job each item that has a session.
    """
    made, title = _profile_of(subject, store_url)
    with misuse_on(ValueError):
        table = made.table(
            sort_by=cast("SortBy", sort_by),
            row_limit=row_limit,
            group_by=cast("GroupBy", group_by),
        )
    if trace is not None:
        _write(made.export_chrome_trace, trace)
    if html is not None:
        _write(partial(made.export_html, title=title), html)
    if as_json:
        say_json(made.to_json())
    else:
        for line in table.splitlines():
            say(line)


def _write(write: Callable[[Path], None], path: Path) -> None:
    try:
        write(path)
    except OSError as exc:
        raise CommandError(f"{path} cannot be written: {exc.strerror}") from exc
    note(f"{path} written")


def _profile_of(subject: str, store_url: str | None) -> tuple[Profile, str]:
    """Return the profile of what a command line names, and a title.

    A job is found by its name; an id is that of a session, which may be the record of a job.
    """
    with use_store(store_url) as store:
        job = load_job(store, subject) or _job_with_id(subject, store)
        if job is not None:
            return _of_job(job, store), f"Profile of job {subject}"
    with load_sessions(subject, store=store_url) as (session,):
        return profile_sessions([session]), f"Profile of session {short_id(session.id)}"


def _job_with_id(subject: str, store: SessionStore) -> Session | None:
    try:
        return find_job(subject, store)
    except (CommandError, PersistenceError):
        return None


def _of_job(job: Session, store: SessionStore) -> Profile:
    """Return the sums over the items of a job, each by the session of its last attempt."""
    last = [each[-1].session for each in attempts_of(job.record).values()]
    loaded = [_load(session, store) for session in last if session is not None]
    n_missing = sum(each is None for each in loaded)
    if n_missing:
        note(f"{count_of(n_missing, 'session')} of the job cannot be read and does not count")
    return profile_sessions(each for each in loaded if each is not None)


def _load(session: UUID, store: SessionStore) -> Session | None:
    try:
        return Session.load(session, store=store)
    except SessionDamaged as exc:
        raise Damaged(str(exc)) from exc
    except PersistenceError:
        return None
