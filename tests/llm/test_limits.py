"""Calls pass the limits of their provider: whole, streamed, retried, and through other clients."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any, TypeVar

import pytest

from rath import flow
from rath._async.retry import DEFAULT_CAP_SECONDS
from rath._async.runtime import runtime
from rath.llm import Provider, chat_client_for, open_draft, register_chat_client
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMChatResponse, RathLLMStreamDelta
from rath.llm.evidence import CallEvidence
from rath.llm.stream import split
from rath.session import Session
from rath.session.body import CostSum
from rath.session.outcome import Cancelled
from rath.session.record import ModelCall
from rath.testing import ScriptedClient
from tests.support.api import MAX_QUEUED
from tests.support.asking import ask, openai_client
from tests.support.chat_replies import Gate, Reply, completion, held, text_stream
from tests.support.chat_server import CapturedRequest, ChatServer
from tests.support.timed_endpoint import Endpoint, TimedClient, at_once, call, most_in_a_minute
from tests.support.virtual_time import run_virtually

T = TypeVar("T")

# ---- through our own clients, in virtual time


def test_a_thousand_calls_at_once_hold_both_limits_and_finish() -> None:
    at = Endpoint(takes=2)
    client = TimedClient(at, max_in_flight=50, max_requests_per_minute=600)
    evidence = run_virtually(at_once(*(call(client) for _ in range(1000))))
    assert len(evidence) == len(at.begun) == 1000
    assert (at.most_open, most_in_a_minute(at.begun)) == (50, 600)


def test_cancelling_the_calls_that_wait_ends_them_at_once() -> None:
    at = Endpoint(takes=1000)
    client = TimedClient(at, max_in_flight=50, max_requests_per_minute=600)

    async def main() -> float:
        tasks = [asyncio.ensure_future(call(client)) for _ in range(1000)]
        await asyncio.sleep(5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return asyncio.get_running_loop().time()

    assert run_virtually(main()) == 5
    assert (len(at.begun), at.n_open) == (50, 0)


def test_each_try_takes_a_place_and_the_wait_between_them_holds_none() -> None:
    at = Endpoint(n_failing=1)
    client = TimedClient(at, max_in_flight=1)
    failed_once, other = run_virtually(at_once(call(client), call(client)))
    # The first try fails at once, and the other call has its place while the first one waits.
    assert at.begun == [0, 0, DEFAULT_CAP_SECONDS]
    assert [attempt.error is None for attempt in failed_once.attempts] == [False, True]
    assert other.duration_ms < failed_once.duration_ms


def test_tries_count_for_the_minute() -> None:
    at = Endpoint(n_failing=2)
    client = TimedClient(at, max_requests_per_minute=1)
    run_virtually(at_once(call(client), call(client)))
    assert most_in_a_minute(at.begun) == 1
    assert len(at.begun) == 4


def test_a_stream_holds_its_place_until_its_end() -> None:
    at = Endpoint()
    client = TimedClient(at, max_in_flight=1)
    run_virtually(at_once(*(call(client, streamed=True) for _ in range(3))))
    assert at.begun == [0, 10, 20]


def test_the_wait_for_a_limit_stands_in_the_evidence() -> None:
    client = TimedClient(Endpoint(), max_in_flight=1)
    first, second = run_virtually(at_once(call(client), call(client)))
    assert (first.queued_ms, second.queued_ms) == (0, 10_000)


def test_the_wait_of_a_cancelled_call_stands_in_its_evidence() -> None:
    client = TimedClient(Endpoint(), max_in_flight=1)

    async def main() -> CallEvidence | None:
        open_call = asyncio.ensure_future(call(client))
        draft = client.open_draft(ask(), streaming=False, provider_origin="call")
        waiting = asyncio.ensure_future(draft.asend())
        await asyncio.sleep(4)
        waiting.cancel()
        await asyncio.gather(waiting, open_call, return_exceptions=True)
        return draft.last_evidence()

    evidence = run_virtually(main())
    assert evidence is not None
    assert (evidence.queued_ms, evidence.status) == (4000, "cancelled")


def test_all_clients_of_an_endpoint_count_together_under_their_own_limits() -> None:
    at = Endpoint()
    calls = [
        call(TimedClient(at)),
        call(TimedClient(at, path="/v2", max_in_flight=2)),
        call(TimedClient(at, max_in_flight=2)),
        call(TimedClient(at, max_in_flight=5)),
    ]
    waited = [evidence.queued_ms for evidence in run_virtually(at_once(*calls))]
    assert waited == [0, 0, 10_000, 10_000]


def test_another_port_is_another_endpoint() -> None:
    at = Endpoint()
    other = Endpoint(root=at.root + ":8443")
    calls = [call(TimedClient(at, max_in_flight=1)), call(TimedClient(other, max_in_flight=1))]
    assert [evidence.queued_ms for evidence in run_virtually(at_once(*calls))] == [0, 0]


# ---- through the clients of others


class Crowd:
    """A client that lets nobody out before as many are inside as are expected."""

    def __init__(self, n_expected: int, **limits: Any) -> None:
        self.provider = Provider(model="m", provider_kind="crowd", **limits)
        self._n_expected = n_expected
        self._are_inside = asyncio.Event()
        self.n_inside = 0
        self.most_inside = 0

    async def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        self.n_inside += 1
        self.most_inside = max(self.most_inside, self.n_inside)
        if self.n_inside == self._n_expected:
            self._are_inside.set()
        await self._are_inside.wait()
        # A moment in which others would come if nothing kept them out.
        for _ in range(20):
            await asyncio.sleep(0)
        self.n_inside -= 1
        return ScriptedClient(["hello"]).complete(req)


def ask_together(client: Any, n_calls: int) -> list[CallEvidence]:
    """Ask that often at once, and wait for all."""

    async def main() -> list[CallEvidence]:
        drafts = [open_draft(client, ask()) for _ in range(n_calls)]
        return [exchange.evidence for exchange in await at_once(*(d.asend() for d in drafts))]

    return runtime().run(main, label="test calls")


def test_the_clients_of_others_keep_the_limits_too() -> None:
    client = Crowd(3, max_in_flight=3)
    evidence = ask_together(client, 12)
    assert client.most_inside == 3
    assert sum(one.queued_ms > 0 for one in evidence) == 9


def test_a_run_through_the_client_of_another_keeps_the_limits_of_its_own_provider() -> None:
    crowd = Crowd(2)
    register_chat_client("crowd", lambda _: crowd)  # type: ignore[arg-type,return-value]  # async
    agent = flow.Agent("Answer.", replace(crowd.provider, max_in_flight=2), system_tools=False)
    outs = [agent(Session.from_user_message(str(number))) for number in range(8)]
    assert {out.text() for out in outs} == {"hello"}
    assert crowd.most_inside == 2


def test_a_client_that_calls_through_one_of_ours_does_not_wait_for_itself() -> None:
    with ChatServer(lambda _: completion("hello")) as server:
        ours = openai_client(server, provider=Provider(max_in_flight=1))

        class Wrapper:
            provider = ours.provider

            def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
                return ours.complete(req)

        ask_together(Wrapper(), 3)
        assert (len(server.requests), server.max_in_flight) == (3, 1)


def test_providers_with_different_limits_get_different_clients() -> None:
    provider = Provider(model="m", api_key="k", max_in_flight=1)
    assert chat_client_for(provider) is chat_client_for(replace(provider, temperature=1))
    assert chat_client_for(provider) is not chat_client_for(replace(provider, max_in_flight=2))
    other = replace(provider, max_requests_per_minute=1)
    assert chat_client_for(provider) is not chat_client_for(other)


# ---- through an agent, over HTTP


def test_agents_side_by_side_hold_the_limit_over_http() -> None:
    gate = Gate()
    with ChatServer(lambda _: held(completion("hello"), gate)) as server:
        provider = Provider(model="m", base_url=server.base_url, api_key="k", max_in_flight=3)
        agent = flow.Agent("Answer.", provider, system_tools=False)
        outs = [agent(Session.from_user_message(str(number))) for number in range(20)]
        server.wait_for_requests(3)
        # The first three to arrive may be any.
        sent = {request.json()["messages"][-1]["content"] for request in server.requests}
        waiting = next(number for number in range(20) if str(number) not in sent)
        cancelled = outs.pop(waiting).cancel()
        assert isinstance(cancelled.outcome, Cancelled)
        gate.release()
        assert {out.text() for out in outs} == {"hello"}
        assert (len(server.requests), server.max_in_flight) == (19, 3)
    waited = [e.evidence.queued_ms for o in outs for e in o.record if isinstance(e, ModelCall)]
    assert sum(ms > 0 for ms in waited) == 16


def test_a_call_that_never_passed_a_limit_was_not_sent() -> None:
    client = TimedClient(Endpoint(), max_in_flight=1)

    async def main() -> list[CallEvidence | None]:
        drafts = [
            client.open_draft(ask(), streaming=False, provider_origin="call") for _ in range(2)
        ]
        sending = [asyncio.ensure_future(draft.asend()) for draft in drafts]
        await asyncio.sleep(4)
        for one in sending:
            one.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        return [draft.last_evidence() for draft in drafts]

    assert [one and one.was_sent for one in run_virtually(main())] == [True, False]


def test_a_run_that_was_cancelled_before_its_call_was_sent_cost_nothing() -> None:
    gate = Gate()
    with ChatServer(lambda _: held(completion("hello"), gate)) as server:
        provider = Provider(model="m", base_url=server.base_url, api_key="k", max_in_flight=1)
        agent = flow.Agent("Answer.", provider, system_tools=False)
        first = agent(Session.from_user_message("1"))
        server.wait_for_requests(1)
        second = agent(Session.from_user_message("2"))
        assert second.cancel().cumulative_cost == CostSum(Decimal(0), 0)
        assert first.cancel().cumulative_cost.uncounted == (("m", 1),)
        gate.release()


# ---- calls that wait for calls


N_DELTAS = 2 * MAX_QUEUED
"""More than may wait for a callback."""


@pytest.mark.parametrize("n_streams", [1, 3])
def test_callbacks_may_ask_the_endpoint_of_their_own_stream(n_streams: int) -> None:
    def reply(request: CapturedRequest) -> Reply:
        is_outer = request.json()["messages"][-1]["content"] == "outer"
        return text_stream(*["x "] * N_DELTAS) if is_outer else completion("inner")

    with ChatServer(reply) as server:
        provider = Provider(model="m", base_url=server.base_url, api_key="k")
        limited = replace(provider, max_in_flight=n_streams)
        agent = flow.Agent("Answer.", limited, system_tools=False)
        said: list[str | None] = []
        all_stream = threading.Barrier(n_streams)

        def on_event() -> Callable[[Any], None]:
            seen: list[Any] = []

            def first_asks(delta: Any) -> None:
                seen.append(delta)
                if len(seen) == 1:
                    all_stream.wait(50)
                    said.append(agent(Session.from_user_message("inner")).text())

            return first_asks

        outs = [
            flow.Agent("Answer.", limited, system_tools=False, on_event=on_event())(
                Session.from_user_message("outer")
            )
            for _ in range(n_streams)
        ]
        assert {len(out.text() or "") for out in outs} == {2 * N_DELTAS}
        assert said == ["inner"] * n_streams


def test_a_callback_may_wait_for_a_run_that_was_started_elsewhere() -> None:
    with ChatServer() as server:
        server.queue(text_stream(*["x "] * N_DELTAS), completion("other"))
        provider = Provider(model="m", base_url=server.base_url, api_key="k", max_in_flight=1)
        agent = flow.Agent("Answer.", provider, system_tools=False)
        others: queue.SimpleQueue[Session] = queue.SimpleQueue()
        said: list[str | None] = []

        def on_event(_: Any) -> None:
            if not said:
                said.append(others.get().text())

        streamed = flow.Agent("Answer.", provider, system_tools=False, on_event=on_event)(
            Session.from_user_message("go")
        )
        server.wait_for_requests(1)
        others.put(agent(Session.from_user_message("go")))
        assert len(streamed.text() or "") == 2 * N_DELTAS
        assert said == ["other"]


def test_clients_of_others_that_run_agents_through_each_other_do_not_wait_for_ever() -> None:
    both = threading.Barrier(2)

    class Through:
        """Has the other one answer, when both are at work."""

        def __init__(self, kind: str, other: str) -> None:
            self.provider = Provider(model="m", provider_kind=kind, max_in_flight=1)
            self._other = replace(self.provider, provider_kind=other)

        def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
            if req.messages[-1].content == "again":
                return ScriptedClient(["hello"]).complete(req)
            both.wait(50)
            agent = flow.Agent("Answer.", self._other, system_tools=False)
            said = agent(Session.from_user_message("again")).text() or ""
            return ScriptedClient([said]).complete(req)

    one, two = Through("one", "two"), Through("two", "one")
    register_chat_client("one", lambda _: one)
    register_chat_client("two", lambda _: two)
    outs = [
        flow.Agent("Answer.", client.provider, system_tools=False)(Session.from_user_message("go"))
        for client in (one, two)
    ]
    assert [out.text() for out in outs] == ["hello", "hello"]


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_an_abandoned_thread_of_a_client_keeps_its_place_until_it_ends(is_streamed: bool) -> None:
    inside, release = threading.Semaphore(0), threading.Event()

    class Slow:
        provider = Provider(model="m", provider_kind=f"slow {is_streamed}", max_in_flight=1)

        def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
            inside.release()
            release.wait(50)
            return ScriptedClient(["hello"]).complete(req)

        def complete_stream(self, req: RathLLMChatRequest) -> Iterator[RathLLMStreamDelta]:
            inside.release()
            release.wait(50)
            yield from split(ScriptedClient(["hello"]).complete(req))

    register_chat_client(f"slow {is_streamed}", lambda _: Slow())
    listening: Callable[[Any], None] | None = (lambda _: None) if is_streamed else None
    agent = flow.Agent("Answer.", Slow.provider, system_tools=False, on_event=listening)
    first = agent(Session.from_user_message("1"))
    assert inside.acquire(timeout=50)
    first.cancel().synchronize()
    second = agent(Session.from_user_message("2"))
    assert not inside.acquire(timeout=0.05)
    release.set()
    assert second.text() == "hello"
