"""A session replays from its record alone to the same rows, and what was changed is named."""

from __future__ import annotations

import asyncio
import pickle
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from pydantic import BaseModel

from rath._async.lazy import Deferred
from rath.errors import (
    ProviderError,
    ProviderServerError,
    RateLimitError,
    ReplayDifference,
    SelfWaitError,
)
from rath.llm import Provider, RathLLMStreamDelta
from rath.session import (
    ChunkRow,
    ChunkTable,
    Session,
    session_registry,
)
from rath.session.graph import lineage_journal_tracking
from rath.session.outcome import (
    BudgetExceeded,
    Cancelled,
    Completed,
    DeadlineExceeded,
    NeedsDecision,
    RoundLimit,
)
from rath.session.record import ModelCall, Operation, ToolRun
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.api import PARTIAL_SUFFIX, Entry
from tests.support.cut_off import cut_off
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.replayed import AGENT, Effects, Program, programs
from tests.support.sessions import AsyncFunctionTool, FunctionTool, run
from tests.support.waiting import PATIENCE


def assert_replays(session: Session, *effects: Effects) -> Session:
    """Replay a session; rows, outcome and record are the same, and nothing happened."""
    session.synchronize()
    before = [each.n_runs for each in effects]
    again = session.replay()
    assert again is not session
    assert again.id == session.id
    assert again.chunk_table.rows == session.chunk_table.rows
    assert [row.id for row in again.chunk_table] == [row.id for row in session.chunk_table]
    assert again.outcome == session.outcome
    assert list(again.record) == list(session.record)
    assert [each.n_runs for each in effects] == before
    return again


@given(program=programs)
def test_any_session_replays_to_the_same_rows(program: Program) -> None:
    assert_replays(program(), program.effects)


@given(program=programs)
def test_any_session_that_was_stored_replays_where_it_is_loaded(program: Program) -> None:
    session = program()
    with tempfile.TemporaryDirectory() as directory:
        session.save(store=directory)
        loaded = Session.load(session.id, store=directory)
        assert_replays(loaded, program.effects)
    assert loaded.chunk_table == session.chunk_table


@given(program=programs)
def test_runs_of_one_model_on_top_of_one_another_replay(program: Program) -> None:
    script = [turn for each in program.scripts for turn in each]
    steps = [step for step in program.steps if step not in ("compress", "select")]
    client = ScriptedClient([*script, *["more"] * 10])
    assert_replays(replace(program, steps=steps)(client.provider), program.effects)


def test_what_is_said_before_a_question_that_was_cut_off_stands_in_no_later_request() -> None:
    client = ScriptedClient(["one", "two words", "three"])
    is_there = threading.Event()

    def cancel(_: RathLLMStreamDelta) -> None:
        assert is_there.wait(PATIENCE)
        cut.cancel()

    first = run([], agent=AGENT, agent_provider=client.provider)
    cut = run([], user=first, agent=AGENT, agent_provider=client.provider, on_event=cancel)
    is_there.set()
    assert isinstance(cut.synchronize().outcome, Cancelled)
    asked = cut.replay(at=len(cut.chunk_table), prompt="again", agent=lambda branch: branch)
    last = run([], user=asked, agent=AGENT, agent_provider=client.provider)
    assert last.text() == "three"
    assert_replays(last)


def test_a_replay_is_refused_where_it_would_block_a_loop() -> None:
    stored = a_session()

    async def look(_: Session, __: dict[str, Any]) -> str:
        with pytest.raises(SelfWaitError, match="to_thread"):
            stored.replay()
        again = await asyncio.to_thread(stored.replay)
        return again.text() or ""

    out = run([tool_call("look"), "done"], AsyncFunctionTool("look", look)).synchronize()
    assert '"ok"' in out.chunk_table[2].payload["content"]


@given(program=programs, data=st.data())
def test_any_row_that_was_changed_is_told(program: Program, data: st.DataObject) -> None:
    session = replace(program, steps=())()
    table = session.chunk_table
    # The last answer was never sent to anybody.
    at = data.draw(st.integers(0, len(table) - 2))
    text = data.draw(st.text(max_size=5).map(lambda said: f"changed {said}"))
    other = ChunkRow(table[at].kind, {**table[at].payload, "content": text})
    with pytest.raises(ReplayDifference) as told:
        edited(session, at, other).replay()
    assert told.value.where.startswith("session ")


def test_a_vendor_that_thinks_gets_its_blocks_back_and_replays() -> None:
    answers = [Says(calls=("f",), blocks=({"type": "thinking", "signature": "s"},)), Says("done")]
    vendor = OfflineVendor(lambda _: answers.pop(0))
    effects = Effects()
    out = run([], effects.tool, agent_provider=vendor.provider)
    assert out.text() == "done"
    assert any("blocks" in message for message in vendor.requests[1])
    assert_replays(out, effects)


