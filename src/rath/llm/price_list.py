"""The price list of the package genai-prices; imports it, which takes 0.5 s."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from urllib.parse import urlsplit

from genai_prices import Usage, __version__
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelInfo, ModelPrice
from genai_prices.types import Provider as Seller

from rath._core.dataclasses import dataclass
from rath.llm.prices import Cost, Tokens

_PRICED_APART = frozenset({"batch", "fast", "flex", "priority", "scale"})
"""Service tiers and speeds that no vendor sells at its standard price."""

_USAGE_KEYS = {
    "prompt": "input_tokens",
    "cached": "cache_read_tokens",
    "cache_write": "cache_write_tokens",
    "cache_write_1h": "cache_write_1h_tokens",
    "completion": "output_tokens",
    "reasoning": "output_reasoning_tokens",
}
"""The package's name of each kind."""


@dataclass(frozen=True, slots=True)
class PricedModel:
    """A model as one seller sells it."""

    seller: Seller
    model: ModelInfo

    def price(
        self, tokens: Tokens, *, circumstances: Mapping[str, str], at: datetime
    ) -> Cost | None:
        """Return what tokens cost, None where the list has no price for them; 0.1 ms.

        Args:
            tokens: What was read and written.
            circumstances: What a price may depend on, such as the service tier.
            at: When; prices change.
        """
        if not all(self._is_sold(key, value, at) for key, value in circumstances.items()):
            return None
        is_special = bool(circumstances) and self._is_own()
        prices = self.model.get_prices(at, circumstances if is_special else None)
        if not _covers(prices, tokens):
            return None
        return Cost(_total(prices, tokens), _source(), f"{self.seller.id}/{self.model.id}")

    def _is_sold(self, key: str, value: str, at: datetime) -> bool:
        """Tell whether there is a price under one circumstance."""
        if value not in _PRICED_APART:
            return True
        return self._is_own() and any(
            variant.when == {key: value}
            and (variant.constraint is None or variant.constraint.active(at))
            for variant in self.model.price_variants or ()
        )

    def _is_own(self) -> bool:
        """Tell whether the seller lists the model itself; only then its variants are applied."""
        return any(model is self.model for model in self.seller.models)


def find_model(endpoint: str, model: str) -> PricedModel | None:
    """Return the entry for a model at an endpoint."""
    seller = _find_seller(endpoint)
    if seller is None:
        return None
    try:
        return PricedModel(*get_snapshot().find_provider_model(model, seller, None, None))
    except LookupError:
        return None


def has_seller(endpoint: str) -> bool:
    """Tell whether an endpoint is that of a seller on the list."""
    return _find_seller(endpoint) is not None


def _find_seller(endpoint: str) -> Seller | None:
    sellers = get_snapshot().providers
    return next((one for one in sellers if _is_at(one.api_pattern, endpoint)), None)


@lru_cache(maxsize=2048)
def _is_at(pattern: str, endpoint: str) -> bool:
    """Tell whether an endpoint is one that a pattern of the list means.

    Remembered, since all patterns are tried for each call, which takes 0.1 ms.
    The patterns only look at how a URL begins, so api.openai.com.example would pass for OpenAI, and
    some would find their host name in a path as well.
    """
    parts = urlsplit(endpoint)
    if parts.scheme != "https" or parts.port not in (None, 443):
        return False
    host = f"https://{parts.hostname}"
    match = re.match(pattern, host + parts.path.replace(".", "_"))
    if match is None:
        return False
    left_over = host[match.end() :]
    return not left_over or (match.group().endswith(".") and "." not in left_over)


def _covers(prices: ModelPrice, tokens: Tokens) -> bool:
    """Tell whether there is a price for all that was used; a missing one would count as free."""
    known = vars(prices)  # asking for one that is missing takes longer than the sum
    is_read = not tokens.prompt or known.get("input_mtok") is not None
    return is_read and (not tokens.completion or known.get("output_mtok") is not None)


def _total(prices: ModelPrice, tokens: Tokens) -> Decimal:
    counts = {key: getattr(tokens, kind) for kind, key in _USAGE_KEYS.items()}
    return prices.calc_price(Usage(**counts))["total_price"]


def _source() -> str:
    snapshot = get_snapshot()
    # Only a program that asks the package for it has newer prices than those of its version.
    updated = f", updated {snapshot.timestamp:%Y-%m-%d}" if snapshot.from_auto_update else ""
    return f"genai-prices {__version__}{updated}"
