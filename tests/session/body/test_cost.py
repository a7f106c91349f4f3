"""What a session cost: each call behind it once, and nothing unknown counted as free."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rath import flow
from rath._async.retry import Attempt
from rath.errors import ProviderServerError
from rath.llm import Provider, RathLLMTokenUsage
from rath.session import ChunkTable, Session, run_session_compress, select_session
from rath.session.body import CostSum, sum_costs
from rath.session.record import ModelCall
from rath.testing import ScriptedClient, tool_call
from tests.support.chat_replies import completion, status_error, usage
from tests.support.chat_server import ChatServer
from tests.support.evidence import ANTHROPIC, answer, evidence, priced_client, tokens
from tests.support.sessions import FunctionTool, run

AGENT = Session.from_agent_prompt("You are a test.")
GO = Session.from_user_message("go")


def model_calls(session: Session) -> list[ModelCall]:
    return [entry for entry in session.record if isinstance(entry, ModelCall)]


def entry(*args: object, **changes: object) -> ModelCall:
    made = evidence(*args, **changes)  # type: ignore[arg-type]  # passed on as they are
    return ModelCall(operation=UUID(int=1), purpose="turn", status="done", seen=None, evidence=made)


# ---- what is told


def test_a_session_without_calls_cost_nothing() -> None:
    assert GO.cumulative_cost == CostSum(Decimal(0), 0)
    assert GO.cumulative_cost.is_complete


def test_a_run_cost_what_its_calls_cost() -> None:
    client = priced_client(
        [answer(tool_call("f"), tokens(1000, 100)), answer("done", tokens(2000, 100))]
    )
    out = run([], FunctionTool("f", lambda *_: "ok"), agent_provider=client.provider)
    # 3,000 at 0.25 and 200 at 2 dollars a million.
    assert out.cumulative_cost == CostSum(Decimal("0.00115"), 2)


def test_the_cost_of_a_pending_session_waits_for_it() -> None:
    client = priced_client([answer("done", tokens(1000, 0))])
    fork = run([], agent_provider=client.provider).fork()
    assert fork.cumulative_cost == CostSum(Decimal("0.00025"), 1)


def test_calls_without_a_price_are_told_by_model_and_not_counted() -> None:
    calls = [
        entry(tokens(1, 1), model="small", endpoint="http://127.0.0.1:1/v1"),
        entry(tokens(1, 1), model="large", endpoint=None),
        entry(tokens(1_000_000, 0)),
        entry(tokens(1, 1), model="small", endpoint="http://127.0.0.1:1/v1"),
    ]
    cost = sum_costs(calls)
    assert cost == CostSum(Decimal("0.25"), 1, unpriced=(("large", 1), ("small", 2)))
    assert not cost.is_complete


def test_calls_without_token_counts_are_told() -> None:
    cost = sum_costs([entry(None), entry(None, status="cancelled")])
    assert cost == CostSum(Decimal(0), 0, uncounted=(("gpt-5-mini", 2),))


def test_a_call_that_was_cut_off_costs_what_its_usage_says() -> None:
    assert sum_costs([entry(tokens(1_000_000, 0), status="failed")]).usd == Decimal("0.25")


@pytest.mark.parametrize(
    ("statuses", "is_told"), [([500, 429], False), ([500, None], True), ([], True)]
)
def test_a_call_that_was_refused_each_time_is_not_told(
    statuses: list[int | None], is_told: bool
) -> None:
    tries = tuple(
        Attempt(number, "ProviderError: no", status, 1.0, 0.0)
        for number, status in enumerate(statuses, start=1)
    )
    cost = sum_costs([entry(None, status="failed", attempts=tries)])
    assert bool(cost.uncounted) == is_told


def test_a_call_that_was_never_sent_is_not_told() -> None:
    cost = sum_costs([entry(None, status="cancelled", was_sent=False)])
    assert cost == CostSum(Decimal(0), 0)


def test_tokens_that_came_with_a_session_have_no_known_cost() -> None:
    given_usage = RathLLMTokenUsage(10, 5, 15)
    session = Session(ChunkTable(), cumulative_usage=given_usage)
    assert session.fork().cumulative_cost == CostSum(Decimal(0), 0, given_tokens=15)


def test_a_selection_costs_the_session_that_it_served() -> None:
    user = Session.from_user_message("go")
    client = priced_client([answer("0", tokens(1_000_000, 0))])
    select_session(user, AGENT, "a", agent_provider=client.provider)
    assert user.cumulative_cost == CostSum(Decimal("0.25"), 1)


def test_a_sub_agent_costs_the_run_that_called_it() -> None:
    def ask(*_: object) -> str | None:
        client = priced_client([answer("done", tokens(1_000_000, 0))])
        return run([], agent_provider=client.provider).text()

    outer = priced_client(
        [answer(tool_call("ask"), tokens(1_000_000, 0)), answer("done", tokens(1_000_000, 0))]
    )
    out = run([], FunctionTool("ask", ask), agent_provider=outer.provider)
    assert out.cumulative_cost == CostSum(Decimal("0.75"), 3)


# ---- each call once, whatever is done with sessions


@dataclass(slots=True)
class Ledger:
    """What a session must have cost, kept beside it by hand."""

    calls: dict[int, tuple[int, str]] = field(default_factory=dict[int, tuple[int, str]])
    """By its own number: tokens of the prompt of each call, and which model answered."""

    def cost(self) -> CostSum:
        priced = [count for count, model in self.calls.values() if model == "gpt-5-mini"]
        others = Counter(model for _, model in self.calls.values() if model != "gpt-5-mini")
        dollars = Decimal(sum(priced)) / 4 / 1_000_000
        return CostSum(dollars, len(priced), unpriced=tuple(sorted(others.items())))

    def usage(self) -> int:
        return sum(count for count, _ in self.calls.values())


operations = st.sampled_from(["run", "run", "fork", "detach", "merge", "compress", "select"])
answers = st.tuples(
    st.integers(1, 10**6), st.sampled_from(["gpt-5-mini", "mystery-a", "mystery-b"])
)


@given(data=st.data())
def test_usage_and_cost_are_the_sums_over_the_calls_that_can_be_reached_each_once(
    data: st.DataObject,
) -> None:
    pool = [(Session.from_user_message("go"), Ledger())]
    n_calls = 0

    def client(ledger: Ledger) -> Provider:
        """A model that answers once; its call goes into the ledger."""
        nonlocal n_calls
        n_calls += 1
        prompt, model = data.draw(answers)
        ledger.calls[n_calls] = (prompt, model)
        return priced_client([answer("0", tokens(prompt, 0), model=model)]).provider

    for _ in range(data.draw(st.integers(1, 8))):
        session, ledger = data.draw(st.sampled_from(pool))
        other, theirs = data.draw(st.sampled_from(pool))
        operation = data.draw(operations)
        own = Ledger(dict(ledger.calls))
        if operation == "run":
            made = run([], user=session, agent_provider=client(own))
        elif operation == "compress":
            made = run_session_compress(session, AGENT, agent_provider=client(own))
        elif operation == "merge":
            made = session.merge(other)
            own.calls |= theirs.calls
        elif operation == "select":
            # Costs the session itself, and what is derived from it later.
            select_session(session, AGENT, "a", agent_provider=client(ledger))
            made, own = session.fork(), Ledger(dict(ledger.calls))
        else:
            made = session.fork() if operation == "fork" else session.detach()
        pool.append((made, own))
    for session, ledger in pool:
        used = session.cumulative_usage
        assert session.cumulative_cost == ledger.cost()
        assert (0 if used is None else used.total_tokens) == ledger.usage()


# ---- a chain of agents


def test_a_chain_of_agents_a_fallback_and_a_compression_cost_what_their_calls_cost() -> None:
    other = ScriptedClient(
        [answer("two", tokens(2000, 200, cached_tokens=500), model="claude-haiku-4-5")],
        provider=Provider(base_url=ANTHROPIC, model="claude-haiku-4-5"),
    )
    down = ProviderServerError("down", status=500)
    clients = [
        priced_client([answer("one", tokens(1000, 100))]),
        priced_client([down], fallbacks=[other.provider]),
        priced_client([answer("short", tokens(3000, 300))]),
        priced_client([answer("three", tokens(4000, 400), model="gpt-4o-mini")]),
    ]
    first, second, _, third = (flow.Agent("Answer.", c.provider) for c in clients)
    second_out = second(first(Session.from_user_message("go")))
    short = run_session_compress(second_out, AGENT, agent_provider=clients[2].provider)
    out = third(short)

    calls = model_calls(out)
    assert [call.evidence.served_model for call in calls] == [
        "gpt-5-mini", None, "claude-haiku-4-5", "gpt-5-mini", "gpt-4o-mini",
    ]  # fmt: skip
    by_hand = [
        1000 * Decimal("0.25") + 100 * 2,
        1500 * Decimal("1") + 500 * Decimal("0.1") + 200 * 5,
        3000 * Decimal("0.25") + 300 * 2,
        4000 * Decimal("0.15") + 400 * Decimal("0.6"),
    ]
    cost = out.cumulative_cost
    assert cost.usd == sum(by_hand, Decimal(0)) / 1_000_000
    assert cost.usd == sum((c.evidence.cost.usd for c in calls if c.evidence.cost), Decimal(0))
    assert (cost.n_priced, cost.unpriced) == (4, ())
    # Of the call that failed nobody knows what it cost.
    assert cost.uncounted == (("gpt-5-mini", 1),)
    assert out.cumulative_usage is not None
    assert out.cumulative_usage.total_tokens == 1100 + 2200 + 3300 + 4400


def test_a_chain_over_http_uses_what_its_endpoints_counted() -> None:
    with ChatServer() as server, ChatServer() as other:
        server.queue(
            completion("one", usage=usage(1000, 100)),
            status_error(500),
            completion("short", usage=usage(3000, 300)),
            completion("three", usage=usage(4000, 400)),
        )
        other.queue(completion("two", usage=usage(2000, 200), model="other-model"))
        provider = Provider(
            model="m", base_url=server.base_url, api_key="k", retry_max_attempts=1,
            fallbacks=[Provider(model="o", base_url=other.base_url, api_key="k")],
        )  # fmt: skip
        agent = flow.Agent("Answer.", provider, system_tools=False)
        second = agent(agent(Session.from_user_message("go")))
        out = agent(run_session_compress(second, AGENT, agent_provider=provider))
        assert out.text() == "three"
    calls = model_calls(out)
    assert [call.status for call in calls] == ["done", "failed", "done", "done", "done"]
    assert calls[2].evidence.fallback_from is not None
    counted = [call.evidence.usage.total_tokens for call in calls if call.evidence.usage]
    assert counted == [1100, 2200, 3300, 4400]
    assert out.cumulative_usage is not None
    assert out.cumulative_usage.total_tokens == sum(counted)
    # At a server of one's own nothing has a known price; what was refused cost nothing.
    assert out.cumulative_cost == CostSum(
        Decimal(0), 0, unpriced=(("other-model", 1), ("scripted-model", 3))
    )
    # The same calls at an endpoint of the vendor have one.
    moved = [
        structs.replace(
            call, evidence=structs.replace(call.evidence, endpoint=ANTHROPIC, served_model=model)
        )
        for call, model in zip(calls, ["claude-haiku-4-5"] * 5, strict=True)
    ]
    assert sum_costs(moved).usd == Decimal(10_000 * 1 + 1_000 * 5) / 1_000_000