def test_a_paused_turn_goes_on_in_the_replay() -> None:
    answers = [Says("half", finish="pause_turn"), Says("done")]
    assert_replays(run([], agent_provider=OfflineVendor(lambda _: answers.pop(0)).provider))


def test_fallbacks_answer_again_where_the_first_choice_had_failed() -> None:
    answers: list[Says | Exception] = [
        Says(calls=("f",)),
        ProviderServerError("busy", status=503),
        Says("done"),
    ]
    others = [Says("by another")]

    def serve(_: object) -> Says:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    first, second = OfflineVendor(serve), OfflineVendor(lambda _: others.pop(0))
    fallback = replace(second.provider, temperature=0.7)
    provider = replace(first.provider, retry_max_attempts=1, fallbacks=[fallback])
    effects = Effects()
    out = run([], effects.tool, agent_provider=provider)
    assert out.text() == "by another"
    assert_replays(out, effects)


def test_a_run_that_used_its_rounds_or_its_budget_ends_so_again() -> None:
    effects = Effects()
    short = run([tool_call("f"), tool_call("f")], effects.tool, max_tool_rounds=2)
    assert short.outcome == RoundLimit(2)
    assert_replays(short, effects)
    provider = Provider(budget_total_tokens=1)
    client = ScriptedClient([tool_call("f"), "never"], provider=provider)
    spent = run([], effects.tool, agent_provider=client.provider)
    assert isinstance(spent.outcome, BudgetExceeded)
    assert_replays(spent, effects)
    assert_replays(run([], user=spent, agent_provider=client.provider))


def test_a_cancelled_run_and_what_passes_it_on_replay() -> None:
    is_there, ran = threading.Event(), Effects()

    async def cancel(session: Session, _: dict[str, Any]) -> None:
        await asyncio.to_thread(is_there.wait, PATIENCE)
        out.cancel()
        await asyncio.Event().wait()

    turn = tool_call("f", {}, tool_call("cancel", {}))
    out = run([turn, "never"], AsyncFunctionTool("cancel", cancel), ran.tool)
    is_there.set()
    assert isinstance(out.synchronize().outcome, Cancelled)
    assert_replays(out, ran)
    assert_replays(run(["never"], user=out).fork(), ran)


def test_a_run_that_missed_its_deadline_ends_where_it_had() -> None:
    async def wait(session: Session, _: dict[str, Any]) -> None:
        await asyncio.Event().wait()

    out = run([tool_call("f"), "never"], AsyncFunctionTool("f", wait), timeout=0.05)
    assert isinstance(out.outcome, DeadlineExceeded)
    assert_replays(out)


def test_a_failed_session_raises_its_own_error() -> None:
    out = run([RuntimeError("down")])
    with pytest.raises(Exception, match="down"):
        out.replay()


def test_a_failed_session_that_was_loaded_replays_to_where_it_failed(tmp_path: Path) -> None:
    file = tmp_path / "failed.jsonl"
    effects = Effects()
    out = run([tool_call("f"), RuntimeError("down")], effects.tool, persist_path=file)
    with pytest.raises(Exception, match="down"):
        out.synchronize()
    loaded = Session.load(tmp_path / f"{file.name}{PARTIAL_SUFFIX}")
    again = loaded.replay()
    assert again.chunk_table == loaded.chunk_table == out.partial_table


def test_what_goes_on_beside_a_failed_question_replays() -> None:
    def busy(_: object) -> Says:
        raise RateLimitError("slow down", status=429)

    provider = replace(OfflineVendor(busy).provider, retry_max_attempts=1)
    effects = Effects()

    def ask(session: Session, _: dict[str, Any]) -> str:
        inner = run([], user=session.detach(), agent_provider=provider)
        with pytest.raises(RateLimitError):
            inner.synchronize()
        helper = run(["helped"], effects.tool, user=session)
        return helper.text() or ""

    out = run([tool_call("sub"), "done"], FunctionTool("sub", ask))
    assert len([entry for entry in out.record if isinstance(entry, Operation)]) == 3
    assert_replays(out, effects)
    assert out.replay().cumulative_usage == out.cumulative_usage


answer = partial(tool_call, "final_answer")


class Point(BaseModel):
    """A typed answer."""

    x: int


