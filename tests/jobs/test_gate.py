"""Model calls of items pass the limits of their job, in virtual time and through real servers."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rath.llm.price_list  # noqa: F401  # pyright: ignore[reportUnusedImport]  # before it is loaded on a thread, in virtual time
from rath.errors import EngineError, JobBudgetExceeded
from rath.flow import Agent
from rath.jobs.engine import JobSpec, Rate, job_id
from rath.jobs.gate import AdaptiveConcurrency, CallGate, CallNumber
from rath.jobs.limits import Lease, LeaseRequest, LimitSource, SharedLimits
from rath.llm.calls import call_limits
from rath.llm.evidence import CallEvidence
from rath.session.persistence.store import FileStore
from rath.testing import ScriptedClient
from tests.support.asking import ask
from tests.support.timed_endpoint import Endpoint, TimedClient, at_once, call, most_in_a_minute
from tests.support.virtual_time import run_virtually

CALL_USD = Decimal("0.00225")
"""A call of `Endpoint` with gpt-5-mini at OpenAI: 1000 tokens there and 1000 back."""


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    workflow = Agent("You answer.", ScriptedClient([]).provider)
    return JobSpec(job=job_id("j"), name="j", workflow=workflow, store=FileStore(tmp_path))


def limited(spec: JobSpec, **changes: Any) -> JobSpec:
    return replace(spec, **changes)


async def under(gate: CallGate, calls: Coroutine[Any, Any, Any]) -> Any:
    """Make calls as the items of a job do."""
    token = call_limits.set(gate)
    try:
        return await calls
    finally:
        call_limits.reset(token)


class Messages:
    """A source on another machine: requests take a second to reach it, and so do answers."""

    def __init__(self, source: LimitSource) -> None:
        self._source = source
        self.requests: list[LeaseRequest] = []

    async def exchange(self, request: LeaseRequest) -> Lease:
        self.requests.append(request)
        await asyncio.sleep(1)
        lease = await self._source.exchange(request)
        await asyncio.sleep(1)
        return lease


@asynccontextmanager
async def workers(spec: JobSpec, n_workers: int) -> AsyncGenerator[tuple[list[CallGate], Messages]]:
    """Some workers of one job, each with a gate of its own and one source for all."""
    clock = asyncio.get_running_loop().time
    source = Messages(SharedLimits(spec.rate, spec.budget_usd, clock=clock))
    gates = [CallGate(spec, source, worker=f"w{number}") for number in range(n_workers)]
    try:
        yield gates, source
    finally:
        for gate in gates:
            await gate.aclose()


# ---- rate


def test_four_workers_make_sixty_requests_a_minute_together(spec: JobSpec) -> None:
    at = Endpoint(takes=3)

    async def main() -> int:
        rate = Rate(requests_per_minute=60)
        async with workers(limited(spec, rate=rate), 4) as (gates, source):
            await at_once(*(under(gate, call(TimedClient(at))) for gate in gates * 75))
            return len(source.requests)

    n_messages = run_virtually(main())
    assert (len(at.begun), most_in_a_minute(at.begun)) == (300, 60)
    # Five windows, of which the first begins at once; each may be a lease longer.
    assert max(at.begun) < 5 * 66
    assert n_messages < 300 / 2


def test_one_worker_alone_may_make_all_of_them(spec: JobSpec) -> None:
    at = Endpoint(takes=1)

    async def main() -> None:
        gate = CallGate(limited(spec, rate=Rate(requests_per_minute=60)), worker="w")
        gate.source = SharedLimits(
            Rate(requests_per_minute=60), clock=asyncio.get_running_loop().time
        )
        await at_once(*(under(gate, call(TimedClient(at))) for _ in range(60)))
        await gate.aclose()

    run_virtually(main())
    assert max(at.begun) < 10


def test_retries_count_and_the_wait_stands_in_the_evidence(spec: JobSpec) -> None:
    at = Endpoint(n_failing=1)

    async def main() -> list[CallEvidence]:
        async with workers(limited(spec, rate=Rate(requests_per_minute=1)), 1) as (gates, _):
            evidence: list[CallEvidence] = await under(
                gates[0], at_once(call(TimedClient(at)), call(TimedClient(at)))
            )
            return evidence

    evidence = run_virtually(main())
    assert len(at.begun) == 3
    assert most_in_a_minute(at.begun) == 1
    assert min(each.queued_ms for each in evidence) >= 2000


def test_a_cancelled_wait_takes_no_call_from_the_others(spec: JobSpec) -> None:
    at = Endpoint(takes=1)

    async def main() -> float:
        async with workers(limited(spec, rate=Rate(requests_per_minute=2)), 1) as (gates, _):
            waiting = [
                asyncio.ensure_future(under(gates[0], call(TimedClient(at)))) for _ in range(4)
            ]
            await asyncio.sleep(10)
            waiting[2].cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            return asyncio.get_running_loop().time()

    run_virtually(main())
    assert len(at.begun) == 3


def test_tokens_of_a_minute_are_overshot_by_the_calls_in_flight_at_most(spec: JobSpec) -> None:
    at = Endpoint(takes=1)

    async def main() -> None:
        given = limited(spec, rate=Rate(tokens_per_minute=10_000), concurrency=2)
        async with workers(given, 2) as (gates, _):
            await at_once(*(under(gate, call(TimedClient(at))) for gate in gates * 10))

    run_virtually(main())
    # Each takes 2,000; two are in flight at each of two workers.
    assert len(at.begun) == 20
    assert most_in_a_minute(at.begun) <= 5 + 4


def test_a_call_that_waited_longer_elsewhere_takes_another_lease(spec: JobSpec) -> None:
    at = Endpoint(takes=50)

    async def main() -> None:
        async with workers(limited(spec, rate=Rate(requests_per_minute=2)), 1) as (gates, _):
            client = TimedClient(at, max_in_flight=1)
            await at_once(*(under(gates[0], call(client)) for _ in range(4)))

    run_virtually(main())
    assert len(at.begun) == 4
    assert at.most_open == 1
    assert most_in_a_minute(at.begun) <= 2


# ---- money


def vendor() -> tuple[Endpoint, TimedClient]:
    at = Endpoint(root="https://api.openai.com", takes=1)
    client = TimedClient(at)
    client.target_model = "gpt-5-mini"
    return at, client


def test_a_budget_ends_the_calls_of_all_workers(spec: JobSpec) -> None:
    at, client = vendor()

    async def main() -> tuple[list[Any], Decimal]:
        given = limited(spec, budget_usd=10 * CALL_USD, concurrency=2)
        async with workers(given, 4) as (gates, source):
            done = await asyncio.gather(
                *(under(gate, call(client)) for gate in gates * 10), return_exceptions=True
            )
        last = await source.exchange(LeaseRequest(holder="x", number=1, endpoint="e"))
        return done, last.used_usd

    done, used = run_virtually(main())
    refused = [each for each in done if isinstance(each, JobBudgetExceeded)]
    assert len(at.begun) + len(refused) == 40
    assert used == len(at.begun) * CALL_USD
    assert 10 <= len(at.begun) <= 10 + 4 * 2
    assert refused[0].used_usd >= refused[0].budget_usd == 10 * CALL_USD
    assert "larger budget_usd" in str(refused[0])


def test_one_after_the_other_not_one_call_is_too_many(spec: JobSpec) -> None:
    at, client = vendor()

    async def main() -> None:
        given = limited(spec, budget_usd=Decimal(3) * CALL_USD, concurrency=1)
        async with workers(given, 1) as (gates, _):
            await asyncio.gather(
                *(under(gates[0], call(client)) for _ in range(10)), return_exceptions=True
            )

    run_virtually(main())
    assert len(at.begun) == 3


def test_the_error_of_a_budget_can_be_pickled() -> None:
    error = JobBudgetExceeded("spent", budget_usd=Decimal(1), used_usd=Decimal(2))
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.budget_usd, copy.used_usd) == ("spent", 1, 2)


def test_a_call_of_unknown_cost_is_warned_of_once(
    spec: JobSpec, caplog: pytest.LogCaptureFixture
) -> None:
    at = Endpoint(takes=1)

    async def main() -> None:
        async with workers(limited(spec, budget_usd=Decimal(1)), 1) as (gates, _):
            await at_once(*(under(gates[0], call(TimedClient(at))) for _ in range(3)))

    run_virtually(main())
    (record,) = [each for each in caplog.records if each.name == "rath.jobs"]
    assert "no known cost" in record.getMessage()


# ---- a source that fails


def test_calls_fail_where_the_source_cannot_be_reached_and_nothing_is_lost(spec: JobSpec) -> None:
    at, client = vendor()

    class Unreachable(Messages):
        n_failing = 0

        async def exchange(self, request: LeaseRequest) -> Lease:
            lease = await super().exchange(request)
            if self.n_failing:
                self.n_failing -= 1
                raise ConnectionError("the answer was lost")
            return lease

    async def main() -> None:
        budget = 100 * CALL_USD
        shared = SharedLimits(budget_usd=budget, clock=asyncio.get_running_loop().time)
        source = Unreachable(shared)
        gate = CallGate(limited(spec, budget_usd=budget), source, worker="w")
        source.n_failing = 2
        await under(gate, call(client))
        await asyncio.sleep(100)
        source.n_failing = 4
        with pytest.raises(EngineError, match="limits of job 'j' cannot be reached"):
            await under(gate, call(client))
        await asyncio.sleep(100)
        await under(gate, call(client))
        await gate.aclose()
        assert shared.used_usd == 2 * CALL_USD

    run_virtually(main())
    assert len(at.begun) == 2


# ---- adaptive concurrency


def test_concurrency_starts_at_twenty_and_doubles_until_the_first_refusal(spec: JobSpec) -> None:
    at = Endpoint()

    async def main() -> None:
        gate = CallGate(limited(spec, concurrency=100), worker="w")
        await at_once(*(under(gate, call(TimedClient(at))) for _ in range(300)))

    run_virtually(main())
    begun = {moment: at.begun.count(moment) for moment in sorted(set(at.begun))}
    assert begun == {0: 20, 10: 40, 20: 80, 30: 100, 40: 60}


def test_refusals_halve_it_once_for_each_round_trip(spec: JobSpec) -> None:
    at = Endpoint(capacity=30)

    async def main() -> None:
        gate = CallGate(limited(spec, concurrency=100), worker="w")
        await at_once(*(under(gate, call(TimedClient(at))) for _ in range(600)))

    run_virtually(main())
    # 20, 40 of which 10 are refused, 20, 21, ...: hardly any more than the endpoint can take.
    assert at.n_refused <= 20
    assert at.most_open == 40
    begun = {moment: at.begun.count(moment) for moment in sorted(set(at.begun))}
    assert [begun[moment] for moment in (0, 10, 20)] == [20, 40, 20]


@given(
    most=st.integers(1, 100),
    script=st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=100),
)
def test_the_limit_stays_between_one_and_the_most(
    most: int, script: list[tuple[bool, int]]
) -> None:
    adaptive = AdaptiveConcurrency(most)
    begun: list[CallNumber] = []
    for is_answer, at in script:
        begun.append(adaptive.begin(at))
        before = adaptive.limit
        if is_answer:
            adaptive.answer(begun[-1 - at % len(begun)])
            assert before <= adaptive.limit <= before + 1
        else:
            adaptive.refuse(begun[-1 - at % len(begun)])
            assert adaptive.limit <= before
        assert 1 <= adaptive.limit <= most


def test_calls_of_no_job_pass_no_gate_of_one(spec: JobSpec) -> None:
    at = Endpoint()

    async def main() -> float:
        async with workers(limited(spec, rate=Rate(requests_per_minute=1)), 1) as (gates, _):
            calls = [under(gates[0], call(TimedClient(at))) for _ in range(2)]
            busy = asyncio.ensure_future(at_once(*calls))
            await asyncio.sleep(5)
            draft = TimedClient(at).open_draft(ask(), streaming=False, provider_origin="call")
            evidence = (await draft.asend()).evidence
            assert not busy.done()
            await busy
            return evidence.queued_ms

    assert run_virtually(main()) == 0
