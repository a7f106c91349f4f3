"""Items that processes of `rath worker` take from a queue in PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_item

pytest.importorskip("procrastinate", reason="the extra queue is not installed")

from procrastinate.schema import SchemaManager

from rath import flow
from rath._async.runtime import runtime
from rath.errors import EngineError
from rath.jobs.engine import (
    Engine,
    ItemEvent,
    JobSpec,
    WorkItem,
    find_engine,
    job_id,
    run_id,
)
from rath.jobs.queue_database import TABLES_LOCK, QueueDatabase
from rath.session.persistence.store import open_store
from rath.session.persistence.store.postgres import postgres_store
from tests.support.job_program import (
    CountedItem,
    count,
    counted_items,
    lines,
    release,
    repeated_calls,
    team,
)
from tests.support.journal_store import JournalStore
from tests.support.postgres_server import PASSWORD, PostgresServer, postgres
from tests.support.waiting import PATIENCE, wait_until

__all__ = ["postgres"]

TEAM = "tests.support.job_program:team"
ROOT = Path(__file__).parents[2]
IS_FULL = os.environ.get("RATH_FULL") == "1"


class Workers:
    """Processes of `rath worker` on one store."""

    def __init__(self, store: str, folder: Path) -> None:
        self.store = store
        self._folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str, allow: str = TEAM) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "rath", "worker", "--store", self.store]
        log = self._folder / f"worker-{len(self.running)}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--allow", allow, *options], cwd=ROOT, stdout=output, stderr=output
            )
        self.running.append(process)
        return process

    def log(self, process: subprocess.Popen[bytes]) -> str:
        return (self._folder / f"worker-{self.running.index(process)}").read_text()

    def stop(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.running:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


@contextlib.contextmanager
def connected(url: str) -> Generator[Any]:
    """Connect to the schema of a store, with its tables."""
    with postgres_store(url).address.connect() as connection:
        yield connection


def content(url: str, query: str) -> str:
    with connected(url) as connection:
        return "\n".join(str(row[0]) for row in connection.execute(query).fetchall())


def queued_in(url: str) -> int:
    """How many items wait or run, 0 where there is no queue yet."""
    if content(url, "SELECT to_regclass('procrastinate_jobs')") == "None":
        return 0
    return int(content(url, "SELECT count(*) FROM procrastinate_jobs"))


def queued(workers: Workers) -> int:
    return queued_in(workers.store)


def late(item: CountedItem) -> CountedItem:
    return replace_item(item, key=f"late-{item.key}", seconds=0.05)


@pytest.fixture
def workers(postgres: PostgresServer, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(postgres.url(), tmp_path)
    yield made
    made.stop()


def mapped(workers: Workers, items: Sequence[CountedItem], **options: Any) -> Any:
    return flow.map(
        TEAM,
        items,
        key="key",
        session=CountedItem.session,
        store=workers.store,
        engine=workers.store,
        progress=False,
        **options,
    )


def held_by(folder: Path, process: subprocess.Popen[bytes]) -> set[str]:
    """The items that wait in a worker for `release`."""
    return {key for key, _, pid in lines(folder, "held") if int(pid) == process.pid}


def spec_of(workers: Workers, **options: Any) -> JobSpec:
    store = open_store(workers.store)
    return JobSpec(
        job=job_id("j"), name="j", workflow=team(), store=store, reference=TEAM, **options
    )


def work_item(spec: JobSpec, item: CountedItem, attempt: int = 1) -> WorkItem:
    session = item.session()
    session.save(store=spec.store)
    return WorkItem(run_id(spec.job, item.key, 0), attempt, session)


async def next_events(engine: Engine, n: int) -> list[ItemEvent]:
    events = engine.events()
    return [await anext(events) for _ in range(n)]


def test_items_are_carried_out_by_a_worker(workers: Workers, tmp_path: Path) -> None:
    worker = workers.start()
    done = list(mapped(workers, counted_items(3, tmp_path)))
    assert [(each.state, each.error) for each in done] == [("done", None)] * 3
    assert count(tmp_path, "effects") == {"i0": 1, "i1": 1, "i2": 1}
    assert repeated_calls(tmp_path) == {}
    workers.stop()
    assert (worker.returncode, "3 items: 3 done" in workers.log(worker)) == (0, True)


def test_a_worker_ends_when_the_queue_is_empty(workers: Workers, tmp_path: Path) -> None:
    job = mapped(workers, counted_items(2, tmp_path))
    wait_until(lambda: queued(workers) == 2, "both items are in the queue")
    worker = workers.start("--until-empty", "--json")
    assert worker.wait(PATIENCE) == 0, workers.log(worker)
    assert '"done": 2' in workers.log(worker)
    assert [each.state for each in job] == ["done", "done"]


def test_a_workflow_without_a_name_is_refused(workers: Workers, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r'give flow.map the text "module:name"'):
        list(
            flow.map(
                team(),
                counted_items(1, tmp_path),
                session=CountedItem.session,
                store=workers.store,
                engine=workers.store,
                progress=False,
            )
        )


def test_a_store_of_this_process_is_refused(workers: Workers) -> None:
    spec = replace(spec_of(workers), store=JournalStore())
    with pytest.raises(EngineError, match="no worker can read it"):
        runtime().run(partial(find_engine(workers.store).open, spec), label="a test")


@pytest.mark.parametrize("allow", [TEAM, "any"])
def test_a_worker_imports_only_what_it_allows(workers: Workers, tmp_path: Path, allow: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\nteam = None\n")
    workers.start(allow=allow)
    given = replace(spec_of(workers), reference=f"{program}:team")

    async def carry_out() -> ItemEvent:
        engine = find_engine(workers.store)
        await engine.open(given)
        engine.submit(item)
        (event,) = await next_events(engine, 1)
        await engine.close()
        return event

    item = work_item(given, counted_items(1, tmp_path)[0])
    event = runtime().run(carry_out, label="a test")
    assert (event.status, event.retryable) == ("failed", False)
    assert f"rath worker --allow {program}:team" in (event.error or "")
    assert not (tmp_path / "imported").exists()


def test_a_worker_needs_to_be_told_what_it_may_do(workers: Workers) -> None:
    command = [sys.executable, "-m", "rath", "worker", "--store", workers.store]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, "--allow MODULE:WORKFLOW" in ended.stderr) == (2, True)


def test_what_is_no_item_harms_nobody(workers: Workers, tmp_path: Path) -> None:
    given = spec_of(workers)

    async def carry_out() -> list[ItemEvent]:
        engine = find_engine(workers.store)
        await engine.open(given)
        engine.submit(item)
        await runtime().call_in_worker(partial(wait_until, lambda: queued(workers) == 1))
        with connected(workers.store) as connection:
            for arguments in ('{"run": "x"}', '{"job": 1, "code": "import os"}'):
                connection.execute(
                    "INSERT INTO procrastinate_jobs (queue_name, task_name, priority, lock, args) "
                    "SELECT queue_name, task_name, 9, lock, %s FROM procrastinate_jobs LIMIT 1",
                    (arguments,),
                )
            connection.execute(
                "INSERT INTO item_events (job, driver, event) SELECT (args->>'job')::uuid, "
                "(args->>'driver')::uuid, 'x' FROM procrastinate_jobs WHERE priority = 0"
            )
        workers.start()
        events = await next_events(engine, 1)
        await engine.close()
        return events

    item = work_item(given, counted_items(1, tmp_path)[0])
    (event,) = runtime().run(carry_out, label="a test")
    assert (event.run, event.status) == (item.run, "done")


def test_items_of_a_killed_worker_go_on_elsewhere(workers: Workers, tmp_path: Path) -> None:
    n_items = 200 if IS_FULL else 24
    first, second = workers.start("--concurrency", "100"), workers.start("--concurrency", "100")
    # Fewer than may be in flight at an endpoint of which nothing is known.
    held = 12
    items = [
        replace_item(item, behaviour="hold" if at < held else "work")
        for at, item in enumerate(counted_items(n_items, tmp_path))
    ]
    job = mapped(workers, items, concurrency=n_items)
    wait_until(
        lambda: len(held_by(tmp_path, first) | held_by(tmp_path, second)) == held,
        "as many items are held",
    )
    victim, other = max(
        (first, second), (second, first), key=lambda pair: len(held_by(tmp_path, pair[0]))
    )
    before = len(held_by(tmp_path, other))
    victim.kill()
    killed = time.monotonic()
    wait_until(lambda: len(held_by(tmp_path, other)) > before, "the other worker has one of them")
    first_seconds = time.monotonic() - killed
    wait_until(lambda: len(held_by(tmp_path, other)) == held, "the other worker has them all")
    sys.stdout.write(
        f"{held - before} items of a killed worker went on elsewhere, the first one after "
        f"{first_seconds:.1f} s, the last one after {time.monotonic() - killed:.1f} s\n"
    )
    release(tmp_path)
    assert [each.state for each in job] == ["done"] * n_items
    assert count(tmp_path, "effects") == {item.key: 1 for item in items}


def test_what_a_worker_leaves_another_goes_on_with(workers: Workers, tmp_path: Path) -> None:
    first = workers.start("--grace", "0")
    job = mapped(workers, counted_items(2, tmp_path, "hold"))
    wait_until(lambda: len(held_by(tmp_path, first)) == 2)
    first.send_signal(signal.SIGTERM)
    assert first.wait(PATIENCE) == 0
    assert "2 items: 2 left" in workers.log(first)
    second = workers.start()
    wait_until(lambda: len(held_by(tmp_path, second)) == 2)
    release(tmp_path)
    assert [each.state for each in job] == ["done"] * 2
    assert count(tmp_path, "effects") == {"i0": 1, "i1": 1}


def test_cut_connections_lose_nothing(
    postgres: PostgresServer, workers: Workers, tmp_path: Path
) -> None:
    workers.start()
    given = spec_of(workers)
    items = [*counted_items(4, tmp_path, "hold"), *map(late, counted_items(4, tmp_path))]
    first = {each.run: each for each in (work_item(given, item) for item in items)}

    async def carry_out() -> list[str]:
        engine = find_engine(workers.store)
        await engine.open(given)
        for item in first.values():
            engine.submit(item)
        held = partial(wait_until, lambda: len({key for key, *_ in lines(tmp_path, "held")}) == 4)
        await runtime().call_in_worker(held)
        postgres.cut_connections()
        release(tmp_path)
        attempts = dict.fromkeys(first, 1)
        done = set[str]()
        events = engine.events()
        while len(done) < len(first):
            event = await anext(events)
            if event.status == "done":
                done.add(str(event.run))
            elif event.attempt == attempts[event.run]:
                # Its log was lost with the connection: the next attempt goes on with it.
                attempts[event.run] += 1
                item = first[event.run]
                engine.submit(WorkItem(event.run, attempts[event.run], item.session))
        await engine.close()
        return sorted(done)

    assert len(runtime().run(carry_out, label="a test")) == 8
    assert count(tmp_path, "effects") == {item.key: 1 for item in items}


def test_what_was_submitted_again_replaces_what_a_dead_worker_had(
    workers: Workers, tmp_path: Path
) -> None:
    first = workers.start()
    given = spec_of(workers)
    item = work_item(given, counted_items(1, tmp_path, "hold")[0])

    async def carry_out() -> list[ItemEvent]:
        engine = find_engine(workers.store)
        await engine.open(given)
        engine.submit(item)
        await runtime().call_in_worker(partial(wait_until, lambda: bool(held_by(tmp_path, first))))
        first.kill()
        engine.submit(item)
        await runtime().call_in_worker(partial(wait_until, lambda: queued(workers) == 2))
        second = workers.start()
        await runtime().call_in_worker(partial(wait_until, lambda: bool(held_by(tmp_path, second))))
        release(tmp_path)
        events = await next_events(engine, 1)
        await engine.close()
        return events

    (event,) = runtime().run(carry_out, label="a test")
    assert event.status == "done"
    wait_until(lambda: queued(workers) == 0)
    assert count(tmp_path, "effects") == {"i0": 1}


def test_an_item_of_a_dead_worker_is_cancelled(workers: Workers, tmp_path: Path) -> None:
    first = workers.start()
    given = spec_of(workers)
    item = work_item(given, counted_items(1, tmp_path, "hold")[0])
    asked = "SELECT count(*) FROM procrastinate_jobs WHERE abort_requested"

    async def carry_out() -> list[ItemEvent]:
        engine = find_engine(workers.store)
        await engine.open(given)
        engine.submit(item)
        await runtime().call_in_worker(partial(wait_until, lambda: bool(held_by(tmp_path, first))))
        first.kill()
        engine.cancel(item.run)
        is_asked = partial(wait_until, lambda: content(workers.store, asked) == "1")
        await runtime().call_in_worker(is_asked)
        workers.start()
        events = await next_events(engine, 1)
        await engine.close()
        return events

    (event,) = runtime().run(carry_out, label="a test")
    assert (event.run, event.attempt, event.status) == (item.run, 1, "cancelled")
    wait_until(lambda: queued(workers) == 0)


def test_an_item_whose_end_could_not_be_written_comes_again(
    workers: Workers, tmp_path: Path
) -> None:
    workers.start()
    given = spec_of(workers)
    before, item = (work_item(given, each) for each in counted_items(2, tmp_path))

    async def carry_out() -> list[ItemEvent]:
        engine = find_engine(workers.store)
        elsewhere = find_engine(f"{workers.store}&queue=elsewhere")
        await engine.open(given)
        engine.submit(before)
        ended = await next_events(engine, 1)
        await engine.close()
        await elsewhere.open(given)
        elsewhere.submit(item)
        await runtime().call_in_worker(partial(wait_until, lambda: queued(workers) == 1))
        name = QueueDatabase(postgres_store(workers.store).address, "rath").queue
        with connected(workers.store) as connection:
            connection.execute(
                "UPDATE procrastinate_jobs SET status = 'doing', queue_name = %s, "
                "worker_id = (SELECT id FROM procrastinate_workers)",
                (name,),
            )
        ended += await next_events(elsewhere, 1)
        await elsewhere.close()
        return ended

    events = runtime().run(carry_out, label="a test")
    assert [(each.run, each.status) for each in events] == [
        (before.run, "done"),
        (item.run, "done"),
    ]


def test_an_item_that_waits_in_the_queue_is_cancelled(workers: Workers, tmp_path: Path) -> None:
    given = spec_of(workers)

    async def carry_out() -> list[ItemEvent]:
        engine = find_engine(workers.store)
        await engine.open(given)
        engine.submit(item)
        engine.cancel(item.run)
        events = await next_events(engine, 1)
        await engine.close()
        return events

    item = work_item(given, counted_items(1, tmp_path)[0])
    (event,) = runtime().run(carry_out, label="a test")
    assert (event.run, event.attempt, event.status) == (item.run, 1, "cancelled")
    assert queued(workers) == 0


def test_an_item_that_runs_is_cancelled(workers: Workers, tmp_path: Path) -> None:
    workers.start()
    given = spec_of(workers)

    async def carry_out() -> list[ItemEvent]:
        engine = find_engine(workers.store)
        await engine.open(given)
        engine.submit(item)
        await runtime().call_in_worker(partial(wait_until, lambda: bool(lines(tmp_path, "held"))))
        engine.cancel(item.run)
        events = await next_events(engine, 1)
        await engine.close()
        return events

    item = work_item(given, counted_items(1, tmp_path, "hold")[0])
    (event,) = runtime().run(carry_out, label="a test")
    assert (event.run, event.attempt, event.status) == (item.run, 1, "cancelled")
    wait_until(lambda: queued(workers) == 0)


def test_an_item_that_is_submitted_twice_waits_once(workers: Workers, tmp_path: Path) -> None:
    given = spec_of(workers)

    async def submit() -> int:
        first, second = find_engine(workers.store), find_engine(workers.store)
        for engine in (first, second):
            await engine.open(given)
            engine.submit(item)
            engine.submit(item)
            waits = partial(wait_until, lambda: queued(workers) > 0)
            await runtime().call_in_worker(waits)
        workers.start()
        events = await next_events(second, 1)
        await first.close()
        await second.close()
        return len(events)

    item = work_item(given, counted_items(1, tmp_path)[0])
    assert runtime().run(submit, label="a test") == 1
    assert count(tmp_path, "effects") == {"i0": 1}
    assert repeated_calls(tmp_path) == {}


def test_a_later_driver_goes_on_with_what_runs(workers: Workers, tmp_path: Path) -> None:
    workers.start()
    given = spec_of(workers)
    item = work_item(given, counted_items(1, tmp_path, "hold")[0])

    async def begin() -> None:
        engine = find_engine(workers.store)
        await engine.open(given)
        engine.submit(item)
        await runtime().call_in_worker(partial(wait_until, lambda: bool(lines(tmp_path, "held"))))
        await engine.close()

    async def go_on() -> ItemEvent:
        engine = find_engine(workers.store)
        await engine.open(given)
        engine.submit(item)
        release(tmp_path)
        (event,) = await next_events(engine, 1)
        await engine.close()
        return event

    runtime().run(begin, label="a test")
    event = runtime().run(go_on, label="a test")
    assert (event.status, event.session is not None) == ("done", True)
    assert count(tmp_path, "effects") == {"i0": 1}
    assert repeated_calls(tmp_path) == {}


def test_the_queue_has_no_secret(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.url(user="guarded", password=PASSWORD)
    given = spec_of(Workers(url, tmp_path))
    item = work_item(given, counted_items(1, tmp_path)[0])

    async def submit() -> str:
        engine = find_engine(url)
        await engine.open(given)
        engine.submit(item)
        await runtime().call_in_worker(partial(wait_until, lambda: queued_in(url) == 1))
        found = content(url, "SELECT args::text FROM procrastinate_jobs")
        await engine.close()
        return found

    found = runtime().run(submit, label="a test")
    assert TEAM in found
    assert PASSWORD not in found


def test_a_role_that_may_not_make_tables_is_told_what_to_run(
    postgres: PostgresServer, workers: Workers
) -> None:
    with postgres.connect() as connection:
        connection.execute("DROP ROLE IF EXISTS visitor")
        connection.execute("CREATE ROLE visitor LOGIN")
    url = postgres.url(user="visitor")
    with pytest.raises(EngineError, match="run once: rath worker --store URL --queue rath"):
        runtime().run(partial(find_engine(url).open, spec_of(workers)), label="a test")


def test_tables_of_an_earlier_procrastinate_are_upgraded(workers: Workers, tmp_path: Path) -> None:
    files = sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
    earlier = [each for each in files if each.name < "03.02"]
    with connected(workers.store) as connection:
        for each in earlier:
            connection.execute(each.read_bytes())
        connection.execute("CREATE TABLE queue_version (version integer, migration text)")
        values = (1, earlier[-1].name)
        connection.execute("INSERT INTO queue_version VALUES (%s, %s)", values)
    workers.start()
    assert [each.state for each in mapped(workers, counted_items(1, tmp_path))] == ["done"]
    assert content(workers.store, "SELECT migration FROM queue_version") == files[-1].name


def test_tables_that_many_want_at_once_are_made_once(workers: Workers) -> None:
    address = postgres_store(workers.store).address
    databases = [QueueDatabase(address, "rath") for _ in range(4)]

    async def open_all(release: Callable[[], object]) -> None:
        opening = [asyncio.ensure_future(each.open()) for each in databases]
        await asyncio.to_thread(wait_until, lambda: waiting_for_lock() == len(databases))
        release()
        for done in await asyncio.gather(*opening, return_exceptions=True):
            assert done is None
        for each in databases:
            await each.close()

    def waiting_for_lock() -> int:
        query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        return int(content(workers.store, query))

    with connected(workers.store) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (TABLES_LOCK,))
        unlock = partial(connection.execute, "SELECT pg_advisory_unlock(%s)", (TABLES_LOCK,))
        runtime().run(partial(open_all, unlock), label="a test")
    assert content(workers.store, "SELECT count(*) FROM queue_version") == "1"


def test_tables_of_a_later_version_are_refused(workers: Workers) -> None:
    with connected(workers.store) as connection:
        connection.execute("CREATE TABLE queue_version (version integer, migration text)")
        connection.execute("INSERT INTO queue_version VALUES (99, '')")
    with pytest.raises(EngineError, match="a later version of rath or procrastinate"):
        runtime().run(partial(find_engine(workers.store).open, spec_of(workers)), label="a test")


@pytest.mark.parametrize("url", ["postgres://host/db?queue=not+a+name!", "postgres://[/db"])
def test_a_url_that_names_no_queue_is_refused(url: str) -> None:
    with pytest.raises(EngineError, match="the URL of the queue cannot be understood"):
        find_engine(url)
