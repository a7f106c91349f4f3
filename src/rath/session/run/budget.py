"""Limits on tokens and money, and the prices they need."""

from __future__ import annotations

import logging
import operator
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Literal
from uuid import UUID

from rath._async.bridge import call_either
from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath.errors import BudgetExceededError
from rath.llm.chat_response import RathLLMTokenUsage, add_usage
from rath.llm.client import VendorClient, open_draft
from rath.llm.evidence import CallEvidence
from rath.llm.prices import can_be_priced, least_cost
from rath.llm.provider import Provider
from rath.session.body import Body, CostSum, model_of, sum_costs
from rath.session.calls.requests import ProviderCandidate, offload, side_request
from rath.session.content import UserText
from rath.session.outcome import BudgetExceeded
from rath.session.record import ModelCall
from rath.session.session import Session

_PRICE_LIST = "rath.llm.price_list"


def load_prices(candidates: Sequence[ProviderCandidate]) -> None:
    """Have the price list loaded while the first answer is waited for; returns at once.

    That takes half a second, which the writing of the first call would take otherwise. Nothing is
    loaded where no model is asked that somebody sells.
    """
    clients = [one for one in candidates if isinstance(one.client, VendorClient)]
    if clients and _PRICE_LIST not in sys.modules:
        runtime().start_in_worker(partial(_load, clients))


def _load(candidates: Sequence[ProviderCandidate]) -> None:
    for candidate in candidates:
        facts = open_draft(candidate.client, side_request(candidate)).facts
        can_be_priced(facts.endpoint, facts.requested_model, service_tier=None)


_log = logging.getLogger("rath.session.loop")

Snapshot = Callable[[], Session]
"""Gives the session as it is now, for the callback."""

_Cap = Literal["tokens", "usd"]


@dataclass(frozen=True, slots=True)
class _Amount:
    """The use of calls, or the least use ahead."""

    tokens: int
    usd: Decimal


_NOTHING = _Amount(0, Decimal(0))
_NO_USAGE = RathLLMTokenUsage(0, 0, 0)
_NO_CAPS: frozenset[_Cap] = frozenset()


def check_budget(operation: str, candidates: Sequence[ProviderCandidate]) -> None:
    """Refuse a budget in money that could not be counted; loads the prices where there is one.

    Raises:
        ValueError: A model that may be asked has no known price.
    """
    budget = candidates[0].provider.budget_usd
    if budget is None:
        return
    for candidate in candidates:
        facts = open_draft(candidate.client, side_request(candidate)).facts
        endpoint, model = facts.endpoint, facts.requested_model
        tier = candidate.provider.service_tier
        if not can_be_priced(endpoint, model, service_tier=tier):
            raise ValueError(
                f"{operation}: budget_usd={budget} cannot be counted, because model {model!r} at "
                f"{endpoint or 'an endpoint that is not known'} has no known price; ask a vendor's "
                "own endpoint, or set budget_total_tokens instead"
            )


