"""A run at its edges, and its laws: requests written again, secrets, order, costs, failures."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import pickle
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.errors import AuthenticationError, ProviderTimeout
from rath.llm import Provider, RathLLMAssistantMessage, chat_client_for
from rath.session import (
    ChunkTable,
    Session,
    run_session_compress,
    run_session_loop,
    select_session,
    user_text_chunk,
)
from rath.session.body import CostSum
from rath.session.outcome import Completed
from rath.session.record import ModelCall, RecalledNote
from rath.testing import ScriptedClient, tool_call
from tests.support import chat_replies as replies
from tests.support.api import call_site
from tests.support.chat_server import ChatServer
from tests.support.evidence import answer, priced_client, tokens
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.rendering import rerender_call
from tests.support.sessions import AGENT, FunctionTool, echo, entries_of, run

# ---- limits


def test_a_budget_callback_that_fails_is_logged_and_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise SystemExit(3)

    provider = Provider(budget_total_tokens=1, on_budget_exceeded=fail)
    client = ScriptedClient([tool_call("missing"), "done"], provider=provider)
    assert run([], agent_provider=client.provider).text() == "done"
    assert caplog.text.count("on_budget_exceeded failed; the run goes on") == 1


def test_a_tool_that_times_out_by_itself_does_not_end_a_run_with_a_deadline() -> None:
    def fail(*_: object) -> None:
        raise TimeoutError("the host does not answer")

    out = run([tool_call("f"), "done"], FunctionTool("f", fail), timeout=60)
    assert out.text() == "done"
    assert "TimeoutError: the host does not answer" in out.chunk_table[2].payload["content"]


def test_a_model_that_times_out_fails_the_run_and_is_not_taken_for_its_deadline() -> None:
    failed = run([ProviderTimeout("no answer within 300 s")], timeout=60)
    with pytest.raises(ProviderTimeout, match="no answer within 300 s"):
        failed.text()


# ---- turns that their vendor pauses


def vendor(*turns: Says) -> OfflineVendor:
    reply = iter(turns)
    return OfflineVendor(lambda _: next(reply))


SEARCH: tuple[dict[str, Any]] = (
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
)


PAUSED = Says("let me see", blocks=SEARCH, finish="pause_turn")


@pytest.mark.parametrize("text", ["let me see", None])
def test_a_paused_turn_is_a_row_is_sent_back_as_it_is_and_goes_on(text: str | None) -> None:
    asked = vendor(replace(PAUSED, text=text), Says("done"))
    out = run([], agent_provider=asked.provider)
    assert (out.text(), out.outcome) == ("done", Completed())
    assert [row.payload["content"] for row in out.chunk_table] == ["go", text, "done"]
    reply = {} if text is None else {"content": text}
    assert asked.requests[1][-1] == {"role": "assistant", **reply, "blocks": list(SEARCH)}


def test_recalled_notes_do_not_come_between_a_pause_and_the_rest() -> None:
    asked = vendor(PAUSED, Says("done"))
    user = Session(ChunkTable((user_text_chunk("one"), user_text_chunk("two"))))

    def recall(_: Session) -> list[RecalledNote]:
        return [RecalledNote("mem://1", "a note")]

    out = run([], user=user, agent_provider=asked.provider, recall=recall, max_tool_rounds=1)
    later = run([], user=out, agent_provider=asked.provider, recall=recall)
    assert later.text() == "done"
    assert asked.requests[1][-1]["blocks"] == list(SEARCH)


# ---- turns that the model refuses


def test_a_refusal_without_text_has_no_text_of_an_earlier_answer() -> None:
    answered = run([], agent_provider=vendor(Says("an answer")).provider)
    refused = run([], user=answered, agent_provider=vendor(Says(finish="refusal")).provider)
    assert refused.outcome == Completed()
    assert refused.text() == ""
    silent = run([], user=answered, agent_provider=vendor(Says()).provider)
    assert silent.text() == "an answer"


# ---- where it began


def test_a_run_names_the_line_that_started_it() -> None:
    assert call_site().endswith("in test_a_run_names_the_line_that_started_it")
    assert "test_run.py:" in call_site()


def calls_with_ids(ids: list[str]) -> RathLLMAssistantMessage:
    return tool_call("f", {}, *[tool_call("f", {"n": 1}, id=one) for one in ids], id="same")


ECHO = FunctionTool("f", echo, parallel_safe=True)


some_turns = st.one_of(
    st.builds(RathLLMAssistantMessage, content=st.text(min_size=1, max_size=10)),
    st.builds(calls_with_ids, st.lists(st.sampled_from(["", "same", "other"]), max_size=2)),
    st.just(tool_call("f", "{broken", content="hm")),
)


scripts = st.lists(some_turns, max_size=4).map(lambda made: [*made, "the end"])


# ---- 5: a stored call renders to its digest


def renders_again(session: Session, call: ModelCall, client: ScriptedClient) -> bool:
    sent = rerender_call(session, call, client=client, provider=client.provider)
    assert call.seen is not None
    return hashlib.sha256(sent).hexdigest() == call.seen.request_digest


@given(script=scripts, chain=st.integers(1, 3), with_notes=st.booleans())
def test_rendering_a_stored_call_again_gives_its_digest(
    script: list[Any], chain: int, with_notes: bool
) -> None:
    session = Session.from_user_message("go")
    for _ in range(chain):
        client = ScriptedClient(script)
        notes = [RecalledNote("memory://user/a", "a note")] if with_notes else []
        session = run_session_loop(
            session.fork(),
            AGENT,
            agent_provider=client.provider,
            tools=[ECHO],
            system_tools=False,
            recall=lambda _: notes,  # noqa: B023  # the run is over before the next one begins
        ).synchronize()
        for call in entries_of(session, ModelCall):
            if call.evidence.provider_kind == client.provider.provider_kind:
                assert renders_again(session, call, client)


# ---- 9: secrets


CANARY = "sk-canary-0123456789abcdef"


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.DEBUG)
    yield stream
    logging.getLogger().removeHandler(handler)
    logging.getLogger().setLevel(logging.WARNING)


def test_no_secret_reaches_rows_record_files_logs_repr_or_errors(
    tmp_path: Path, logged: io.StringIO
) -> None:
    with ChatServer() as server:
        server.queue(
            replies.completion(tool_calls=(replies.tool_call("f"),)),
            replies.completion("done"),
            replies.status_error(401, f"Incorrect API key provided: {CANARY}."),
        )
        provider = Provider(model="m", api_key=CANARY, base_url=server.base_url)
        path = tmp_path / "run.jsonl"
        out = run([], ECHO, agent_provider=provider, persist_path=path).synchronize()
        failed = run([], user=out, agent_provider=provider)
        with pytest.raises(AuthenticationError) as caught:
            failed.text()
        assert CANARY in (server.requests[0].headers["authorization"])
    display = [
        repr(provider),
        str(provider),
        repr(out),
        repr(list(out.record)),
        repr(list(failed.partial_record)),
        repr(chat_client_for(provider)),
        "".join(traceback.format_exception(caught.value)),
        repr(vars(caught.value)),
        path.read_text(),
        logged.getvalue(),
        repr(pickle.dumps(out.chunk_table)),
    ]
    assert [text for text in display if CANARY in text] == []
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert files
    assert [content for content in files if CANARY.encode() in content] == []


# ---- 11: order


@given(flags=st.lists(st.tuples(st.booleans(), st.sampled_from("ab")), min_size=1, max_size=6))
def test_rows_stand_in_call_order_and_unsafe_tools_run_alone(
    flags: list[tuple[bool, str]],
) -> None:
    running: list[int] = []
    overlaps: list[tuple[int, ...]] = []

    def tool(index: int, is_safe: bool) -> FunctionTool:
        def call(*_: object) -> int:
            running.append(index)
            overlaps.append(tuple(running))
            running.remove(index)
            return index

        return FunctionTool(f"t{index}", call, parallel_safe=is_safe)

    tools = [tool(index, is_safe) for index, (is_safe, _) in enumerate(flags)]
    calls = [tool_call(f"t{index}", {"key": key}) for index, (_, key) in enumerate(flags)]
    first, *more = calls
    assert first.tool_calls is not None
    asked = first.tool_calls[0].function
    out = run([tool_call(asked.name, asked.arguments, *more), "done"], *tools)
    results = [json.loads(row.payload["content"]) for row in list(out.chunk_table)[2:-1]]
    assert results == list(range(len(flags)))
    for together in overlaps:
        assert len(together) == 1 or all(flags[index][0] for index in together)


# ---- what is told


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
