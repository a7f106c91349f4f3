"""What calls cost: sums done by hand, at the endpoints of vendors and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version
from typing import Any

import pytest
from genai_prices.types import AbstractUsage, CalcPrice, ModelPrice
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rath.llm import RathLLMTokenUsage
from rath.llm.price_list import PricedModel, find_model
from rath.llm.prices import Tokens, can_be_priced, least_cost
from tests.support.evidence import ANTHROPIC, OPENAI, STARTED, evidence, tokens

AZURE = "https://res.openai.azure.com/openai/deployments/mine/chat/completions"
MILLION = Decimal(1_000_000)
counts = st.integers(0, 10**7)


def usd(text: str) -> Decimal:
    return Decimal(text)


def test_a_call_costs_what_its_tokens_cost() -> None:
    cost = evidence(tokens(1000, 50, cached_tokens=200, reasoning_tokens=20)).cost
    assert cost is not None
    # 800 at 0.25, 200 from the cache at 0.025, 50 written at 2 dollars a million.
    assert cost.usd == usd("0.000305")
    assert cost.price_id == "openai/gpt-5-mini"
    assert cost.source == f"genai-prices {version('genai-prices')}"


WHOLE = tokens(1_000_000, 0)
SONNET = {"endpoint": ANTHROPIC, "model": "claude-sonnet-4-0"}
GOOGLE = "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions"
GEMINI = {"endpoint": GOOGLE, "model": "gemini-2.5-pro"}
GROK = {"endpoint": "https://api.x.ai/v1/chat/completions", "model": "grok-3-mini"}


@pytest.mark.parametrize(
    ("usage", "fields", "cost"),
    [
        # 2,000 at 3, 6,000 read at 0.30, 2,000 written at 3.75, 100 out at 15 dollars a million.
        (tokens(10_000, 100, cached_tokens=6_000, cache_write_tokens=2_000), SONNET, "0.0168"),
        # 600 written at 3.75 and 400 for an hour at 6.
        (
            tokens(1_000, 0, cache_write_tokens=1_000, cache_write_1h_tokens=400),
            SONNET,
            "0.00465",
        ),
        # 300 more stand in the total alone: 1,000 at 0.3 and 400 at 0.5.
        (
            replace(tokens(1_000, 100, reasoning_tokens=300), total_tokens=1_400),
            GROK,
            "0.0005",
        ),
        (tokens(200_000, 0), GEMINI, "0.25"),
        (tokens(200_001, 0), GEMINI, "0.5000025"),  # a long prompt
        (WHOLE, {"model": "o3", "started": datetime(2025, 5, 1, tzinfo=UTC)}, "10"),
        (WHOLE, {"model": "o3"}, "2"),
        (WHOLE, {"served_model": "gpt-4o-mini"}, "0.15"),
        (WHOLE, {"served_model": None}, "0.25"),
        (WHOLE, {"service_tier": "default"}, "0.25"),
        (WHOLE, {"service_tier": "auto"}, "0.25"),
        (WHOLE, {"service_tier": "standard"}, "0.25"),
        (WHOLE, {"service_tier": "flex"}, "0.125"),
        (WHOLE, {"service_tier": "priority"}, "0.45"),
        (
            WHOLE,
            {"endpoint": ANTHROPIC, "model": "claude-opus-4-8", "parameters": {"speed": "fast"}},
            "10",
        ),
    ],
    ids=str,
)
def test_a_call_has_the_price_of_its_circumstances(
    usage: RathLLMTokenUsage, fields: dict[str, Any], cost: str
) -> None:
    found = evidence(usage, **fields).cost
    assert found is not None
    assert found.usd == usd(cost)


@given(fresh=counts, cached=counts, written=counts, completion=counts)
def test_the_cost_is_the_sum_over_its_parts(
    fresh: int, cached: int, written: int, completion: int
) -> None:
    usage = tokens(
        fresh + cached + written, completion, cached_tokens=cached, cache_write_tokens=written
    )
    cost = evidence(usage, endpoint=ANTHROPIC, model="claude-haiku-4-5").cost
    assert cost is not None
    parts = (fresh * usd("1"), cached * usd("0.1"), written * usd("1.25"), completion * usd("5"))
    assert cost.usd == sum(parts, Decimal(0)) / MILLION


@given(prompt=counts, cached=counts, written=counts, completion=counts, thought=counts)
def test_counts_that_contradict_each_other_have_a_cost_all_the_same(
    prompt: int, cached: int, written: int, completion: int, thought: int
) -> None:
    usage = tokens(
        prompt, completion, cached_tokens=cached, cache_write_tokens=written,
        reasoning_tokens=thought,
    )  # fmt: skip
    assert evidence(usage).cost is not None


# ---- tiers


def test_a_tier_that_is_sold_at_another_price_has_none_where_the_list_does_not_tell() -> None:
    usage = tokens(1_000_000, 0)
    assert evidence(usage, service_tier="scale").cost is None
    assert evidence(usage, model="gpt-3.5-turbo", service_tier="flex").cost is None
    azure = evidence(usage, endpoint=AZURE, model="gpt-5-mini", service_tier="priority")
    assert azure.cost is None
    slow: dict[str, Any] = {
        "endpoint": ANTHROPIC,
        "model": "claude-opus-4-1",
        "parameters": {"speed": "fast"},
    }
    assert evidence(usage, **slow).cost is None


# ---- who sells


@pytest.mark.parametrize(
    "endpoint",
    [
        None,
        "http://127.0.0.1:8080/v1/chat/completions",
        "http://api.openai.com/v1/chat/completions",
        "https://api.openai.com:8443/v1/chat/completions",
        "https://api.openai.com.example/v1/chat/completions",
        "https://api.openai.company/v1/chat/completions",
        "https://eu.api.openai.com/v1/chat/completions",
        "https://gateway.example/https://api.openai.com/v1/chat/completions",
        "https://gateway.example/x.googleapis.com/v1",
        "https://gateway/x.openai.azure.com/openai/v1/chat/completions",
        "https://api.moonshot.gateway.example/v1/chat/completions",
    ],
)
def test_at_an_unknown_endpoint_no_model_has_a_price(endpoint: str | None) -> None:
    for model in ("gpt-5-mini", "claude-haiku-4-5", "gemini-2.5-flash", "kimi-k2"):
        assert evidence(tokens(10, 10), endpoint=endpoint, model=model).cost is None
        assert not can_be_priced(endpoint, model, service_tier=None)


@pytest.mark.parametrize(
    ("endpoint", "model", "price_id"),
    [
        (OPENAI, "gpt-5-mini", "openai/gpt-5-mini"),
        ("https://api.openai.com:443/v1/chat/completions", "gpt-5-mini", "openai/gpt-5-mini"),
        ("https://api.openai.com", "gpt-5-mini", "openai/gpt-5-mini"),
        (AZURE, "gpt-5-mini-2025-08-07", "azure/gpt-5-mini"),
        ("https://api.moonshot.ai/v1", "kimi-k2.6", "moonshotai/kimi-k2.6"),
        (
            "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions",
            "gemini-2.5-flash",
            "google/gemini-2.5-flash",
        ),
    ],
)
def test_at_its_own_endpoint_a_model_has_its_price(
    endpoint: str, model: str, price_id: str
) -> None:
    cost = evidence(tokens(10, 10), endpoint=endpoint, model=model).cost
    assert cost is not None
    assert cost.price_id == price_id


def test_a_model_that_the_vendor_does_not_sell_has_no_price() -> None:
    assert evidence(tokens(10, 10), model="claude-haiku-4-5").cost is None
    assert evidence(tokens(10, 10), model="no-such-model").cost is None


def test_the_name_of_a_deployment_says_nothing_about_its_price() -> None:
    usage = tokens(10, 10)
    assert evidence(usage, endpoint=AZURE, model="gpt-5-mini", served_model=None).cost is None
    assert can_be_priced(AZURE, "the-big-one", service_tier=None)
    assert not can_be_priced(AZURE.replace("https", "http"), "the-big-one", service_tier=None)


def test_what_has_no_rate_for_text_is_not_free() -> None:
    assert evidence(tokens(10, 0), model="whisper-1").cost is None
    assert evidence(tokens(10, 10), model="text-embedding-3-small").cost is None
    assert not can_be_priced(OPENAI, "text-embedding-3-small", service_tier=None)


def test_without_token_counts_there_is_no_cost() -> None:
    assert evidence(None).cost is None


# ---- when it is worked out


def test_the_cost_is_worked_out_once_and_anew_for_changed_evidence() -> None:
    call = evidence(tokens(10, 10))
    assert call.cost is call.cost
    assert structs.replace(call, endpoint=None).cost is None


def test_a_cost_that_was_asked_for_changes_no_comparison() -> None:
    call = evidence(tokens(10, 10))
    same = structs.replace(call)
    assert call.cost is not None
    assert call == same
    assert repr(call) == repr(same)


def test_prices_are_loaded_for_who_asks_and_only_for_public_endpoints() -> None:
    code = """
