"""`rath jobs`: workflows that run over many items, seen and steered through their store."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import typer

from rath.cli.lists import MOST_LISTED, Limit, TextFilter, page_of, say_page
from rath.cli.render import (
    STATE_STYLES,
    count_of,
    line,
    moment,
    money,
    one_line,
    say_lines,
    say_table,
)
from rath.cli.runs import load_workflow, program_errors
from rath.cli.show import entry_text
from rath.cli.stores import StoreUrl, find_job, iter_jobs, use_index, use_store
from rath.cli.terminal import AsJson, CommandError, Exit, note, say, say_json
from rath.errors import PersistenceError
from rath.jobs.engine import DEFAULT_CONCURRENCY
from rath.jobs.job import Job, retry_job
from rath.jobs.record import JobReport, ask_to_cancel, attempts_of, report_of
from rath.session import Session
from rath.session.record import ItemRun, JobStart

JobText = Annotated[str, typer.Argument(metavar="JOB", help="The name of a job, or its id.")]
JobStates = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help="Only in this state. Repeatable."),
]
ItemStates = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="done|failed|waiting|cancelled",
        help="Only items in this state, also done ones. Repeatable.",
    ),
]
_NOT_DONE = ("failed", "waiting", "cancelled")
_ENDED = ("done", "failed", "waiting", "cancelled", "pending")


def list_jobs(
    text: TextFilter = None,
    states: JobStates = None,
    limit: Limit = MOST_LISTED,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first: items by state, tokens and cost."""
    with use_store(store_url) as store, use_index(store) as index:
        found = [
            (state, report)
            for state, report in iter_jobs(store, index)
            if not states or state in states
        ]

    def show(shown: Sequence[tuple[str, JobReport]]) -> None:
        say_table(
            [
                [
                    report.name, state, _counts(report), moment(report.started_at), report.engine,
                    f"{report.tokens:,} tokens", money(report.usd, is_complete=report.is_priced),
                ]
                for state, report in shown
            ],
            ["bold", "", "", "dim", "", "right", "right"],
        )  # fmt: skip

    say_page(
        page_of(found, "job", text=text, limit=limit, order="newest"),
        "jobs",
        show,
        as_json=as_json,
        empty=f"there are no jobs in {store.where}"
        if not text and not states
        else f"no job of {store.where} fits",
        encode=lambda each: {"state": each[0], **_report_json(each[1])},
    )


def show_job(
    job: JobText,
    text: TextFilter = None,
    states: ItemStates = None,
    limit: Limit = MOST_LISTED,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the results of a job: counts, cost, and items that are not done.

    With --state the items of these states are shown, done ones too.
    """
    with use_store(store_url) as store:
        found = find_job(job, store)
    report = _report(found, job)
    last = (each[-1] for each in attempts_of(found.record).values())
    items = [each for each in last if each.status in (states or _NOT_DONE)]

    def show(shown: Sequence[ItemRun]) -> None:
        say_lines(
            line(
                (f"{each.status:<10}", STATE_STYLES.get(each.status, "")),
                (f"{one_line(each.key)}  ", "bold"),
                ("" if each.session is None else f"{each.session}  ", "dim"),
                one_line(each.error or ""),
            )
            for each in shown
        )

    if not as_json:
        usd = money(report.usd, is_complete=report.is_priced)
        say(str(report).partition("\n")[0])
        say(f"{count_of(report.n_attempts, 'attempt')}, {report.tokens:,} tokens, {usd}")
    say_page(
        page_of(items, "item", text=text, limit=limit),
        "items",
        show,
        as_json=as_json,
        empty="",
        facts={**_report_json(report), "id": found.id},
        encode=lambda each: {
            "key": each.key, "epoch": each.epoch, "status": each.status, "run": each.run,
            "session": each.session, "attempt": each.attempt, "error": each.error,
        },
    )  # fmt: skip
    if not as_json:
        shown_store = "" if store_url is None else f"--store {shlex.quote(store_url)} "
        note(f"its runs in the explorer: rath view {shown_store}{shlex.quote(report.name)}")


def tail_job(job: JobText, store_url: StoreUrl = None) -> None:
    """Follow a job: show its items as they end."""
    with use_store(store_url) as store:
        followed = Session.follow(find_job(job, store).id, store=store)

        async def show() -> None:
            async for each in followed.stream():
                if isinstance(each, JobStart | ItemRun):
                    say(f"{moment(each.at)}  {entry_text(each)}")

        try:
            asyncio.run(show())
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None


def retry_items(
    job: JobText,
    workflow: Annotated[
        str,
        typer.Argument(metavar="MODULE:WORKFLOW", help="The program; `agents:team` in agents.py."),
    ],
    state: Annotated[
        Literal["failed", "waiting", "cancelled"],
        typer.Option("--state", help="Which items: those that ended like this."),
    ] = "failed",
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="URL", help="Where: procs:4, ray://auto, ...")
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="Items in flight at most.")
    ] = DEFAULT_CONCURRENCY,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Retry the failed items of a job; no answered call is repeated.

    The exit status is 1 where an item is not done then.
    """
    with use_store(store_url) as store:
        name = _report(find_job(job, store), job).name
        program = load_workflow(workflow)
        with program_errors(workflow):
            started: Job = retry_job(
                program,
                name,
                store,
                states=(state,),
                engine=engine,
                reference=workflow,
                concurrency=concurrency,
            ).synchronize()
        counts = {each.key: each.state for each in started.items}
        report = started.report()
    if as_json:
        say_json({**_report_json(report), "retried": counts})
    else:
        say(f"{count_of(len(counts), 'item')} started again; {report}")
    if any(each != "done" for each in counts.values()):
        raise typer.Exit(Exit.WORLD)


def cancel_job(job: JobText, store_url: StoreUrl = None) -> None:
    """Cancel a job, wherever its driver runs; a later start resumes it."""
    with use_store(store_url) as store:
        found = find_job(job, store)
        try:
            ask_to_cancel(store, found)
        except PersistenceError as exc:
            raise CommandError(str(exc)) from exc
    say(f"job {_report(found, job).name}: asked to end; `rath jobs tail` shows when it has")


def _report(job: Session, name: str) -> JobReport:
    """Return the report of a job.

    Raises:
        CommandError: No driver has started it.
    """
    report = report_of(job.record)
    if report is None:
        raise CommandError(f"job {name!r} has not started yet")
    return report


def _report_json(report: JobReport) -> dict[str, object]:
    return {
        "name": report.name, "engine": report.engine, "started_at": report.started_at,
        "n_items": report.n_items, "counts": dict(report.counts),
        "n_attempts": report.n_attempts, "tokens": report.tokens, "usd": report.usd,
        "is_priced": report.is_priced,
        "errors": [{"error": error, "n": number} for error, number in report.errors],
    }  # fmt: skip


def _counts(report: JobReport) -> str:
    known: Iterable[str] = (state for state in _ENDED if report.counts.get(state))
    parts = ", ".join(f"{report.counts[state]} {state}" for state in known)
    return f"{parts or 'nothing'} of {report.n_items}"
