"""Rate and budget of a job, over all of its workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from rath.jobs.engine import Rate
from rath.jobs.limits import Lease, LeaseRequest, LimitState, SharedLimits

PERIOD = 5.0
N_WORKERS = 4
DEAREST = Decimal(3)


class Clock:
    """Time that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def most_in_a_minute(begun: list[float]) -> int:
    return max((sum(0 <= at - first < 60 for at in begun) for first in begun), default=0)


@dataclass(slots=True)
class Worker:
    """A worker whose clock has nothing to do with that of the source, and its messages."""

    name: str
    clock: Clock
    asked_at: float = 0.0
    number: int = 0
    sent: LeaseRequest | None = None
    lease: Lease | None = None
    n_used: int = 0
    n_in_flight: int = 0
    peak: int = 0
    usd: Decimal = Decimal(0)
    spent: Decimal = Decimal(0)
    begun: list[float] = field(default_factory=list[float])

    def send(self, calls: int) -> None:
        self.number += 1
        self.asked_at = self.clock.now
        self.sent = LeaseRequest(
            holder=self.name,
            number=self.number,
            endpoint="e",
            calls=calls,
            ahead=calls,
            used_calls=self.n_used,
            used_usd=self.usd,
        )
        self.lease, self.n_used, self.usd = None, 0, Decimal(0)

    def receive(self, answer: Lease) -> None:
        self.lease, self.sent = answer, None

    def begin(self) -> None:
        lease = self.lease
        if lease is None or self.clock.now >= self.asked_at + lease.seconds:
            return
        if lease.calls is not None and self.n_used >= lease.calls:
            return
        if lease.usd is not None and self.usd >= lease.usd:
            return
        self.n_used += 1
        self.n_in_flight += 1
        self.peak = max(self.peak, self.n_in_flight)
        self.begun.append(self.clock.now)

    def end(self, cents: int) -> None:
        if self.n_in_flight:
            self.n_in_flight -= 1
            cost = DEAREST * cents / 100
            self.usd += cost
            self.spent += cost


WAITS = (0.0, 4.9, 55.1, 0.0, 4.9, 5.1, 60.0, 30.0)
waits = st.sampled_from(WAITS)
few = st.sampled_from((4, 1, 3, 0, 2))


class Round(NamedTuple):
    """What a worker does in turn, with the seconds that go by before and after some of it."""

    worker: int
    asks: int
    repeats: bool
    on_the_way: float
    begins: int
    takes: float
    cents: list[int]
    rests: float


rounds = st.lists(
    st.builds(
        Round,
        st.integers(0, N_WORKERS - 1),
        few,
        st.booleans(),
        waits,
        few,
        waits,
        st.lists(st.integers(0, 100), max_size=4),
        waits,
    ),
    max_size=12,
)


def play(limits: SharedLimits, clock: Clock, script: list[Round]) -> list[Worker]:
    """Have workers do what a script says; a message may come twice, or its answer late."""
    workers = [Worker(f"w{n}", clock) for n in range(N_WORKERS)]
    for each in script:
        worker = workers[each.worker]
        worker.send(each.asks)
        assert worker.sent is not None
        answers = [limits.lease(worker.sent) for _ in range(1 + each.repeats)]
        clock.now += each.on_the_way
        worker.receive(answers[-1])
        for _ in range(each.begins):
            worker.begin()
        clock.now += each.takes
        for cents in each.cents:
            worker.end(cents)
        worker.begin()
        clock.now += each.rests
    return workers


@given(script=rounds, rate=st.integers(1, 4))
@settings(max_examples=500)
def test_no_interleaving_makes_more_calls_in_a_minute(script: list[Round], rate: int) -> None:
    clock = Clock()
    limits = SharedLimits(Rate(requests_per_minute=rate), clock=clock)
    workers = play(limits, clock, script)
    assert most_in_a_minute([at for worker in workers for at in worker.begun]) <= rate


@given(script=rounds, budget=st.integers(1, 9))
@settings(max_examples=500)
def test_a_budget_is_overshot_by_the_calls_in_flight_at_most(
    script: list[Round], budget: int
) -> None:
    clock = Clock()
    limits = SharedLimits(budget_usd=Decimal(budget), clock=clock)
    workers = play(limits, clock, script)
    spent = sum(worker.spent for worker in workers)
    assert spent <= budget + sum(worker.peak for worker in workers) * DEAREST


@given(script=rounds, rate=st.integers(1, 60))
def test_the_state_goes_through_json_unchanged(script: list[Round], rate: int) -> None:
    clock = Clock()
    limits = SharedLimits(Rate(rate, tokens_per_minute=500.0), Decimal("12.5"), clock=clock)
    play(limits, clock, script)
    encoded = msgspec.json.encode(limits.state)
    assert msgspec.json.decode(encoded, type=LimitState) == limits.state


