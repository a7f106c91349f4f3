"""The gate of a worker: when its model calls may begin, by its leases and the answers it got."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import sys
from collections.abc import Awaitable, Callable
from decimal import Decimal
from functools import partial
from importlib import import_module
from typing import NamedTuple, TypeVar
from uuid import uuid4

from rath._async.limiter import Caps, Gate
from rath._async.retry import RetryPolicy, retry
from rath._async.runtime import runtime
from rath.errors import EngineError, JobBudgetExceeded
from rath.jobs.engine import JobSpec
from rath.jobs.limits import PERIOD_SECONDS, Lease, LeaseRequest, LimitSource, SharedLimits
from rath.llm.evidence import CallEvidence

T = TypeVar("T")

START_CONCURRENCY = 20
"""Calls in flight at one endpoint before anything is known of it; a guess."""

_PRICE_LIST = "rath.llm.price_list"
_IN_TURN = Caps()
_FIRST = Caps(goes_first=True)

_log = logging.getLogger("rath.jobs")


class CallNumber(NamedTuple):
    """The place of a call among those of its endpoint, and the limit under which it began."""

    number: int
    limit: int


class AdaptiveConcurrency:
    """How many calls may be in flight at an endpoint, by what it answers.

    Until the first status 429 the limit doubles each round trip; each 429 halves it, once for all
    calls that were in flight together; then it grows by one each round trip. That is the slow start
    and congestion avoidance of TCP (RFC 5681, section 3.1). A limit that is not reached does not
    grow.

    Args:
        most: The upper bound.
        start: The first limit.
    """

    __slots__ = ("_full_at", "_is_starting", "_limit", "_most", "_n_begun", "_n_begun_before")

    def __init__(self, most: int, start: int = START_CONCURRENCY) -> None:
        self._most = max(1, most)
        self._limit = float(min(start, self._most))
        self._is_starting = True
        self._n_begun = 0
        self._n_begun_before = 0
        """Calls that began before the limit was halved last."""

        self._full_at = 0
        """The last call with which the limit was reached."""

    @property
    def limit(self) -> int:
        """How many calls may be in flight."""
        return int(self._limit)

    def begin(self, n_in_flight: int) -> CallNumber:
        """Return the number of a call that begins, one of as many in flight."""
        self._n_begun += 1
        if n_in_flight >= self.limit:
            self._full_at = self._n_begun
        return CallNumber(self._n_begun, self.limit)

    def answer(self, call: CallNumber) -> None:
        """Take an answer that a call got."""
        if self._n_begun_before < call.number <= self._full_at:
            growth = 1.0 if self._is_starting else 1.0 / self._limit
            self._limit = min(float(self._most), self._limit + growth)

    def refuse(self, call: CallNumber) -> None:
        """Take a status 429 that a call got."""
        self._is_starting = False
        if call.number > self._n_begun_before:
            # Others of the same round trip may have been answered before, and have raised it.
            self._limit = max(1.0, min(self._limit, call.limit) / 2)
            self._n_begun_before = self._n_begun


class CallGate:
    """Admits the model calls of one worker to their endpoints; used on its runtime loop only.

    Args:
        spec: The job.
        source: Grants the leases of its rate and budget; by default one of this worker alone, where
            the job has such limits.
        worker: Names the worker.
    """

    def __init__(self, spec: JobSpec, source: LimitSource | None = None, *, worker: str) -> None:
        has_limits = spec.rate is not None or spec.budget_usd is not None
        self.source: LimitSource | SharedLimits | None = (
            (source or SharedLimits.of(spec)) if has_limits else None
        )
        self.job: str = spec.name
        self.counts_usd: bool = spec.budget_usd is not None
        self._concurrency = spec.concurrency
        # A worker that comes back under its old name is another holder.
        self._worker = f"{worker} {uuid4().hex[:8]}"
        self._endpoints: dict[str, EndpointGate] = {}
        self._unpriced = False

    async def enter(self, place: str, *, goes_first: bool, is_counted: bool) -> Permit:
        """See `rath.llm.calls.CallLimits`.

        Raises:
            JobBudgetExceeded: The budget of the job is used up.
            EngineError: The source of the limits cannot be reached.
        """
        if self.counts_usd and _PRICE_LIST not in sys.modules:
            await runtime().call_in_worker(partial(import_module, _PRICE_LIST))
        endpoint = self._endpoints.get(place)
        if endpoint is None:
            adaptive = AdaptiveConcurrency(self._concurrency)
            endpoint = EndpointGate(self, place, f"{self._worker} {place}", adaptive)
            self._endpoints[place] = endpoint
        await endpoint.enter(_FIRST if goes_first else _IN_TURN)
        return Permit(self, endpoint, is_counted=is_counted)

    def budget_error(self, lease: Lease) -> JobBudgetExceeded:
        """Return the error of a call that a lease allows no more."""
        budget, used = lease.budget_usd or Decimal(0), lease.used_usd
        return JobBudgetExceeded(
            f"job {self.job!r} has used {used:f} of its {budget:f} US dollars; start it again with "
            "a larger budget_usd to go on",
            budget_usd=budget,
            used_usd=used,
        )

    def warn_of_unpriced(self, evidence: CallEvidence) -> None:
        """Say once that the budget leaves out calls of unknown cost."""
        if not self._unpriced:
            self._unpriced = True
            _log.warning(
                "budget_usd of job %s leaves out what has no known cost, such as a call of model "
                "%r at %s",
                self.job,
                evidence.served_model or evidence.requested_model,
                evidence.endpoint or "an endpoint that is not known",
            )

    async def aclose(self) -> None:
        """Report what was used; no further call is made."""
        await asyncio.gather(*(each.aclose() for each in self._endpoints.values()))


class EndpointGate(Gate):
    """The calls of one worker to one endpoint, which wait for a lease and for each other.

    Args:
        owner: The gate of the worker.
        place: The endpoint.
        holder: The name under which its leases are granted.
        adaptive: How many calls may be in flight.
    """

    __slots__ = ("_adaptive", "_asked_at", "_closed", "_got_at", "_holder", "_lease", "_n_left",
                 "_n_recent", "_n_used", "_owner", "_place", "_request", "_retry_at", "_spent",
                 "_task", "_tokens", "_usd", "_wakes", "number")  # fmt: skip

    def __init__(
        self, owner: CallGate, place: str, holder: str, adaptive: AdaptiveConcurrency
    ) -> None:
        super().__init__(asyncio.get_running_loop())
        self._owner = owner
        self._place = place
        self._holder = holder
        self._adaptive = adaptive
        self.number: int = 0
        """That of the last request for a lease."""

        self._request: LeaseRequest | None = None
        """Sent, and not known to have arrived."""

        self._asked_at = self._got_at = self._retry_at = 0.0
        self._lease: Lease | None = None
        self._n_left = math.inf
        self._n_used = self._n_recent = 0
        """Calls that began under this lease, and under the one before."""

        self._tokens = 0
        self._usd = Decimal(0)
        """Used by calls that ended since the last request."""

        self._task: asyncio.Task[None] | None = None
        self._wakes: asyncio.TimerHandle | None = None
        self._spent: Lease | None = None
        self._closed = False

    async def enter(self, caps: Caps) -> None:
        """Begin a call when its turn has come.

        Raises:
            JobBudgetExceeded: The budget of the job is used up.
            EngineError: The source of the limits cannot be reached.
        """
        if self._spent is not None:
            raise self._owner.budget_error(self._spent)
        await super().enter(caps)

    def begin(self) -> CallNumber:
        """Return the number of a call that has just been let in, for `end_try`."""
        return self._adaptive.begin(self._in_flight)

    def end_try(self, call: CallNumber, status: int | None) -> None:
        """Take what the endpoint said to a call, before it leaves."""
        if status == 429:
            self._adaptive.refuse(call)
        elif status == 200:
            self._adaptive.answer(call)

    def leave_soon(self) -> None:
        """End a call when the code that runs has come to its end."""
        self._loop.call_soon(self.leave)

    def count(self, tokens: int, usd: Decimal) -> None:
        """Take what a call used, which the source hears of within a period."""
        self._tokens += tokens
        self._usd += usd
        self._report_by(self._now() + PERIOD_SECONDS)

    def has_lease(self) -> bool:
        """Tell whether the lease of now, if one is needed, holds still."""
        lease = self._lease
        if self._owner.source is None:
            return True
        return lease is not None and self._now() < self._asked_at + lease.seconds

    async def aclose(self) -> None:
        """Report what was used; no further call is made."""
        self._closed = True
        self._fail(lambda: EngineError(f"job {self._owner.job!r} has ended on this worker"))
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._wakes is not None:
            self._wakes.cancel()
        if self._has_news():
            await self._exchange()

    # ------------------------------------------------------------ the rules of the queue

    def _opens_at(self, caps: Caps, now: float) -> float:
        if not caps.goes_first and self._in_flight >= self._adaptive.limit:
            return math.inf
        if self._owner.source is None or self._may_begin():
            return now
        if self._task is None and not self._closed:
            if now < self._retry_at:
                return self._retry_at
            self._ask()
        return math.inf

    def _begin(self, now: float) -> float:
        self._n_left -= 1
        self._n_used += 1
        return super()._begin(now)

    def _take_back(self, start: float) -> None:
        super()._take_back(start)
        if self._got_at < start:  # else it may be of an earlier lease, which is settled
            self._n_left += 1
            self._n_used -= 1

    def _may_begin(self) -> bool:
        lease = self._lease
        return (
            lease is not None
            and self.has_lease()
            and self._n_left > 0
            and (lease.tokens is None or self._tokens < lease.tokens)
            and (lease.usd is None or self._usd < lease.usd)
        )

    # ------------------------------------------------------------ leases

    def _ask(self) -> None:
        # In no context: that of an item would live as long as the request.
        self._task = self._loop.create_task(self._exchange(), context=contextvars.Context())

    async def _exchange(self) -> None:
        """Report what was used, and take the next lease."""
        source = self._owner.source
        assert source is not None
        try:
            if self._request is None:
                self._request = self._next_request()
            request = self._request
            lease = await retry(
                lambda _: source.exchange(request),
                policy=RetryPolicy(),
                retryable=lambda _: True,
                on_attempt=lambda _: None,
            )
        except Exception as exc:  # noqa: BLE001  # whatever it is, those who wait are told
            problem = f"the limits of job {self._owner.job!r} cannot be reached: {exc}"
            _log.warning("%s", problem)
            self._fail(lambda: EngineError(problem))
        else:
            self._request = None
            self._take(lease)
        finally:
            self._task = None
        if self._waiting and not self._closed:
            self._admit()

    def _next_request(self) -> LeaseRequest:
        self.number += 1
        self._asked_at = self._now()
        n_waiting = sum(not turn.done() for turn in self._waiting)
        self._n_recent = max(self._n_used, self._n_recent // 2)
        request = LeaseRequest(
            holder=self._holder,
            number=self.number,
            endpoint=self._place,
            calls=n_waiting,
            ahead=2 * self._n_recent if n_waiting else 0,
            used_calls=self._n_used,
            used_tokens=self._tokens,
            used_usd=self._usd,
        )
        self._lease, self._n_used = None, 0
        self._tokens, self._usd = 0, Decimal(0)
        return request

    def _take(self, lease: Lease) -> None:
        now = self._got_at = self._now()
        self._retry_at = now + lease.wait
        if lease.is_spent:
            self._spent = lease
            self._fail(lambda: self._owner.budget_error(lease))
        elif lease.calls != 0:
            self._lease = lease
            self._n_left = math.inf if lease.calls is None else lease.calls
            self._report_by(self._asked_at + lease.seconds)

    def _fail(self, error: Callable[[], Exception]) -> None:
        """Have all who wait fail."""
        waiting = [turn for turn in self._waiting if not turn.done()]
        self._waiting.clear()
        for turn in waiting:
            turn.set_exception(error())

    # ------------------------------------------------------------ reports

    def _has_news(self) -> bool:
        return bool(
            self._owner.source is not None
            and (self._lease is not None or self._request is not None or self._tokens or self._usd)
        )

    def _report_by(self, when: float) -> None:
        """Have what is used or granted reported, if no request does it before."""
        if self._owner.source is None or self._closed:
            return
        if self._wakes is None:
            self._wakes = self._loop.call_at(when, self._on_report_time)

    def _on_report_time(self) -> None:
        self._wakes = None
        if self._task is not None or self._closed or not self._has_news():
            return
        lease = self._lease
        if lease is not None and self.has_lease():
            self._report_by(self._asked_at + lease.seconds)
        else:
            self._ask()


class Permit:
    """The place of one try of a call; see `rath.llm.calls.LimitPlace`."""

    __slots__ = ("_call", "_gate", "_is_counted", "_is_noted", "_is_over", "_number", "_owner")

    def __init__(self, owner: CallGate, gate: EndpointGate, *, is_counted: bool) -> None:
        self._owner = owner
        self._gate = gate
        self._is_counted = is_counted
        self._is_noted = self._is_over = False
        self._call, self._number = gate.begin(), gate.number

    def leave(self) -> None:
        """End the try; a second time does nothing.

        Who waits comes in once the code that calls this has told what was used and how it ended.
        """
        if not self._is_over:
            self._is_over = True
            self._gate.leave_soon()

    async def give_way(self, waiting: Awaitable[T]) -> T:
        """Return what `waiting` gives; no place is held until then."""
        return await self._gate.give_way(waiting)

    def is_valid(self) -> bool:
        """Tell whether the lease of the try holds still."""
        return self._gate.number == self._number and self._gate.has_lease()

    def note_status(self, status: int | None) -> None:
        """Take how the try ended."""
        if not self._is_noted:
            self._is_noted = True
            self._gate.end_try(self._call, status)

    def settle(self, evidence: CallEvidence) -> None:
        """Take what the call used."""
        if not self._is_counted:
            return
        usage, cost = evidence.usage, None
        if self._owner.counts_usd:
            cost = evidence.cost
            if cost is None and (usage is not None or evidence.status == "done"):
                self._owner.warn_of_unpriced(evidence)
        tokens = 0 if usage is None else usage.total_tokens
        self._gate.count(tokens, Decimal(0) if cost is None else cost.usd)
