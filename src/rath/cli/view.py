"""`rath view`: a session, or the runs of a job, as a page; a run that goes on is served."""

from __future__ import annotations

import re
import threading
import webbrowser
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from rath._core.text import short_id
from rath.cli.stores import StoreUrl, load_sessions, session_id_of, use_index, use_store
from rath.cli.terminal import CommandError, Misuse, misuse_on, note, say
from rath.errors import JobError
from rath.profiler import profile_sessions
from rath.session import Session
from rath.session.loading import load
from rath.session.view import PageLimits, write_page
from rath.session.view.page import Feed, LiveServer

MAX_BRANCHES = 500
"""Sessions of a lineage beside the one that is shown; a guess that keeps a page below 20 MB."""


def view(
    session: Annotated[
        str,
        typer.Argument(
            metavar="SESSION",
            help="An id, the beginning of one, or a session file; or the name of a job or an "
            "evaluation.",
        ),
    ],
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare", "-c", metavar="SESSION", help="Show this one, or this job, beside it."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The file; session-ID.html or JOB.html here."
        ),
    ] = None,
    is_opened: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Serve the page here, and follow the run; Ctrl-C ends.")
    ] = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="With --live; 0 for any that is free.")
    ] = 0,
    with_profile: Annotated[
        bool,
        typer.Option("--profile", help="Show also where its time and money went, as a flame view."),
    ] = False,
    has_branches: Annotated[
        bool,
        typer.Option(
            "--branches", help="Show also what else came from the same sessions of the store."
        ),
    ] = False,
    max_chars: Annotated[
        int, typer.Option("--max-chars", min=1, help="Show so much of one text.")
    ] = PageLimits().max_chars,
    store: StoreUrl = None,
) -> None:
    """Show a session, or the runs of a job, in the explorer, on one page.

    The page is one file that needs no network.
    """
    limits = PageLimits(max_chars=max_chars)
    if live:
        if has_branches:
            raise Misuse("--live follows one session; leave --branches out")
        if output is not None:
            raise Misuse("--live writes no file; leave --output out")
        if with_profile:
            raise Misuse("--live has no profile; leave --profile out, or write a file")
        with use_store(store) as opened:
            ident = session_id_of(session, opened)
            other = None if compare is None else session_id_of(compare, opened)
            title = f"Session {short_id(ident)}"
            feed = Feed(opened, ident, compare=other)
            _serve(LiveServer(feed, title=title, limits=limits, port=port), is_opened=is_opened)
        return
    job = _job_of(session, store)
    if job is not None:
        if with_profile or has_branches:
            raise Misuse("--profile and --branches are of a session; leave them out for a job")
        target = output or Path(f"{_file_name(job)}.html")
        with _writing(target):
            _write_runs(target, job, compare, store)
    else:
        target = _write_session(
            (session,) if compare is None else (session, compare),
            output,
            limits,
            store,
            has_profile=with_profile,
            has_branches=has_branches,
        )
    say(str(target))
    note(f"{target.stat().st_size // 1000} kB, in one file that needs no other")
    if is_opened:
        webbrowser.open(target.absolute().as_uri())


def _write_session(
    texts: tuple[str, ...],
    output: Path | None,
    limits: PageLimits,
    store: str | None,
    *,
    has_profile: bool,
    has_branches: bool,
) -> Path:
    """Write the page of a session, perhaps beside a second one, and return its file."""
    with load_sessions(*texts, store=store) as (page, *others):
        target = output or Path(f"session-{short_id(page.id)}.html")
        with _writing(target):
            write_page(
                page,
                target,
                compare=others[0] if others else None,
                others=_branches_of(page, store) if has_branches else (),
                limits=limits,
                profile=profile_sessions([page]).flame_data() if has_profile else "",
            )
    return target


def _branches_of(session: Session, store: str | None) -> list[Session]:
    """Return the newest sessions that came from those that a session came from."""
    with use_store(store) as opened, use_index(opened) as index:
        family = index.known((session.id, *index.ancestors(session.id)))
        # Instructions, in which no user speaks, belong to many runs and make no branches of them.
        starts = [each.id for each in family if each.parents or each.title]
        known = index.known({each for start in starts for each in index.descendants(start)})
        newest = sorted(known, key=lambda each: each.created_at)[-MAX_BRANCHES:]
        if len(known) > len(newest):
            note(f"{len(known) - len(newest)} older sessions of the lineage are left out")
        return [load(opened, each.id).session for each in newest]


@contextmanager
def _writing(target: Path) -> Generator[None]:
    """Tell of a file that cannot be written as a command does."""
    try:
        yield
    except OSError as exc:
        raise CommandError(f"{target} cannot be written: {exc.strerror}") from exc


def _job_of(text: str, store: str | None) -> str | None:
    """Return the name of the job or evaluation that a command line names, None for a session."""
    from rath.jobs.record import load_job, report_of  # noqa: PLC0415  # most pages are of sessions

    with use_store(store) as opened:
        found = load_job(opened, text)
    report = None if found is None else report_of(found.record)
    return None if report is None else report.name


def _write_runs(target: Path, job: str, compare: str | None, store: str | None) -> None:
    """Write the page of the runs of a job, beside another one where there is one."""
    from rath.eval import load_evaluation, write_page  # noqa: PLC0415  # as above

    with use_store(store) as opened, misuse_on(JobError):
        others = [] if compare is None else [load_evaluation(compare, opened)]
        write_page(load_evaluation(job, opened), target, others)


def _file_name(job: str) -> str:
    return re.sub(r"[^\w.-]+", "-", job).strip("-.")[:60] or "job"


def _serve(server: LiveServer, *, is_opened: bool) -> None:
    writing = threading.Lock()

    def tell_address(address: str) -> None:
        with writing:
            say(address)
            note("the address holds a secret and works on this machine; Ctrl-C ends")
        if is_opened:
            webbrowser.open(address)

    def tell_end(state: str) -> None:
        with writing:
            note(f"the run has ended: {state.replace('_', ' ')}")

    try:
        server.serve(on_ready=tell_address, on_end=tell_end)
    except KeyboardInterrupt:
        # For good: a thread of the server that wrote while the interpreter ends would abort it.
        writing.acquire()
        note("no longer served")
