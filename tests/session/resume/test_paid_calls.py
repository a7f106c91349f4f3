"""Every model call that was paid for is counted once, however often its operation is begun."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rath import autosave
from rath.errors import BudgetExceededError, ResumeMismatch
from rath.flow import Agent, Compressor
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMAssistantMessage
from rath.llm.provider import Provider
from rath.session import Session
from rath.session.log.verify import verify
from rath.session.outcome import BudgetExceeded, Cancelled
from rath.session.record import ModelCall, Operation, Summary
from rath.testing import ScriptedClient, Turn, tool_call
from tests.flow.test_workflow_resume import GONE, Program, go
from tests.session.resume.test_programs import parent
from tests.support.journal_store import JournalStore
from tests.support.waiting import PATIENCE

USELESS = tool_call("f")
"""An answer that is paid for, and no summary."""


def summed_up(program: Program, session: Session) -> Session:
    return program.second(program.short(program.first(session)))


def paid(session: Session) -> list[ModelCall]:
    return [entry for entry in session.record if isinstance(entry, ModelCall)]


def purposes(session: Session) -> list[str]:
    return [call.purpose for call in paid(session)]


def total(session: Session) -> int:
    """The tokens of all calls, each of another id."""
    calls = {call.id: call for call in paid(session)}.values()
    assert len(calls) == len(paid(session))
    return sum(call.evidence.usage.total_tokens for call in calls if call.evidence.usage)


def by_role(request: RathLLMChatRequest) -> str:
    """The answer of whoever is asked."""
    return {"first": "one", "second": "two"}.get(str(request.messages[0].content), "in short")


def failed_summary(*more: Any, provider: Provider | None = None) -> Session:
    """A program whose compression failed after it was paid for."""
    out = Program(ScriptedClient(["one", USELESS, *more], provider=provider), summed_up)(go())
    with pytest.raises((RuntimeError, BudgetExceededError)):
        out.synchronize()
    return out


def test_a_compression_that_failed_counts_the_call_that_was_paid_for() -> None:
    out = failed_summary()
    again = Program(ScriptedClient(["in short", "two"]), summed_up).resume(out).synchronize()
    assert purposes(again) == ["turn", "compress", "compress", "turn"]
    usage = again.cumulative_usage
    assert usage is not None
    assert usage.total_tokens == total(again)


def test_a_compression_that_goes_on_is_one_operation() -> None:
    again = Program(ScriptedClient(["in short", "two"]), summed_up).resume(failed_summary())
    made = [one for one in again.record if isinstance(one, Operation) and one.kind == "compress"]
    assert len(made) == 1
    calls = [call for call in paid(again) if call.purpose == "compress"]
    assert {call.operation for call in calls} == {made[0].operation}


def test_a_call_whose_answer_is_no_summary_names_no_row() -> None:
    again = Program(ScriptedClient(["in short", "two"]), summed_up).resume(failed_summary())
    first, second = (call for call in paid(again) if call.purpose == "compress")
    (summary,) = (entry for entry in again.record if isinstance(entry, Summary))
    assert (first.rows, second.rows) == ((), summary.rows)


def test_it_is_counted_however_often_the_compression_fails() -> None:
    out = failed_summary()
    for _ in range(3):
        out = Program(ScriptedClient([USELESS]), summed_up).resume(out)
        with pytest.raises(RuntimeError, match="it called tools"):
            out.synchronize()
    again = Program(ScriptedClient(["in short", "two"]), summed_up).resume(out).synchronize()
    assert purposes(again).count("compress") == 5
    total(again)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> JournalStore:
    made = JournalStore()
    monkeypatch.setenv("OPENRATH_STORE", made.url)
    return made


def sessions_in(store: JournalStore) -> list[Session]:
    """Load what has at least its first line."""
    logs = [store.read(each) for each in store.stamps()]
    begun = [log.session for log in logs if log is not None and b"\n" in log.data]
    return [Session.load(each, store=store) for each in begun]


def loaded_first(store: JournalStore) -> Session:
    """A session of the stored program that says where it was made."""
    found = sessions_in(store)
    return next(one for one in found if any(isinstance(e, Operation) for e in one.record))


def test_after_the_process_has_gone_it_is_counted_too(store: JournalStore) -> None:
    with autosave():
        failed_summary()
        gone = loaded_first(store)
        again = Program(ScriptedClient(["in short", "two"]), summed_up).resume(gone, store=store)
        assert purposes(again) == ["turn", "compress", "compress", "turn"]
    loaded = Session.load(again.id, store=store)
    assert [call.id for call in paid(loaded)] == [call.id for call in paid(again)]
    assert loaded.cumulative_usage == again.cumulative_usage
    assert all(verify(store, each).is_sound for each in store.stamps())


def test_no_write_of_the_second_try_loses_what_the_first_one_paid(store: JournalStore) -> None:
    with autosave():
        failed_summary()
        n_failed = len(store.events)
        gone = loaded_first(store)
        Program(ScriptedClient(["in short", "two"]), summed_up).resume(gone).synchronize()
    for n_writes in range(n_failed, len(store.events) + 1):
        for torn in (False, True):
            left = store.after(n_writes, torn=torn)
            known = {call.id for one in sessions_in(left) for call in paid(one)}
            client = ScriptedClient([by_role] * 2)
            again = Program(client, summed_up).resume(loaded_first(left), store=left)
            assert again.text() == "two"
            assert purposes(again) == ["turn", "compress", "compress", "turn"], n_writes
            assert known <= {call.id for call in paid(again)}
            assert len(paid(again)) == len(known) + len(client.requests), n_writes
            assert verify(left, again.id).is_sound


def test_a_compression_that_went_on_replays(store: JournalStore) -> None:
    with autosave():
        again = Program(ScriptedClient(["in short", "two"]), summed_up).resume(failed_summary())
        assert again.text() == "two"
    loaded = Session.load(again.id, store=store)
    assert loaded.replay().cumulative_usage == loaded.cumulative_usage


def test_a_compression_whose_instructions_changed_is_refused() -> None:
    out = failed_summary()
    program = Program(ScriptedClient(["in short", "two"]), summed_up)
    program.short = Compressor("another way", program.short.agent.provider)
    with pytest.raises(ResumeMismatch, match="instructions differs"):
        program.resume(out).synchronize()


def raising(*_: object) -> None:
    raise BudgetExceededError(1, 2)


def test_a_summary_that_was_paid_for_is_not_asked_for_again() -> None:
    limited = Provider(budget_total_tokens=8, on_budget_exceeded=raising)
    out = Program(ScriptedClient(["one", "a much longer summary"], provider=limited), summed_up)(
        go()
    )
    with pytest.raises(BudgetExceededError):
        out.synchronize()
    client = ScriptedClient(["two"])
    again = Program(client, summed_up).resume(out).synchronize()
    assert [row.payload["content"] for row in again.chunk_table] == ["a much longer summary", "two"]
    assert purposes(again) == ["turn", "compress", "turn"]


def test_a_compression_that_was_not_paid_for_is_served() -> None:
    limited = Provider(budget_total_tokens=1)
    client = ScriptedClient(["one"], provider=limited)
    out = Program(client, summed_up)(go()).synchronize()
    again = Program(ScriptedClient([]), summed_up).resume(out).synchronize()
    assert isinstance(again.outcome, BudgetExceeded)
    assert again.chunk_table == out.chunk_table


def cancelled_summary() -> Session:
    asked, may_end = threading.Event(), threading.Event()

    def hang(_: object) -> str:
        asked.set()
        may_end.wait(PATIENCE)
        return "too late"

    out = Program(ScriptedClient(["one", hang]), summed_up)(go())
    assert asked.wait(PATIENCE)
    short = parent(out)
    short.cancel().synchronize()
    may_end.set()
    return short


def test_a_cancelled_compression_stays_as_it_is() -> None:
    short = cancelled_summary()
    again = Program(ScriptedClient([]), summed_up).resume(short).synchronize()
    assert again.outcome == Cancelled(short.id)


def test_a_cancelled_compression_goes_on_where_that_is_wanted() -> None:
    short = cancelled_summary()
    client = ScriptedClient(["in short", "two"])
    again = Program(client, summed_up).resume(short, cancelled="go_on").synchronize()
    assert [(call.purpose, call.status) for call in paid(again)][1:3] == [
        ("compress", "cancelled"),
        ("compress", "done"),
    ]


def test_a_cancelled_compression_that_is_stored_has_the_rows_of_its_input(
    store: JournalStore,
) -> None:
    with autosave():
        short = cancelled_summary()
    loaded = Session.load(short.id, store=store)
    assert (loaded.chunk_table, loaded.outcome) == (short.chunk_table, short.outcome)
    left = store.read(short.id)
    assert left is not None
    assert b'"event":"row"' not in left.data


# ---- selections


def chooses(program: Program, session: Session) -> Session:
    first = program.first(session)
    return program.choose.forward(first, program.first, program.second)(first)


USELESS_CHOICES = [tool_call("f"), RathLLMAssistantMessage(content=" ")]


@pytest.mark.parametrize("useless", USELESS_CHOICES, ids=["tools", "nothing"])
def test_a_selection_that_failed_is_made_anew_and_counted(
    useless: Turn, store: JournalStore
) -> None:
    with autosave():
        with pytest.raises(RuntimeError, match="where one number was asked for"):
            Program(ScriptedClient(["one", useless]), chooses)(go())
        program = Program(ScriptedClient(["1", "two"]), chooses)
        again = program.resume(loaded_first(store), store=store).synchronize()
        assert purposes(again) == ["turn", "select", "select", "turn"]
    total(again)


def test_a_selection_that_was_made_is_served(store: JournalStore) -> None:
    with autosave():
        out = Program(ScriptedClient(["one", "1", "two"]), chooses)(go()).synchronize()
        again = Program(ScriptedClient([]), chooses).resume(Session.load(out.id), store=store)
        assert purposes(again) == ["turn", "select", "turn"]


def test_no_write_of_a_selection_leaves_a_part_of_it(store: JournalStore) -> None:
    with autosave():
        Program(ScriptedClient(["one", "1", "two"]), chooses)(go()).synchronize()
    for n_writes in range(len(store.events) + 1):
        for one in sessions_in(store.after(n_writes)):
            kinds = [e.kind for e in one.record if isinstance(e, Operation)]
            assert kinds.count("select") == purposes(one).count("select"), n_writes


# ---- typed answers


def test_a_repair_that_was_cut_off_is_counted_with_all_before_it() -> None:
    def asked(*turns: Turn) -> Agent:
        provider = ScriptedClient(turns).provider
        return Agent("first", provider, system_tools=False, output=int, output_retries=3)

    out = asked("no number", "nor this", GONE)(go())
    with pytest.raises(RuntimeError):
        out.synchronize()
    again = asked(tool_call("final_answer", {"value": 5})).resume(out).synchronize()
    assert purposes(again) == ["turn", "repair", "repair", "repair"]
    assert [call.status for call in paid(again)] == ["done", "done", "failed", "done"]
    assert again.output == 5
