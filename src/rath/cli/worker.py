"""`rath worker`: a process that carries out the items of jobs from a queue."""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import typer

from rath._async.runtime import runtime
from rath.cli.render import count_of
from rath.cli.runs import load_workflow
from rath.cli.stores import StoreUrl, use_store
from rath.cli.terminal import AsJson, Misuse, misuse_on, note, say, say_json
from rath.errors import MissingExtra
from rath.flow import Workflow
from rath.jobs.queue import DEFAULT_QUEUE, check_queue_name, split_queue
from rath.session.log.store import SessionStore

try:
    from rath.jobs.queue_database import QueueDatabase
    from rath.jobs.queue_worker import QueueWorker, WorkerOptions
    from rath.session.log.postgres import PostgresStore
    from rath.session.log.postgres_connection import Address
except ImportError as _missing:
    raise MissingExtra("queue", "`rath worker`") from _missing

_ANY = "any"
_ENDS = ("done", "failed", "waiting", "cancelled", "left")
_MODULE_AND_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
"""No file: whoever writes to the queue chooses among what is installed, not what lies around."""


def run_worker(
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="MODULE:WORKFLOW",
            help="What it carries out. Repeatable; `any` for all that can be imported.",
        ),
    ] = None,
    queue: Annotated[
        str,
        typer.Option(
            "--queue", metavar="NAME", help="In the database of the store, or the URL of a queue."
        ),
    ] = DEFAULT_QUEUE,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="Items that it carries out at once.")
    ] = 64,
    grace: Annotated[
        float,
        typer.Option("--grace", min=0.0, help="Seconds that items may go on when it is ended."),
    ] = 10.0,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when nothing waits or runs any more.")
    ] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Work on the items of jobs from a queue in PostgreSQL.

    SIGTERM or Ctrl-C end it: it takes nothing new, and what is not done after --grace another
    worker goes on with. A second one ends it at once.
    """
    load = _loader(allow or [])
    with use_store(store) as opened:
        options = WorkerOptions(concurrency=concurrency, grace=grace)
        worker = QueueWorker(_database(queue, opened), opened, load, options)
        for name in ("procrastinate", "psycopg.pool"):
            # What they meet the worker tells itself, in a line and without their tracebacks.
            logging.getLogger(name).setLevel(logging.CRITICAL)
        note(f"carries out items of queue {queue!r}; ends with SIGTERM or Ctrl-C")
        with _stopping(worker):
            runtime().run(partial(worker.serve, until_empty=until_empty), label="rath worker")
    counts = {status: worker.ended[status] for status in _ENDS}
    if as_json:
        say_json(counts)
        return
    ended = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
    say(f"{count_of(sum(counts.values()), 'item')}{f': {ended}' if ended else ''}")


def _loader(allowed: list[str]) -> Callable[[str], Workflow]:
    """Return what gives the workflow of a reference; those that are named are loaded now.

    Raises:
        Misuse: None is named, or one of them is not there.
    """
    if not allowed:
        raise Misuse(
            "--allow MODULE:WORKFLOW says what this worker carries out, such as agents:team; "
            "`--allow any` allows whatever can be imported here, to all who can write to the queue"
        )
    lock = threading.Lock()
    workflows = {name: load_workflow(name) for name in allowed if name != _ANY}

    def load(reference: str) -> Workflow:
        with lock:
            found = workflows.get(reference)
            if found is None and _ANY in allowed and _MODULE_AND_NAME.fullmatch(reference):
                found = workflows[reference] = load_workflow(reference)
        if found is None:
            raise Misuse(
                f"this worker does not carry out {reference!r}; allow it: "
                f"rath worker --allow {reference}"
            )
        return found

    return load


def _database(queue: str, store: SessionStore) -> QueueDatabase:
    """Return the queue of a name in the database of a store, or of a URL.

    Raises:
        Misuse: The store is in no database, or it is no such name or URL.
    """
    with misuse_on(ValueError):
        if "://" in queue:
            url, name = split_queue(queue)
            return QueueDatabase(Address.from_url(url), name)
        if not isinstance(store, PostgresStore):
            raise Misuse(
                f"the store {store.where} is in no database, so there is no queue beside it; give "
                "the URL of one: --queue postgres://host/database?queue=NAME"
            )
        return QueueDatabase(store.address, check_queue_name(queue))


@contextmanager
def _stopping(worker: QueueWorker) -> Generator[None]:
    """Have the first SIGTERM or SIGINT stop a worker, and the next one do what it always does."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, _frame: object) -> None:
        restore()
        worker.stop()

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        restore()
