"""A run at its edges: limits, callbacks that fail, runs inside it, and where it began."""

from __future__ import annotations

import _thread
import asyncio
import operator
import queue
import sys
import threading
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from rath.errors import ProviderServerError, ProviderTimeout
from rath.llm import Provider, RathLLMAssistantMessage
from rath.session import ChunkTable, Session, run_session_loop, user_text_chunk
from rath.session.outcome import BudgetExceeded, Completed, DeadlineExceeded, RoundLimit
from rath.session.record import ModelCall, RecalledNote
from rath.testing import ScriptedClient, tool_call
from tests.support.api import HANDOVER, call_site
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.sessions import AsyncFunctionTool, FunctionTool, run
from tests.support.waiting import PATIENCE, at_a_deadline

AGENT = Session.from_agent_prompt("You are a test.")


def model_calls(session: Session) -> list[ModelCall]:
    return [entry for entry in session.record if isinstance(entry, ModelCall)]


# ---- what the caller got wrong


@pytest.mark.parametrize("name", ["user_session", "agent_session"])
def test_what_is_no_session_is_refused_by_its_name(name: str) -> None:
    sessions: dict[str, Any] = {"user_session": AGENT, "agent_session": AGENT, name: "text"}
    with pytest.raises(TypeError, match=f"{name} must be a Session, not str"):
        run_session_loop(**sessions)


def test_what_is_no_provider_is_refused() -> None:
    with pytest.raises(TypeError, match="the provider must be a Provider, not str"):
        run([], agent_provider="gpt")


# ---- limits


def test_a_budget_that_the_last_round_crosses_is_what_ends_the_run() -> None:
    client = ScriptedClient([tool_call("f")], provider=Provider(budget_total_tokens=1))
    called: list[int] = []
    tool = FunctionTool("f", lambda *_: called.append(1))
    out = run([], tool, agent_provider=client.provider, max_tool_rounds=1)
    assert isinstance(out.outcome, BudgetExceeded)
    assert called == []


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


def test_a_run_over_its_deadline_says_so() -> None:
    go = threading.Event()
    out = run([tool_call("f"), "x"], FunctionTool("f", lambda *_: go.wait(PATIENCE)), timeout=0.05)
    assert out.outcome == DeadlineExceeded(0.05)
    go.set()


# ---- turns that their vendor pauses


def vendor(*turns: Says) -> OfflineVendor:
    said = iter(turns)
    return OfflineVendor(lambda _: next(said))


SEARCH: tuple[dict[str, Any]] = (
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
)
PAUSED = Says("let me see", blocks=SEARCH, finish="pause_turn")


def test_a_paused_turn_is_sent_back_as_it_is_and_goes_on() -> None:
    asked = vendor(PAUSED, Says("done"))
    out = run([], agent_provider=asked.provider)
    assert out.text() == "done"
    assert out.outcome == Completed()
    said = [row.payload["content"] for row in out.chunk_table]
    assert said == ["go", "let me see", "done"]
    last = asked.requests[1][-1]
    assert last == {"role": "assistant", "content": "let me see", "blocks": list(SEARCH)}


def test_a_paused_turn_without_a_word_is_a_row_and_is_sent_back_too() -> None:
    asked = vendor(replace(PAUSED, text=None), Says("done"))
    out = run([], agent_provider=asked.provider)
    assert out.text() == "done"
    assert len(out.chunk_table) == 3
    assert asked.requests[1][-1] == {"role": "assistant", "blocks": list(SEARCH)}


def test_a_pause_counts_as_a_round() -> None:
    asked = vendor(PAUSED, PAUSED)
    out = run([], agent_provider=asked.provider, max_tool_rounds=2)
    assert out.outcome == RoundLimit(2)
    assert len(asked.requests) == 2


def test_a_budget_stops_a_run_at_a_pause() -> None:
    asked = vendor(PAUSED)
    provider = replace(asked.provider, budget_total_tokens=1)
    assert isinstance(run([], agent_provider=provider).outcome, BudgetExceeded)