@pytest.mark.parametrize(
    "answers",
    [
        [answer({"x": 1})],
        [answer({"x": "no"}), answer({"x": 2})],
        [answer("{broken"), tool_call("f"), answer({"x": 3})],
        ["no answer", "```json\n{}\n```", "", answer({"x": 1})],
        ["no", "no", "no"],
        [answer({"x": "a"})] * 3,
        [tool_call("final_answer", {"x": "a"}, tool_call("f"), answer({"x": 1}))],
    ],
    ids=["at once", "repaired", "not JSON", "texts", "never", "never by a tool", "among others"],
)
@pytest.mark.parametrize("mode", ["schema", "tool"])
def test_a_typed_answer_is_read_again_without_its_type(answers: list[Any], mode: Any) -> None:
    retries = 2 if len(answers) == 3 else 3
    effects = Effects()
    script = ["not it", '{"x": "no"}', '{"x": 1}'] if mode == "schema" else answers
    client = ScriptedClient(script, provider=Provider(output_mode=mode))
    out = run(
        [], effects.tool, agent_provider=client.provider, output=Point, output_retries=retries
    )
    again = assert_replays(out, effects)
    assert type(again.outcome) is Completed


def test_a_typed_answer_that_never_came_is_missed_again() -> None:
    client = ScriptedClient(["no", "no"])
    out = run([], agent_provider=client.provider, output=Point, output_retries=1).synchronize()
    assert_replays(out)


@given(
    turn=st.sampled_from([None, 0, 1]),
    begun=st.sets(st.integers(0, 1)),
    known=st.sets(st.integers(0, 1)),
    choice=st.sampled_from(["retry", "skip", "done"]),
)
def test_a_run_that_was_cut_off_and_went_on_replays_as_one(
    turn: int | None, begun: set[int], known: set[int], choice: Any
) -> None:
    effects = Effects()
    asked = [tool_call("f", {"n": n}, id=f"c{n}") for n in range(3)]
    two = tool_call("f", {"n": 0}, asked[1], id="c0")
    script: list[Turn] = [two, asked[2], "done"]
    whole = run(script, effects.tool, agent=AGENT)
    if turn != 0:
        begun, known = set(), set()
    cut = cut_off(whole, turn, begun=begun, known=known)
    waiting = cut.replay()
    assert (waiting.chunk_table, waiting.outcome) == (cut.chunk_table, cut.outcome)
    for at in sorted(begun - known):
        cut.decide(f"c{at}", choice)
    out = run(script if turn is None else script[turn + 1 :], effects.tool, user=cut, agent=AGENT)
    assert out.id == whole.id
    assert_replays(out, effects)


def test_a_run_that_failed_and_went_on_replays_as_one() -> None:
    effects = Effects()
    failed = run([tool_call("f"), RuntimeError("down")], effects.tool, agent=AGENT)
    with pytest.raises(RuntimeError, match="down"):
        failed.synchronize()
    latest = failed.body.latest
    assert latest is not None
    body = replace(latest, outcome=NeedsDecision(failed.id, ()))
    waits = Session.from_body(Deferred.of(body), failed.provenance, id=failed.id)
    out = run(["done"], effects.tool, user=waits, agent=AGENT)
    assert [call.status for call in out.record if isinstance(call, ModelCall)] == [
        "done",
        "failed",
        "done",
    ]
    assert_replays(out, effects)


# ---- what was changed is told


def edited(session: Session, index: int, row: ChunkRow) -> Session:
    """The session with one of its rows changed."""
    body = session.body.result()
    rows = [each if at != index else row.with_id(each.id) for at, each in enumerate(body.table)]  # type: ignore[arg-type]  # all rows have one
    return _with(session, replace(body, table=ChunkTable(rows)))


def with_entry(session: Session, change: Callable[[Entry], Entry]) -> Session:
    """The session with entries of its record changed."""
    body = session.body.result()
    record = type(body.record)(change(entry) for entry in body.record)
    return _with(session, replace(body, record=record))


def _with(session: Session, body: Any) -> Session:
    return Session.from_body(Deferred.of(body), session.provenance, id=session.id)


def a_session() -> Session:
    client = ScriptedClient(
        [tool_call("f", {"x": 1}, id="c1"), tool_call("f", {"x": 2}, id="c2"), "ok"]
    )
    return run([], Effects().tool, agent_provider=client.provider).synchronize()


def test_another_prompt_is_told_before_anything_runs() -> None:
    session = a_session()
    other = Session.from_user_message("went").chunk_table[0]
    with pytest.raises(ReplayDifference, match="not those that the run began with") as told:
        edited(session, 0, other).replay()
    assert told.value.where.startswith(f"session {str(session.id)[:8]}")


@pytest.mark.parametrize(("index", "call"), [(1, 2), (3, 3)])
def test_a_changed_answer_is_told_at_the_next_request(index: int, call: int) -> None:
    session = a_session()
    row = session.chunk_table[index]
    other = ChunkRow(row.kind, {**row.payload, "content": "something else"})
    with pytest.raises(ReplayDifference, match="the request is not the one") as told:
        edited(session, index, other).replay()
    assert told.value.where.endswith(f"model call {call}")
    assert told.value.expected != told.value.found


