"""Requests, tokens and money of a job, shared by its workers: leases, and the arithmetic of them.

A lease lets a worker begin `calls` model calls within `seconds` from the moment before it asked.
The source, which may be on another machine, counts them from its own moment of granting until
`WINDOW_SECONDS + seconds` later, so that any window of 60 s holds though no two clocks agree. The
next request of the worker ends the lease: what was not used is free again, and what was used counts
for 60 s from then on.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Protocol, Self, runtime_checkable

import msgspec
from msgspec import Struct

from rath._async.limiter import WINDOW_SECONDS
from rath.jobs.engine import JobSpec, Rate

PERIOD_SECONDS = 5.0
"""How long a lease can be used; a guess between few requests and a quick return of unused calls."""

_LEAST_SHARE = 100
"""The smallest lease of tokens and money is this part of the whole; a guess."""

_NOTHING = Decimal(0)


class LeaseRequest(Struct, frozen=True, kw_only=True):
    """Usage since the last request of a worker, and its new demand; ends the lease that it has."""

    holder: str
    """Names one worker at one endpoint for its life; no other one is called so."""

    number: int
    """Rises with each request of the holder. A request that comes twice is answered alike."""

    endpoint: str
    calls: int = 0
    """Calls that wait; 0 only reports."""

    ahead: int = 0
    """Further calls that are likely to come, granted only where nobody else waits for them."""

    used_calls: int = 0
    """Calls that began under the lease that ends."""

    used_tokens: int = 0
    """Tokens of the calls that ended since the last request."""

    used_usd: Decimal = _NOTHING
    """US dollars of the same calls."""


class Lease(Struct, frozen=True, kw_only=True):
    """Allowance of a worker until it asks again; None for no limit."""

    calls: int | None = None
    """Calls that may begin."""

    tokens: float | None = None
    """No call begins once those that ended since took this many tokens."""

    usd: Decimal | None = None
    """Likewise for US dollars."""

    seconds: float = PERIOD_SECONDS
    """How long it holds, counted by the holder from before it asked."""

    wait: float = 0.0
    """Seconds after which it is worth to ask for more."""

    budget_usd: Decimal | None = None
    used_usd: Decimal = _NOTHING
    """US dollars that the whole job has used, as far as they were reported."""

    @property
    def is_spent(self) -> bool:
        """Whether the budget is used up, for good."""
        return self.budget_usd is not None and self.used_usd >= self.budget_usd


@runtime_checkable
class LimitSource(Protocol):
    """Grants leases to all workers of a job: in this process, an actor or a row in a database."""

    async def exchange(self, request: LeaseRequest) -> Lease:
        """Take what a holder used, and return its next lease; one that comes twice counts once."""
        ...


class Grant(Struct):
    """A lease that counts against the limits of an endpoint."""

    holder: str
    ends: float
    """When the lease ends; what is `used` has none any more."""

    until: float
    """When it counts no more."""

    calls: int = 0
    tokens: float = 0.0
    usd: Decimal = _NOTHING
    """Reserved, until the holder says what it used."""

    is_used: bool = False


class Demand(Struct):
    """A holder who got less than it wants; it has its turn before those who come later."""

    holder: str
    calls: int
    until: float
    """When it is forgotten, unless it asks again."""


class EndpointUse(Struct):
    """The grants of one endpoint, and who waits there."""

    grants: list[Grant] = []
    demands: list[Demand] = []


class Holder(Struct):
    """The last request of a holder, and its answer."""

    number: int
    lease: Lease
    until: float


class LimitState(Struct):
    """All that a source knows; what PostgreSQL holds of a job."""

    used_usd: Decimal = _NOTHING
    now: float = 0.0
    endpoints: dict[str, EndpointUse] = {}
    holders: dict[str, Holder] = {}


class SharedLimits:
    """The limits of one job: plain arithmetic, no I/O; used by one thread at a time.

    Args:
        rate: The limits of each endpoint.
        budget_usd: US dollars for all calls.
        used_usd: Those that earlier starts of the job used.
        clock: Tells seconds; only differences matter.
        state: Of an earlier life of the same source.

    Example:
        >>> limits = SharedLimits(Rate(requests_per_minute=60), clock=lambda: 0.0)
        >>> limits.lease(LeaseRequest(holder="a", number=1, endpoint="e", calls=40)).calls
        40
        >>> limits.lease(LeaseRequest(holder="b", number=1, endpoint="e", calls=40)).calls
        20
    """

    def __init__(
        self,
        rate: Rate | None = None,
        budget_usd: Decimal | None = None,
        *,
        used_usd: Decimal = _NOTHING,
        clock: Callable[[], float] = time.monotonic,
        state: LimitState | None = None,
    ) -> None:
        self.state: LimitState = LimitState(used_usd=used_usd) if state is None else state
        self._budget = budget_usd
        self._clock = clock
        requests = None if rate is None else rate.requests_per_minute
        self._max_tokens = None if rate is None else rate.tokens_per_minute
        # Less than one a minute is one in a longer window.
        self._window = WINDOW_SECONDS * max(1.0, 1.0 / (requests or 1.0))
        self._max_calls = None if requests is None else max(1, math.floor(requests))

    @classmethod
    def of(cls, spec: JobSpec) -> Self:
        """Return the limits that a job sets."""
        return cls(spec.rate, spec.budget_usd, used_usd=spec.used_usd)

    @property
    def used_usd(self) -> Decimal:
        """US dollars that the job used, as far as they were reported."""
        return self.state.used_usd

    async def exchange(self, request: LeaseRequest) -> Lease:
        """See `LimitSource`."""
        return self.lease(request)

    def lease(self, request: LeaseRequest) -> Lease:
        """Take what a holder used, and return its next lease."""
        state = self.state
        # A database may set its clock back.
        now = state.now = max(state.now, self._clock())
        known = state.holders.get(request.holder)
        if known is not None and request.number <= known.number:
            return known.lease
        self._forget(now)
        use = state.endpoints.setdefault(request.endpoint, EndpointUse())
        self._settle(use, request, now)
        lease = self._grant(use, request, now)
        state.holders[request.holder] = Holder(request.number, lease, now + self._longest)
        return lease

    @property
    def _longest(self) -> float:
        return self._window + PERIOD_SECONDS

    def _forget(self, now: float) -> None:
        """Drop what counts no more."""
        state = self.state
        for name, use in tuple(state.endpoints.items()):
            use.grants = [each for each in use.grants if each.until > now]
            use.demands = [each for each in use.demands if each.until > now]
            if not use.grants and not use.demands:
                del state.endpoints[name]
        for holder in [name for name, each in state.holders.items() if each.until <= now]:
            del state.holders[holder]

    def _settle(self, use: EndpointUse, request: LeaseRequest, now: float) -> None:
        """End the lease of a holder, and count what it used."""
        self.state.used_usd += request.used_usd
        until = now + self._window
        for grant in use.grants:
            if grant.holder == request.holder and not grant.is_used:
                grant.is_used = True
                grant.calls = min(grant.calls, request.used_calls)
                grant.tokens, grant.usd = 0.0, _NOTHING
                grant.until = min(grant.until, until)
        if request.used_tokens and self._max_tokens is not None:
            use.grants.append(
                Grant(request.holder, now, until, tokens=request.used_tokens, is_used=True)
            )
        use.grants = [each for each in use.grants if each.calls or each.tokens or not each.is_used]

    def _grant(self, use: EndpointUse, request: LeaseRequest, now: float) -> Lease:
        budget, used = self._budget, self.state.used_usd
        nothing = Lease(calls=0, budget_usd=budget, used_usd=used)
        if not request.calls or nothing.is_spent:
            use.demands = [each for each in use.demands if each.holder != request.holder]
            return nothing
        ahead = self._queue(use, request, now)
        usd, tokens = self._share_of_budget(len(ahead)), self._share_of_tokens(use, len(ahead))
        calls = self._share_of_calls(use, request, ahead)
        if calls == 0 or usd == 0 or tokens == 0:
            wait = self._wait(use, request, now)
            self._keep_turn(use, request, request.calls, now + wait)
            return msgspec.structs.replace(nothing, wait=wait)
        granted = request.calls if calls is None else calls
        use.grants.append(
            Grant(
                request.holder,
                now + PERIOD_SECONDS,
                now + self._longest,
                calls=0 if calls is None else calls,
                tokens=tokens or 0.0,
                usd=_NOTHING if usd is None else usd,
            )
        )
        wait = 0.0
        use.demands = [each for each in use.demands if each.holder != request.holder]
        if granted < request.calls:
            wait = self._wait(use, request, now)
            # Behind those who have got nothing yet.
            self._keep_turn(use, request, request.calls - granted, now + wait)
        return Lease(
            calls=calls, tokens=tokens, usd=usd, wait=wait, budget_usd=budget, used_usd=used
        )

    def _queue(self, use: EndpointUse, request: LeaseRequest, now: float) -> list[Demand]:
        """Have the holder wait its turn, and return those before it.

        Those are the ones that had fewer calls in the window, or as many and came before.
        """
        self._keep_turn(use, request, request.calls, now)
        used = Counter[str]()
        for grant in use.grants:
            used[grant.holder] += grant.calls
        turns = sorted(use.demands, key=lambda each: used[each.holder])
        return turns[: [each.holder for each in turns].index(request.holder)]

    def _keep_turn(
        self, use: EndpointUse, request: LeaseRequest, calls: int, asks_at: float
    ) -> None:
        """Note that a holder waits; one that is not heard of soon after `asks_at` is forgotten."""
        until = asks_at + PERIOD_SECONDS
        for demand in use.demands:
            if demand.holder == request.holder:
                demand.calls, demand.until = calls, until
                return
        use.demands.append(Demand(request.holder, calls, until))

    def _share_of_calls(
        self, use: EndpointUse, request: LeaseRequest, ahead: list[Demand]
    ) -> int | None:
        """Return how many calls may begin, with as much left for each of the others."""
        if self._max_calls is None:
            return None
        free = self._max_calls - sum(each.calls for each in use.grants)
        n_waiting = len(use.demands)
        share = max(1, free // n_waiting)
        others = [each for each in use.demands if each.holder != request.holder]
        is_enough = free >= n_waiting
        free -= sum(min(share, each.calls) for each in (others if is_enough else ahead))
        granted = max(0, min(request.calls, free if is_enough or not others else min(free, share)))
        left = free - granted - sum(each.calls for each in others)
        return granted + (max(0, min(request.ahead, left // 2)) if granted else 0)

    def _share_of_tokens(self, use: EndpointUse, n_ahead: int) -> float | None:
        limit = self._max_tokens
        if limit is None:
            return None
        least = limit / _LEAST_SHARE
        free = limit - sum(each.tokens for each in use.grants) - n_ahead * least
        return max(0.0, free / 2, min(free, least))

    def _share_of_budget(self, n_ahead: int) -> Decimal | None:
        budget = self._budget
        if budget is None:
            return None
        least = budget / _LEAST_SHARE
        free = budget - self.state.used_usd - self._reserved_usd() - n_ahead * least
        return max(_NOTHING, free / 2, min(free, least))

    def _reserved_usd(self) -> Decimal:
        uses = self.state.endpoints.values()
        return sum((each.usd for use in uses for each in use.grants), _NOTHING)

    def _wait(self, use: EndpointUse, request: LeaseRequest, now: float) -> float:
        """Return the seconds after which enough may be free for a lease of some use.

        That is when used calls count no more, or when a lease ends and gives back what it holds.
        """
        grants = [each for every in self.state.endpoints.values() for each in every.grants]
        times = [each.ends for each in grants if not each.is_used and each.ends > now]
        times += [each.until for each in use.grants if each.tokens]
        if self._max_calls is not None:
            n_waiting = max(1, len(use.demands))
            period_share = self._max_calls * PERIOD_SECONDS / self._window / n_waiting
            wanted = min(request.calls, max(1, math.floor(period_share)))
            free = self._max_calls - sum(each.calls for each in use.grants)
            if free < wanted:
                times.append(_freed_at(use.grants, wanted - free))
        # Where nothing is to come free, it is kept for those who are before this one.
        return max(0.0, min(times, default=now + PERIOD_SECONDS) - now)


def _freed_at(grants: list[Grant], calls: int) -> float:
    """Return when as many calls count no more."""
    for grant in sorted(grants, key=lambda each: each.until):
        calls -= grant.calls
        if calls <= 0:
            return grant.until
    return math.inf