def test_a_paused_turn_that_calls_tools_goes_on_with_their_results() -> None:
    asked = vendor(replace(PAUSED, calls=("f",)), Says("done"))
    out = run([], FunctionTool("f", lambda *_: 1), agent_provider=asked.provider)
    assert out.text() == "done"
    assert [message["role"] for message in asked.requests[1]] == [
        "system", "user", "assistant", "tool",
    ]  # fmt: skip


def test_another_model_takes_over_a_paused_turn_with_a_handover() -> None:
    def fail_after_the_pause(messages: Any) -> Says:
        if messages[-1]["role"] == "assistant":
            raise ProviderServerError("down", status=503)
        return PAUSED

    first, second = OfflineVendor(fail_after_the_pause), vendor(Says("done"))
    provider = replace(first.provider, retry_max_attempts=1, fallbacks=[second.provider])
    assert run([], agent_provider=provider).text() == "done"
    assert second.requests[0][-2:] == [
        {"role": "assistant", "content": "let me see"},
        {"role": "user", "content": HANDOVER},
    ]


def test_the_next_run_of_the_same_model_goes_on_with_a_paused_turn() -> None:
    asked = vendor(PAUSED, Says("done"))
    out = run([], agent_provider=asked.provider, max_tool_rounds=1)
    assert run([], user=out, agent_provider=asked.provider).text() == "done"
    assert asked.requests[1][-1]["blocks"] == list(SEARCH)


def test_recalled_notes_do_not_come_between_a_pause_and_the_rest() -> None:
    asked = vendor(PAUSED, Says("done"))
    user = Session(ChunkTable((user_text_chunk("one"), user_text_chunk("two"))))

    def recall(_: Session) -> list[RecalledNote]:
        return [RecalledNote("mem://1", "a note")]

    out = run([], user=user, agent_provider=asked.provider, recall=recall, max_tool_rounds=1)
    later = run([], user=out, agent_provider=asked.provider, recall=recall)
    assert later.text() == "done"
    assert asked.requests[1][-1]["blocks"] == list(SEARCH)


def test_blocks_do_not_go_back_behind_another_agent() -> None:
    asked = vendor(Says("hm", blocks=SEARCH), Says("more"), Says("done"))
    out = run([], agent_provider=asked.provider)
    say = Session.from_user_message("go on")
    run([], user=out.merge(say), agent_provider=asked.provider).synchronize()
    assert asked.requests[1][2]["blocks"] == list(SEARCH)
    other = Session.from_agent_prompt("You are another.")
    run([], user=out.merge(say), agent=other, agent_provider=asked.provider).synchronize()
    assert all("blocks" not in message for message in asked.requests[2])


def test_a_pause_behind_which_other_notes_stand_is_a_turn_like_any_other() -> None:
    asked = vendor(PAUSED, Says("done"))
    out = run([], agent_provider=asked.provider, max_tool_rounds=1)

    def recall(_: Session) -> list[RecalledNote]:
        return [RecalledNote("m://1", "new")]

    later = run([], user=out, agent_provider=asked.provider, recall=recall)
    assert later.text() == "done"
    assert all("blocks" not in message for message in asked.requests[1])
    assert asked.requests[1][-1] == {"role": "user", "content": HANDOVER}


# ---- turns that the model refuses


def test_a_refusal_completes_the_run_and_can_be_read() -> None:
    out = run([], agent_provider=vendor(Says("I will not.", finish="refusal")).provider)
    assert out.outcome == Completed()
    assert out.text() == "I will not."
    assert model_calls(out)[0].evidence.finish_reason == "refusal"


def test_what_was_said_before_is_no_answer_where_the_model_refuses_without_a_word() -> None:
    answered = run([], agent_provider=vendor(Says("an answer")).provider)
    refused = run([], user=answered, agent_provider=vendor(Says(finish="refusal")).provider)
    assert refused.outcome == Completed()
    assert refused.text() is None
    silent = run([], user=answered, agent_provider=vendor(Says()).provider)
    assert silent.text() == "an answer"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (RathLLMAssistantMessage(content=None, refusal="no"), "no"),
        (RathLLMAssistantMessage(content="", refusal="no"), "no"),
        (RathLLMAssistantMessage(content="but", refusal="no"), "but"),
    ],
)
def test_the_words_of_a_refusal_are_the_answer_where_there_is_no_other(
    message: RathLLMAssistantMessage, text: str
) -> None:
    assert run([message]).text() == text