@pytest.mark.parametrize("index", [2, 4])
def test_a_changed_tool_result_is_told_at_its_row(index: int) -> None:
    session = a_session()
    row = session.chunk_table[index]
    other = ChunkRow(row.kind, {**row.payload, "content": "x" * 1_000_000})
    with pytest.raises(ReplayDifference, match=f"row {index} is not what its run gave") as told:
        edited(session, index, other).replay()
    assert len(str(told.value)) < 1000


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tools": ()}, r"request is not|is new|schema"),
        ({"head": AGENT.chunk_table.rows * 2}, "the request is not the one"),
        ({"input_digest": "0" * 64}, "began with"),
    ],
    ids=["tools", "head", "input"],
)
def test_a_changed_operation_is_told(change: dict[str, Any], said: str) -> None:
    def changed(entry: Entry) -> Entry:
        return structs.replace(entry, **change) if isinstance(entry, Operation) else entry

    broken = with_entry(a_session(), changed)
    with pytest.raises(ReplayDifference, match=said):
        broken.replay()


@pytest.mark.parametrize(
    "change",
    [{"arguments": {"x": 3}}, {"call_id": "c9"}, {"schema_digest": "0" * 64}, {"rows": ()}],
    ids=["arguments", "call", "schema", "rows"],
)
def test_a_changed_tool_run_is_told_with_its_call(change: dict[str, Any]) -> None:
    def changed(entry: Entry) -> Entry:
        is_it = isinstance(entry, ToolRun) and entry.call_id == "c2"
        return structs.replace(entry, **change) if is_it else entry

    with pytest.raises(ReplayDifference, match="c2"):
        with_entry(a_session(), changed).replay()


def test_changed_parameters_of_a_call_are_told_at_that_call() -> None:
    n_seen = iter(range(10))

    def changed(entry: Entry) -> Entry:
        if not isinstance(entry, ModelCall) or next(n_seen) != 1:
            return entry
        parameters = {**entry.evidence.parameters, "temperature": 0.5}
        return structs.replace(
            entry, evidence=structs.replace(entry.evidence, parameters=parameters)
        )

    with pytest.raises(ReplayDifference, match="model call 2"):
        with_entry(a_session(), changed).replay()


def test_a_call_that_is_missing_or_too_many_is_told() -> None:
    session = a_session()
    body = session.body.result()
    entries = list(body.record)
    short = replace(body, record=type(body.record)(entries[:-1]))
    with pytest.raises(ReplayDifference, match="another model call than the record has"):
        _with(session, short).replay()
    extra = structs.replace(entries[-1], id=session.id)
    long = replace(body, record=body.record.append(extra))
    with pytest.raises(ReplayDifference, match="a model call that the replay did not make"):
        _with(session, long).replay()


@pytest.mark.parametrize("change", [{"purpose": "repair"}, {"status": "failed"}])
def test_a_call_that_is_noted_otherwise_is_told(change: dict[str, Any]) -> None:
    n_seen = iter(range(10))

    def changed(entry: Entry) -> Entry:
        is_it = isinstance(entry, ModelCall) and next(n_seen) == 2
        return structs.replace(entry, **change) if is_it else entry

    with pytest.raises((ReplayDifference, ProviderError)):
        with_entry(a_session(), changed).replay()


def test_a_replay_inside_a_tool_is_not_counted() -> None:
    stored = a_session()

    def look(_: Session, __: dict[str, Any]) -> int:
        return len(stored.replay().chunk_table)

    out = run([tool_call("look"), "done"], FunctionTool("look", look)).synchronize()
    assert len([entry for entry in out.record if isinstance(entry, ModelCall)]) == 2


def test_another_outcome_is_told() -> None:
    session = a_session()
    body = replace(session.body.result(), outcome=RoundLimit(3))
    with pytest.raises(ReplayDifference, match="ended in another way"):
        _with(session, body).replay()


def test_rows_that_a_fork_or_a_merge_did_not_make_are_told() -> None:
    session = a_session()
    for made in (session.fork(), session.merge(Session.from_user_message("and"))):
        rows = [*made.chunk_table.rows, Session.from_user_message("more").chunk_table[0]]
        broken = _with(made, replace(made.body.result(), table=ChunkTable(rows)))
        with pytest.raises(ReplayDifference, match=r"row \d of what Session"):
            broken.replay()


def test_the_error_survives_pickling() -> None:
    error = ReplayDifference("it differs", where="here", expected="a", found="b")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.where) == ("here: it differs; expected a; found b", "here")
    assert (copy.expected, copy.found, copy.problem) == ("a", "b", "it differs")


def test_a_replay_is_not_registered_and_leaves_no_lineage() -> None:
    session = a_session()
    with lineage_journal_tracking() as journal:
        session.replay()
    assert journal.visit_order == []
    assert session_registry().get(session.id) is session