class Budget:
    """Counts what a chain has used, and says when its run must stop.

    Without a cap it counts nothing and never says so. Each cap speaks once in a run: its callback
    is called, or the run has to stop where there is none.

    Args:
        provider: Sets the caps and the callback.
        session: The session that the run makes or serves.
        run: The run that is watched; calls of others inside it are counted too.
    """

    def __init__(self, provider: Provider, *, session: UUID, run: UUID) -> None:
        usd = provider.budget_usd
        self._max_tokens = provider.budget_total_tokens
        self._max_usd = None if usd is None else _by_digits(usd)
        self._is_set = self._max_tokens is not None or self._max_usd is not None
        self._callback = provider.on_budget_exceeded
        self._session = session
        self._run = run
        self._usage = _NO_USAGE
        self._usd = Decimal(0)
        self._last: CallEvidence | None = None
        self._unpriced: str | None = None
        self._spoken = _NO_CAPS
        self._has_warned = False

    async def begin(self, body: Body, snapshot: Snapshot) -> BudgetExceeded | None:
        """Count the calls of the chain so far, and stop where they have reached a cap."""
        if not self._is_set:
            return None
        self._usage = body.usage() or self._usage
        if self._max_usd is not None:
            cost = await offload(len(body.record), body.cost)
            self._usd = cost.usd
            self._warn_of_gaps(cost)
        return await self._stop_where(operator.ge, _NOTHING, snapshot)

    def count(self, call: ModelCall) -> None:
        """Count a call of the run, or of one inside it."""
        if not self._is_set:
            return
        evidence = call.evidence
        self._usage = add_usage(self._usage, evidence.usage) or self._usage
        is_own_answer = call.operation == self._run and call.status == "done"
        if is_own_answer:
            self._last = evidence
        if self._max_usd is None:
            return
        cost = evidence.cost
        if cost is not None:
            self._usd += cost.usd
            return
        self._warn_of_gaps(sum_costs((call,)))
        if is_own_answer:
            self._unpriced = model_of(evidence)

    async def before_call(self, snapshot: Snapshot) -> BudgetExceeded | None:
        """Stop where the next call of the run would cross a cap, as far as that is known."""
        if not self._is_set:
            return None
        if self._unpriced is not None:
            return self._stopped(_NOTHING)
        coming = self._least_of_next()
        has_news = not self._passed(operator.gt, coming) <= self._spoken
        if has_news and not _holds_last_prompt(snapshot()):
            coming = _NOTHING
        return await self._stop_where(operator.gt, coming, snapshot)

    async def after_call(self, snapshot: Snapshot) -> BudgetExceeded | None:
        """Stop where the calls so far have crossed a cap."""
        return await self._stop_where(operator.gt, _NOTHING, snapshot) if self._is_set else None

    def _least_of_next(self) -> _Amount:
        """Return the least use of the next call if its prompt begins with the last one."""
        last = self._last
        if last is None or last.usage is None:
            return _NOTHING
        n_prompt, usd = last.usage.prompt_tokens, None
        if self._max_usd is not None:
            tier = last.parameters.get("service_tier")
            usd = least_cost(
                last.endpoint,
                last.served_model or last.requested_model,
                n_prompt=n_prompt,
                service_tier=tier if isinstance(tier, str) else None,
            )
        return _Amount(n_prompt, usd or Decimal(0))

    async def _stop_where(
        self, is_over: Callable[[Any, Any], bool], coming: _Amount, snapshot: Snapshot
    ) -> BudgetExceeded | None:
        """Let the caps speak that are passed; return why the run has to stop, if it has to."""
        passed = self._passed(is_over, coming)
        if passed <= self._spoken:
            return None
        self._spoken |= passed
        if self._callback is None:
            return self._stopped(coming)
        try:
            await call_either(self._callback, snapshot(), self._usage)
        except BudgetExceededError:
            raise
        except Exception:  # noqa: BLE001  # a callback that fails must not end the run it watches
            _log.exception("on_budget_exceeded failed; the run goes on")
        return None

    def _passed(self, is_over: Callable[[Any, Any], bool], coming: _Amount) -> set[_Cap]:
        tokens, usd = self._usage.total_tokens + coming.tokens, self._usd + coming.usd
        passed: set[_Cap] = set()
        if self._max_tokens is not None and is_over(tokens, self._max_tokens):
            passed.add("tokens")
        if self._max_usd is not None and is_over(usd, self._max_usd):
            passed.add("usd")
        return passed

    def _stopped(self, coming: _Amount) -> BudgetExceeded:
        has_usd = self._max_usd is not None
        outcome = BudgetExceeded(
            self._max_tokens,
            self._usage.total_tokens,
            next_tokens=coming.tokens or None,
            budget_usd=self._max_usd,
            used_usd=self._usd if has_usd else None,
            next_usd=(coming.usd or None) if has_usd else None,
            unpriced=self._unpriced,
        )
        _log.warning("session %s stops: %s", self._session, outcome)
        return outcome

    def _warn_of_gaps(self, cost: CostSum) -> None:
        """Say once that the chain holds calls which the budget in money does not know."""
        if cost.is_complete or self._has_warned:
            return
        self._has_warned = True
        _log.warning(
            "budget_usd of session %s leaves out what has no known cost: calls without a price %s, "
            "calls without token counts %s, %d tokens that came with a session",
            self._session,
            dict(cost.unpriced),
            dict(cost.uncounted),
            cost.given_tokens,
        )


def _holds_last_prompt(session: Session) -> bool:
    """Tell whether the next prompt of a run is certain to hold the last one, and not less.

    Some vendors drop earlier thinking once a user speaks again, as when an answer is sent back for
    its form. Between a tool call and its result all of them keep it.
    """
    table = session.chunk_table
    return len(table) > 0 and not isinstance(table[-1].content, UserText)


def _by_digits(usd: Decimal | float) -> Decimal:
    """Return an amount as it is written: 0.1 is a tenth, not the nearest binary fraction."""
    return usd if isinstance(usd, Decimal) else Decimal(str(float(usd)))
