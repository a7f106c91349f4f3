"""Costs of model calls."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING

from rath._core.dataclasses import dataclass
from rath.llm.credentials import is_azure, is_loopback

if TYPE_CHECKING:
    from rath.llm.evidence import CallEvidence
    from rath.llm.price_list import PricedModel


_PRICE_LIST = "rath.llm.price_list"
"""Imports genai-prices, which takes 0.5 s."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one model call."""

    usd: Decimal
    source: str
    """The price list and its version, such as "genai-prices 0.2.3"."""

    price_id: str
    """Seller and model in that list, such as "openai/gpt-5-mini"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Counts of one call; a part is contained in its whole."""

    prompt: int = 0
    cached: int = 0
    """Of the prompt, those that were read from a cache."""

    cache_write: int = 0
    """Of the prompt, those that were written to a cache."""

    cache_write_1h: int = 0
    """Of those, the ones that are kept for an hour and not for five minutes."""

    completion: int = 0
    reasoning: int = 0
    """Of the completion."""


def cost_of(evidence: CallEvidence) -> Cost | None:
    """Return what a call cost: the tokens that its endpoint counted, at the prices of its time.

    Who sells a model is told by the endpoint alone: at a gateway, or at a server of one's own, a
    model has no known price, whatever its name.

    Returns:
        None where the endpoint sells no such model, or not in the service tier that answered, and
        where it did not say how many tokens it took.
    """
    endpoint, model = evidence.endpoint, evidence.served_model
    if model is None and not is_azure(endpoint):
        # At Azure the name that is asked for is that of a deployment and may say anything.
        model = evidence.requested_model
    sold = _find(endpoint, model)
    if sold is None or evidence.usage is None:
        return None
    circumstances = _circumstances(evidence.service_tier, evidence.parameters.get("speed"))
    return sold.price(_tokens_of(evidence), circumstances=circumstances, at=evidence.started)


def can_be_priced(endpoint: str | None, model: str | None, *, service_tier: str | None) -> bool:
    """Tell whether a call that is not made yet will have a known price, as far as can be known.

    At Azure only the endpoint tells: what a deployment serves is told by its answer.
    """
    if is_azure(endpoint):
        return _is_public(endpoint) and import_module(_PRICE_LIST).has_seller(endpoint)
    tokens = Tokens(prompt=1, completion=1)
    return _least(endpoint, model, (tokens,), service_tier) is not None


def least_cost(
    endpoint: str | None, model: str | None, *, n_prompt: int, service_tier: str | None
) -> Decimal | None:
    """Return the US dollars that a call costs at least: the whole prompt is in the cache.

    Args:
        endpoint: Where it would be sent.
        model: Which model would answer.
        n_prompt: Tokens of the prompt.
        service_tier: What is asked for; the standard tier may answer all the same.

    Returns:
        None where no price is known.
    """
    cached, fresh = Tokens(prompt=n_prompt, cached=n_prompt), Tokens(prompt=n_prompt)
    return _least(endpoint, model, (cached, fresh), service_tier)


def _least(
    endpoint: str | None, model: str | None, tokens: Sequence[Tokens], service_tier: str | None
) -> Decimal | None:
    """Return the lowest price among several ways to count, at the tier that is asked for or not."""
    sold = _find(endpoint, model)
    if sold is None:
        return None
    now = datetime.now(UTC)
    tiers = (_circumstances(None), _circumstances(service_tier))
    costs = [sold.price(one, circumstances=tier, at=now) for one in tokens for tier in tiers]
    return min((cost.usd for cost in costs if cost is not None), default=None)


def _circumstances(service_tier: str | None, speed: object = None) -> dict[str, str]:
    fields = {"service_tier": service_tier, "speed": speed}
    return {key: value for key, value in fields.items() if isinstance(value, str) and value}


def _find(endpoint: str | None, model: str | None) -> PricedModel | None:
    if not model or not _is_public(endpoint):
        return None
    found: PricedModel | None = import_module(_PRICE_LIST).find_model(endpoint, model)
    return found


def _is_public(endpoint: str | None) -> bool:
    """Tell whether a vendor may be there; saves the loading of prices where all is local."""
    return endpoint is not None and endpoint.startswith("https://") and not is_loopback(endpoint)


def _tokens_of(evidence: CallEvidence) -> Tokens:
    usage = evidence.usage
    assert usage is not None
    cached, written = _count(evidence.cached_tokens), _count(evidence.cache_write_tokens)
    # Some endpoints count reasoning in the total alone.
    completion = max(usage.completion_tokens, usage.total_tokens - usage.prompt_tokens, 0)
    details = usage.prompt_tokens_details or {}
    return Tokens(
        # Where cached tokens are no part of the prompt, they are at least read.
        prompt=max(usage.prompt_tokens, cached + written),
        cached=cached,
        cache_write=written,
        cache_write_1h=min(_count(details.get("cache_write_1h_tokens")), written),
        completion=completion,
        reasoning=min(_count(evidence.reasoning_tokens), completion),
    )


def _count(value: object) -> int:
    return max(value, 0) if isinstance(value, int) else 0