@given(
    rate=st.integers(1, 120),
    wants=st.lists(st.integers(1, 60), min_size=N_WORKERS, max_size=N_WORKERS),
)
def test_all_workers_get_their_calls_and_none_is_starved(rate: int, wants: list[int]) -> None:
    clock = Clock()
    limits = SharedLimits(Rate(requests_per_minute=rate), clock=clock)
    workers = [Worker(f"w{n}", clock) for n in range(N_WORKERS)]
    left = Counter(dict(enumerate(wants)))
    asks_at = dict.fromkeys(range(N_WORKERS), clock.now)
    n_asked = 0
    while any(left.values()):
        at = min((n for n in asks_at if left[n]), key=lambda n: asks_at[n])
        clock.now = max(clock.now, asks_at[at])
        worker = workers[at]
        worker.send(left[at])
        assert worker.sent is not None
        answer = limits.lease(worker.sent)
        asks_at[at] = clock.now + max(answer.wait, 0.001)
        worker.receive(answer)
        before = len(worker.begun)
        for _ in range(left[at]):
            worker.begin()
        left[at] -= len(worker.begun) - before
        if not left[at]:
            worker.send(0)
            limits.lease(worker.sent)
        n_asked += 1
        # All begin within the windows that they need, and one more for the ends of leases.
        assert clock.now <= 1000 + 65 * (1 + sum(wants) // rate + 1)
    begun = [at for worker in workers for at in worker.begun]
    assert len(begun) == sum(wants)
    assert most_in_a_minute(begun) <= rate
    # Each of the first ones that wait has a call within the first windows.
    firsts = sorted(worker.begun[0] for worker in workers)
    assert firsts[-1] <= 1000 + 65 * (N_WORKERS // rate + 1)
    assert n_asked <= N_WORKERS * 14 * (2 + sum(wants) // rate)


def test_two_workers_share_what_is_left() -> None:
    clock = Clock()
    limits = SharedLimits(Rate(requests_per_minute=60), clock=clock)

    def ask(holder: str, number: int, calls: int, used: int = 0) -> Lease:
        return limits.lease(
            LeaseRequest(holder=holder, number=number, endpoint="e", calls=calls, used_calls=used)
        )

    assert ask("a", 1, 60).calls == 60
    refused = ask("b", 1, 30)
    assert (refused.calls, refused.wait) == (0, PERIOD)
    # The first one used few of its calls, and leaves half of the others to the one that waits;
    # what is free then is shared again.
    assert ask("a", 2, 60, used=20).calls == 20
    assert ask("b", 2, 30).calls == 10
    assert ask("b", 3, 30, used=10).calls == 5
    # Another endpoint has a rate of its own.
    other = LeaseRequest(holder="c", number=1, endpoint="other", calls=60)
    assert limits.lease(other).calls == 60


def test_tokens_of_a_minute_stop_further_calls_until_they_are_forgotten() -> None:
    clock = Clock()
    limits = SharedLimits(Rate(tokens_per_minute=1000), clock=clock)

    def ask(number: int, tokens: int = 0) -> Lease:
        request = LeaseRequest(holder="a", number=number, endpoint="e", calls=1, used_tokens=tokens)
        return limits.lease(request)

    first = ask(1)
    assert (first.calls, first.tokens) == (None, 500)
    assert ask(2, tokens=1200).calls == 0
    clock.now += 59
    assert ask(3).calls == 0
    clock.now += 2
    assert ask(4).tokens == 500


def test_a_worker_that_died_keeps_nothing_for_itself() -> None:
    clock = Clock()
    limits = SharedLimits(Rate(requests_per_minute=10), Decimal(10), clock=clock)
    dead = limits.lease(LeaseRequest(holder="dead", number=1, endpoint="e", calls=10))
    assert (dead.calls, dead.usd) == (10, Decimal(5))
    limits.lease(LeaseRequest(holder="b", number=1, endpoint="e", calls=1))
    clock.now += 66
    lease = limits.lease(LeaseRequest(holder="b", number=2, endpoint="e", calls=10))
    assert (lease.calls, lease.usd) == (10, Decimal(5))


def test_a_budget_that_is_used_up_stays_so_and_a_larger_one_goes_on() -> None:
    clock = Clock()
    request = LeaseRequest(holder="a", number=1, endpoint="e", calls=1, used_usd=Decimal(3))
    limits = SharedLimits(budget_usd=Decimal(3), clock=clock)
    assert limits.lease(request).is_spent
    # The same request again is counted once.
    limits.lease(request)
    assert limits.used_usd == 3
    later = SharedLimits(budget_usd=Decimal(5), used_usd=Decimal(3), clock=clock)
    assert later.lease(msgspec.structs.replace(request, used_usd=Decimal(0))).usd == 1
