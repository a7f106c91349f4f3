"""Rate and budget of jobs whose items are carried out by several workers, and by tools and agents
inside of items."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from rath import flow
from rath.errors import JobBudgetExceeded
from rath.flow import Agent, Workflow
from rath.jobs.engine import Engine, Rate, find_engine
from rath.jobs.job import Job
from rath.jobs.limits import LimitState
from rath.jobs.processes import ProcessesEngine
from rath.llm import Provider
from rath.session import Session
from tests.jobs.test_queue import Workers, content
from tests.support.chat_replies import completion, json_body
from tests.support.chat_server import CapturedRequest, ChatServer
from tests.support.job_program import (
    CALL_USD,
    CountedItem,
    count,
    counted_items,
    lines,
    repeated_calls,
)
from tests.support.postgres_server import PostgresServer, postgres
from tests.support.waiting import wait_until

__all__ = ["postgres"]

PRICED = "tests.support.job_program:priced_team"
N_AT_ONCE = 16


class Place(NamedTuple):
    """Where the items of a job are carried out."""

    engine: Engine | str | None
    store: str
    state: Callable[[], LimitState]
    """What the limits of the job are now."""


@contextmanager
def place(
    kind: str, n_workers: int, postgres: PostgresServer, folder: Path
) -> Generator[Callable[[], Place]]:
    """Give what makes an engine of a kind, with as many workers; the queue's live as long."""
    with ExitStack() as stack:
        if kind != "queue":
            yield lambda: _process_place(kind, n_workers, folder)
            return
        workers = Workers(postgres.url(), folder)
        stack.callback(workers.stop)
        for _ in range(n_workers):
            workers.start("--concurrency", str(N_AT_ONCE), "--grace", "0", allow=PRICED)

        def state() -> LimitState:
            text = content(workers.store, "SELECT state::text FROM job_limits")
            return msgspec.json.decode(text, type=LimitState)

        yield lambda: Place(workers.store, workers.store, state)


def _process_place(kind: str, n_workers: int, folder: Path) -> Place:
    engine = find_engine(f"{kind}:{n_workers}" if kind == "procs" else None)

    def state() -> LimitState:
        assert isinstance(engine, ProcessesEngine)
        return engine.limits.state

    return Place(engine, str(folder / "store"), state)


def mapped(at: Place, items: Any, **options: Any) -> Job:
    return flow.map(
        PRICED,
        items,
        key="key",
        session=CountedItem.session,
        job="limited",
        store=at.store,
        engine=at.engine,
        **options,
    )


@pytest.mark.parametrize("kind", ["local", "procs", "queue"])
def test_a_job_stops_when_its_budget_is_used_up_and_goes_on_with_more(
    kind: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    items = counted_items(16, tmp_path)
    with place(kind, 2, postgres, tmp_path) as make:
        stopped = mapped(make(), items, budget_usd=12 * CALL_USD, concurrency=4)
        with pytest.raises(JobBudgetExceeded, match="start it again with a larger") as raised:
            list(stopped)
        n_calls = sum(count(tmp_path, "calls").values())
        # Those in flight when the budget was used up were made, and no other one.
        assert 12 <= n_calls <= 12 + 4
        assert raised.value.used_usd == n_calls * CALL_USD
        counts = stopped.report().counts
        assert counts["cancelled"] > 0
        assert sum(counts.values()) == 16
        again = mapped(make(), items, budget_usd=12 * CALL_USD, concurrency=4)
        with pytest.raises(JobBudgetExceeded):
            again.synchronize()
        assert sum(count(tmp_path, "calls").values()) == n_calls
        done = mapped(make(), items, budget_usd=Decimal(1)).synchronize()
    assert {each.state for each in done.items} == {"done"}
    assert repeated_calls(tmp_path) == {}
    assert count(tmp_path, "effects") == {item.key: 1 for item in items}


@pytest.mark.parametrize("kind", ["procs", "queue"])
def test_four_workers_begin_sixty_calls_in_a_minute(
    kind: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    items = counted_items(4 * N_AT_ONCE, tmp_path, "hold")
    with place(kind, 4, postgres, tmp_path) as make:
        at = make()
        rate = Rate(requests_per_minute=60)
        job = mapped(at, items, rate=rate, concurrency=4 * N_AT_ONCE)

        def n_workers_waiting() -> int:
            uses = at.state().endpoints.values()
            return len({each.holder for each in itertools.chain(*(u.demands for u in uses))})

        wait_until(lambda: len(lines(tmp_path, "calls")) >= 60)
        # One of them may have had all that it needs.
        wait_until(lambda: n_workers_waiting() >= 3, "the others have been told to wait")
        assert len(lines(tmp_path, "calls")) == 60
        job.cancel()
    assert len(lines(tmp_path, "calls")) == 60


class Nested(Workflow):
    """An agent whose tool is an agent, which the model calls three times in one turn."""

    def __init__(self, provider: Provider) -> None:
        super().__init__("nested")
        inner = Agent("You look things up.", provider, system_tools=False)
        tools = [inner.as_tool("ask_inner")]
        self.outer = Agent("You ask.", provider, tools, system_tools=False)

    def forward(self, session: Session) -> Session:
        return self.outer(session)


def test_a_call_that_waits_for_calls_of_its_tools_holds_no_place(tmp_path: Path) -> None:
    def reply(request: CapturedRequest) -> Any:
        messages = request.json()["messages"]
        if messages[0]["content"] != "You ask." or messages[-1]["role"] == "tool":
            return completion("found")
        return completion(
            tool_calls=tuple(
                {
                    "id": f"c{n}",
                    "type": "function",
                    "function": {"name": "ask_inner", "arguments": '{"task": "look"}'},
                }
                for n in range(3)
            )
        )

    with ChatServer(reply) as server:
        provider = Provider(model="m", base_url=server.base_url, api_key="k")
        job = flow.map(
            Nested(provider),
            ["a", "b", "c"],
            store=str(tmp_path / "store"),
            concurrency=1,
            rate=Rate(requests_per_minute=1000),
        )
        assert [each.error for each in job] == [None] * 3
        assert (len(server.requests), server.max_in_flight) == (3 * 5, 1)


def test_a_job_goes_on_slower_where_the_endpoint_says_that_it_is_too_much(tmp_path: Path) -> None:
    refusing = itertools.count()

    def reply(_: CapturedRequest) -> Any:
        if next(refusing) < 20:
            return json_body({"error": {"message": "slow down"}}, status=429)
        return completion("hello")

    with ChatServer(reply) as server:
        provider = Provider(
            model="m", base_url=server.base_url, api_key="k", retry_base_seconds=0.01
        )
        agent = Agent("Answer.", provider, system_tools=False)
        job = flow.map(agent, map(str, range(40)), store=str(tmp_path / "store"))
        assert {each.state for each in job} == {"done"}
        assert len(server.requests) == 40 + 20
        assert server.max_in_flight <= 20