# ---- runs inside a run


def test_a_run_inside_a_recall_is_known_to_the_run_that_it_serves() -> None:
    def recall(session: Session) -> list[Any]:
        return [run(["a note"], user=session).chunk_table[-1]]

    out = run(["done"], recall=recall).synchronize()
    assert [call.evidence.status for call in model_calls(out)] == ["done", "done"]
    seen = model_calls(out)[1].seen
    assert seen is not None
    assert [note.text for note in seen.recalled] == ["a note"]


def test_what_happens_in_an_abandoned_tool_after_the_run_is_no_part_of_it() -> None:
    begun, ended, over = (threading.Event() for _ in range(3))
    below: list[Session] = []

    def ask_late(session: Session, _: object) -> str | None:
        begun.set()
        ended.wait(PATIENCE)
        try:
            below.append(run(["late"], user=session))
            return below[0].text()
        finally:
            over.set()

    def run_until(deadline: float) -> Session:
        tool = FunctionTool("ask", ask_late, timeout=deadline)
        return run([tool_call("ask"), "done"], tool).synchronize()

    out = at_a_deadline(run_until, lambda _: begun.is_set())
    assert out.text() == "done"
    before = list(out.record)
    ended.set()
    assert over.wait(PATIENCE)
    below[0].synchronize()
    assert list(out.record) == before


# ---- tools of every shape


def test_a_plain_tool_may_give_an_awaitable() -> None:
    async def later() -> str:
        return "later"

    out = run([tool_call("f"), "done"], FunctionTool("f", lambda *_: later()))
    assert out.chunk_table[2].payload["content"] == '"later"'


def test_a_tool_whose_result_cannot_be_read_is_that_tools_failure() -> None:
    class Bad:
        def __repr__(self) -> str:
            raise ValueError("no text")

        __str__ = __repr__

    out = run([tool_call("f"), "done"], FunctionTool("f", lambda *_: Bad()))
    assert '"error_kind": "tool_execution_exception"' in out.chunk_table[2].payload["content"]
    assert out.text() == "done"


def test_an_exception_without_a_text_is_named_by_its_class() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def fail(*_: object) -> None:
        raise Mute

    out = run([tool_call("f"), "done"], FunctionTool("f", fail))
    assert '"message": "Mute"' in out.chunk_table[2].payload["content"]
    assert out.text() == "done"


def test_an_async_tool_over_its_deadline_is_really_ended() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def hold(*_: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def run_until(deadline: float) -> Session:
        tool = AsyncFunctionTool("f", hold, timeout=deadline)
        return run([tool_call("f"), "done"], tool).synchronize()

    out = at_a_deadline(run_until, lambda _: begun.is_set())
    assert '"error_kind": "abandoned"' in out.chunk_table[2].payload["content"]
    assert ended.wait(PATIENCE)


# ---- where it began


def test_a_run_names_the_line_that_started_it() -> None:
    assert call_site().endswith("in test_a_run_names_the_line_that_started_it")
    assert "test_run.py:" in call_site()


def test_a_run_that_no_python_code_started_has_no_place() -> None:
    call: Any = operator.call
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # A bare thread in which C code calls `call_site`: there is no caller outside of rath. A
    # tracer, if there is one, follows into it.
    calls: list[Any] = [partial(sys.settrace, threading.gettrace()), call_site]
    collect: Any = deque
    called: Any = map
    asking: Any = called(answers.put, called(call, calls))
    _thread.start_new_thread(collect, (asking,))
    assert answers.get(timeout=PATIENCE) is None
    assert answers.get(timeout=PATIENCE) == "an unknown place"