import sys
import rath.flow
from tests.support.evidence import evidence, tokens
assert evidence(tokens(1, 1), endpoint="http://127.0.0.1:1/v1").cost is None
assert "genai_prices" not in sys.modules
assert evidence(tokens(1, 1)).cost is not None
assert "genai_prices" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- before a call


@given(prompt=st.integers(0, 10**6), cached=st.integers(0, 10**6), completion=counts)
def test_no_call_costs_less_than_the_least(prompt: int, cached: int, completion: int) -> None:
    call = evidence(tokens(prompt, completion, cached_tokens=min(cached, prompt)))
    least = least_cost(OPENAI, "gpt-5-mini", n_prompt=prompt, service_tier=None)
    assert least is not None
    assert call.cost is not None
    assert least <= call.cost.usd


def test_the_least_is_a_prompt_from_the_cache() -> None:
    def least(tier: str | None) -> Decimal | None:
        return least_cost(OPENAI, "gpt-5-mini", n_prompt=1_000_000, service_tier=tier)

    assert least(None) == usd("0.025")
    assert least("flex") == usd("0.0125")
    # Who asks for a dearer tier may be given the standard one.
    assert least("priority") == usd("0.025")


def test_where_nothing_is_known_there_is_no_least() -> None:
    assert least_cost(None, "gpt-5-mini", n_prompt=1, service_tier=None) is None
    assert least_cost(OPENAI, "no-such-model", n_prompt=1, service_tier=None) is None


# ---- sums that are worked out here


class PriceOfOnesOwn(ModelPrice):
    """Counts in its own way."""

    def calc_price(self, usage: AbstractUsage) -> CalcPrice:
        price = Decimal(7)
        return {"input_price": price, "output_price": Decimal(0), "total_price": price}


def test_a_price_that_counts_in_its_own_way_is_asked() -> None:
    offer = find_model(OPENAI, "gpt-5-mini")
    assert offer is not None
    own = replace(offer.model, prices=PriceOfOnesOwn(input_mtok=Decimal(1)))
    cost = PricedModel(offer.seller, own).price(Tokens(prompt=1), circumstances={}, at=STARTED)
    assert cost is not None
    assert cost.usd == 7
