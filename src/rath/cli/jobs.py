"""`rath jobs`: workflows that run over many items, seen and steered through their store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated, Literal

import typer

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
from rath.cli.stores import StoreUrl, find_job, use_index, use_store
from rath.cli.terminal import AsJson, CommandError, Exit, note, say, say_json
from rath.errors import PersistenceError
from rath.jobs.engine import DEFAULT_CONCURRENCY
from rath.jobs.job import Job, retry_job
from rath.jobs.record import OPERATOR, JobReport, ask_to_cancel, attempts_of, load_job, report_of
from rath.session import Session
from rath.session.log.index import SessionFilter
from rath.session.record import Entry, ItemRun, JobStart

JobText = Annotated[str, typer.Argument(metavar="JOB", help="The name of a job, or its id.")]
_ENDED = ("done", "failed", "waiting", "cancelled", "pending")


def list_jobs(store_url: StoreUrl = None, as_json: AsJson = False) -> None:
    """List jobs, the newest first: how many of their items are done, and what they took."""
    with use_store(store_url) as store, use_index(store) as index:
        found = index.summaries(SessionFilter(operator=OPERATOR))
        states = {each.id: each.state for each in found}
        loaded = [load_job(store, each.id) for each in found]
    reports = [
        (states[each.id], report)
        for each in loaded
        if each is not None and (report := report_of(each.record)) is not None
    ]
    if as_json:
        say_json({"jobs": [{"state": state, **_report_json(report)} for state, report in reports]})
    elif reports:
        say_table(
            [
                [
                    report.name, state, _counts(report), moment(report.started_at), report.engine,
                    f"{report.tokens:,} tokens", money(report.usd),
                ]
                for state, report in reports
            ],
            ["bold", "", "", "dim", "", "right", "right"],
        )  # fmt: skip
    else:
        note(f"there are no jobs in {store.where}")


def show_job(job: JobText, store_url: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show what came of a job: counts, costs, and each item that failed or waits."""
    with use_store(store_url) as store:
        found = find_job(job, store)
    report = _report(found, job)
    open_items = [
        each[-1] for each in attempts_of(found.record).values() if each[-1].status != "done"
    ]
    if as_json:
        items = [
            {
                "key": each.key, "epoch": each.epoch, "status": each.status, "run": each.run,
                "session": each.session, "attempt": each.attempt, "error": each.error,
            }
            for each in open_items
        ]  # fmt: skip
        say_json({**_report_json(report), "id": found.id, "items": items})
        return
    say(str(report).partition("\n")[0])
    say(f"{count_of(report.n_attempts, 'attempt')}, {report.tokens:,} tokens, {money(report.usd)}")
    say_lines(
        line(
            (f"{each.status:<10}", STATE_STYLES.get(each.status, "")),
            (f"{one_line(each.key)}  ", "bold"),
            ("" if each.session is None else f"{each.session}  ", "dim"),
            one_line(each.error or ""),
        )
        for each in open_items
    )


def tail_job(job: JobText, store_url: StoreUrl = None) -> None:
    """Show the items of a job as they end, until the job does."""
    with use_store(store_url) as store:
        followed = Session.follow(find_job(job, store).id, store=store)

        async def show() -> None:
            async for each in followed.stream():
                if isinstance(each, JobStart | ItemRun):
                    say(_ended_line(each))

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
    """Start the items of a job again that failed; what was answered is not repeated.

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
    """Ask the driver of a job, wherever it runs, to end it; a later start goes on."""
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
        "errors": [{"error": error, "n": number} for error, number in report.errors],
    }  # fmt: skip


def _counts(report: JobReport) -> str:
    known: Iterable[str] = (state for state in _ENDED if report.counts.get(state))
    parts = ", ".join(f"{report.counts[state]} {state}" for state in known)
    return f"{parts or 'nothing'} of {report.n_items}"


def _ended_line(entry: Entry) -> str:
    return f"{moment(entry.at)}  {entry_text(entry)}"
