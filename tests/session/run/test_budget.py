"""Budgets: a run stops before the call that would cross one, where that is known, or after it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.errors import BudgetExceededError
from rath.llm import Provider, RathLLMTokenUsage
from rath.session import (
    Session,
    load_session,
    run_session_compress,
    run_session_loop,
    select_session,
)
from rath.session.outcome import BudgetExceeded, Completed
from rath.session.record import ModelCall
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.chat_replies import completion
from tests.support.chat_server import ChatServer
from tests.support.evidence import answer, priced_client, tokens
from tests.support.sessions import AGENT, FunctionTool, run

LOG = "rath.session.loop"


class Noter:
    """A budget callback that remembers what it was told, and may end the run."""

    def __init__(self, *, ends: bool = False) -> None:
        self.told: list[int] = []
        self.rows: list[int] = []
        self._ends = ends

    def __call__(self, session: Session, usage: RathLLMTokenUsage) -> None:
        self.told.append(usage.total_tokens)
        self.rows.append(len(session.chunk_table))
        if self._ends:
            raise BudgetExceededError("enough")


def calls(prompt: int, completion: int, **options: Any) -> Turn:
    """A turn that calls the tool f."""
    return answer(tool_call("f"), tokens(prompt, completion), **options)


def says(prompt: int, completion: int, **options: Any) -> Turn:
    """A turn that ends the run."""
    return answer("done", tokens(prompt, completion), **options)


def tool(function: Callable[..., Any] = lambda *_: "ok") -> FunctionTool:
    return FunctionTool("f", function)


def limited(turns: list[Turn], **provider: Any) -> tuple[ScriptedClient, Session]:
    """Run turns of a model with a known price under a budget."""
    client = priced_client(turns, **provider)
    return client, run([], tool(), agent_provider=client.provider)


# ---- tokens: before the call


def test_a_run_stops_before_the_call_that_would_cross_its_budget() -> None:
    done: list[int] = []
    client = priced_client([calls(500, 100)], budget_total_tokens=1000)
    out = run([], tool(lambda *_: done.append(1)), agent_provider=client.provider)
    assert out.outcome == BudgetExceeded(1000, 600, next_tokens=500)
    assert "the next call would have taken at least 500 tokens" in str(out.outcome)
    # What the model had asked for was still done, so that a larger budget can go on from there.
    assert (done, len(out.chunk_table)) == ([1], 3)


def test_what_a_sub_agent_took_stops_the_run_before_its_next_call() -> None:
    def ask(*_: object) -> str | None:
        return run([says(400, 5)]).text()

    client = priced_client([calls(10, 5)], budget_total_tokens=400)
    out = run([], tool(ask), agent_provider=client.provider)
    assert out.outcome == BudgetExceeded(400, 420, next_tokens=10)


@given(
    turns=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), min_size=1, max_size=8),
    cap=st.integers(1, 1500),
)
def test_no_call_is_made_that_must_cross_a_budget(turns: list[tuple[int, int]], cap: int) -> None:
    # Prompts only grow, as those of a run do.
    script = [calls(sum(p for p, _ in turns[: n + 1]), c) for n, (_, c) in enumerate(turns)]
    _, out = limited([*script, says(10_000, 1)], budget_total_tokens=cap)
    used, last_prompt = 0, 0
    for entry in out.record:
        if isinstance(entry, ModelCall):
            assert used + last_prompt <= cap
            assert entry.evidence.usage is not None
            used += entry.evidence.usage.total_tokens
            last_prompt = entry.evidence.usage.prompt_tokens
    stopped = isinstance(out.outcome, BudgetExceeded)
    assert stopped == (out.text() == "")
    assert not stopped or used + last_prompt > cap


def test_after_a_user_has_spoken_nobody_knows_what_the_next_prompt_holds() -> None:
    # The repair of a typed answer: its vendor may drop earlier thinking from the prompt.
    provider = {"budget_total_tokens": 1000, "output_mode": "schema"}
    client = priced_client([says(500, 100), answer("7", tokens(300, 10))], **provider)
    out = run([], agent_provider=client.provider, output=int)
    assert out.output == 7
    assert len(client.requests) == 2


# ---- tokens: after the call


def test_a_call_that_crosses_a_budget_stops_the_run_before_its_tools() -> None:
    done: list[int] = []
    client = priced_client([calls(500, 100)], budget_total_tokens=599)
    out = run([], tool(lambda *_: done.append(1)), agent_provider=client.provider)
    assert out.outcome == BudgetExceeded(599, 600)
    assert done == []


# ---- the callback


def test_a_budget_callback_gets_the_usage_before_the_call_and_the_run_goes_on() -> None:
    noter = Noter()
    _, out = limited(
        [calls(500, 100), calls(700, 1), says(800, 1)],
        budget_total_tokens=1000,
        on_budget_exceeded=noter,
    )
    assert out.text() == "done"
    assert (noter.told, noter.rows) == ([600], [3])


def test_each_budget_calls_once() -> None:
    noter = Noter()
    _, out = limited(
        [calls(100_000, 0), calls(900_000, 0), says(1, 1)],
        budget_total_tokens=150_000,
        budget_usd=0.1,
        on_budget_exceeded=noter,
    )
    assert out.text() == "done"
    assert noter.told == [100_000, 1_000_000]


# ---- money


def test_a_run_stops_before_the_call_that_would_cost_too_much() -> None:
    # A million tokens cost 0.25 dollars, and at least 0.025 when all of them are cached.
    client, out = limited([calls(1_000_000, 0)], budget_usd=0.27)
    outcome = out.outcome
    assert isinstance(outcome, BudgetExceeded)
    assert (outcome.budget_total_tokens, outcome.used_tokens) == (None, 1_000_000)
    assert (outcome.budget_usd, outcome.used_usd) == (Decimal("0.27"), Decimal("0.25"))
    assert outcome.next_usd == Decimal("0.025")
    assert "budget_usd=0.27, 0.25 used" in str(outcome)
    assert len(client.requests) == 1


def test_a_budget_may_be_a_decimal_and_is_counted_as_it_is() -> None:
    # No float is between this and a quarter.
    amount = Decimal("0.25000000000000000000000001")
    before = priced_client([says(1_000_000, 0)])
    for budget, is_over in ((Decimal("0.25"), True), (amount, False)):
        client = priced_client([says(0, 0)], budget_usd=budget)
        out = run([], user=run([], agent_provider=before.provider), agent_provider=client.provider)
        before = priced_client([says(1_000_000, 0)])
        assert isinstance(out.outcome, BudgetExceeded) == is_over


def test_the_tier_that_was_asked_for_decides_what_the_next_call_costs_at_least() -> None:
    # The answer does not say that it was served as flex, so it cost the standard price.
    _, out = limited([calls(1_000_000, 0)], budget_usd=0.26, service_tier="flex")
    assert isinstance(out.outcome, BudgetExceeded)
    assert out.outcome.next_usd == Decimal("0.0125")


# ---- money that cannot be counted


def provider_at(url: str, **more: Any) -> Provider:
    return Provider(model="gpt-5-mini", base_url=url, api_key="k", **more)


def test_a_budget_for_a_model_without_a_price_raises_at_the_call() -> None:
    with ChatServer(lambda _: completion("never")) as server:
        provider = provider_at(server.base_url, budget_usd=1)
        user = Session.from_user_message("go")
        for ask in (
            lambda: run_session_loop(user, AGENT, agent_provider=provider),
            lambda: run_session_compress(user, AGENT, agent_provider=provider),
            lambda: select_session(user, AGENT, "a", agent_provider=provider),
        ):
            with pytest.raises(ValueError, match=r"budget_usd=1 .* 'gpt-5-mini' at http://127"):
                ask()
        assert server.requests == []


def test_a_fallback_without_a_price_raises_at_the_call() -> None:
    other = provider_at("http://127.0.0.1:1/v1")
    client = priced_client([], budget_usd=1, fallbacks=[other])
    with pytest.raises(ValueError, match=r"budget_usd=1 cannot be counted.* at http://127"):
        run([], agent_provider=client.provider)


def test_a_client_that_says_no_endpoint_has_no_price() -> None:
    client = ScriptedClient([], provider=Provider(model="gpt-5-mini", budget_usd=1))
    with pytest.raises(ValueError, match="at an endpoint that is not known has no known price"):
        run([], agent_provider=client.provider)


def test_an_answer_without_a_price_stops_the_run(caplog: pytest.LogCaptureFixture) -> None:
    client, out = limited([calls(10, 10, model="mystery")], budget_usd=1)
    outcome = out.outcome
    assert isinstance(outcome, BudgetExceeded)
    assert outcome.unpriced == "mystery"
    assert "what 'mystery' answered last has no known cost" in str(outcome)
    assert str(outcome) in caplog.text
    assert len(client.requests) == 1


def test_earlier_calls_without_a_price_are_logged_and_do_not_stop_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = run(["one two three"])
    client = priced_client([calls(1, 1), says(2, 2)], budget_usd=1)
    with caplog.at_level(logging.WARNING, logger=LOG):
        out = run([], tool(), user=before, agent_provider=client.provider)
        assert out.outcome == Completed()
    assert caplog.text.count("leaves out what has no known cost") == 1
    assert "{'scripted': 1}" in caplog.text


# ---- side calls


def spent(**options: Any) -> tuple[Session, ScriptedClient]:
    """A chain that has used 600 tokens, and a client whose budget that is."""
    client = priced_client([answer("0 short", tokens(5, 5))], budget_total_tokens=600, **options)
    return run([says(500, 100)]), client


def test_at_its_budget_a_chain_is_not_compressed() -> None:
    user, client = spent()
    out = run_session_compress(user, AGENT, agent_provider=client.provider)
    assert out.outcome == BudgetExceeded(600, 600)
    assert out.chunk_table.rows == user.chunk_table.rows
    assert client.requests == []


def test_at_its_budget_a_chain_asks_for_no_selection(caplog: pytest.LogCaptureFixture) -> None:
    user, client = spent()
    assert select_session(user, AGENT, "a", agent_provider=client.provider) == (-1, "")
    assert client.requests == []
    assert "budget_total_tokens=600, 600 used" in caplog.text


def test_a_compression_that_crosses_a_budget_keeps_what_was_paid_for(tmp_path: Path) -> None:
    client = priced_client([answer("short", tokens(50, 50))], budget_total_tokens=10)
    path = tmp_path / "s.jsonl"
    out = run_session_compress(
        Session.from_user_message("go"), AGENT, agent_provider=client.provider, persist_path=path
    )
    assert out.outcome == BudgetExceeded(10, 100)
    assert out.text() == "short"
    loaded = load_session(out.id, path=path)
    assert (loaded.closed, loaded.chunk_table) == (True, out.chunk_table)
    assert isinstance(run([], user=out, agent_provider=client.provider).outcome, BudgetExceeded)
    assert len(client.requests) == 1


def test_the_callback_hears_of_a_compression_that_crosses_a_budget() -> None:
    noter = Noter()
    client = priced_client(
        [answer("short", tokens(50, 50))], budget_usd=Decimal("0.0001"), on_budget_exceeded=noter
    )
    out = run_session_compress(
        Session.from_user_message("go"), AGENT, agent_provider=client.provider
    )
    assert (out.text(), out.outcome) == ("short", Completed())
    assert (noter.told, noter.rows) == ([100], [1])


def test_the_callback_hears_of_a_selection_that_crosses_a_budget() -> None:
    noter = Noter(ends=True)
    user = Session.from_user_message("go")
    client = priced_client(
        [answer("0", tokens(50, 50))], budget_total_tokens=10, on_budget_exceeded=noter
    )
    with pytest.raises(BudgetExceededError, match="enough"):
        select_session(user, AGENT, "a", agent_provider=client.provider)
    assert noter.told == [100]
    assert user.cumulative_usage is not None
