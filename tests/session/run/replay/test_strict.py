"""A session replays from its record alone, without vendors, and what was changed is named."""

from __future__ import annotations

import asyncio
import pickle
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from pydantic import BaseModel

import rath
from rath._async.deferred import Deferred
from rath.errors import (
    PersistenceError,
    ProviderError,
    ProviderProtocolError,
    ReplayDifference,
    SelfWaitError,
    StreamInterrupted,
)
from rath.llm import (
    ChatClient,
    Provider,
    RathLLMStreamDelta,
    register_chat_client,
)
from rath.session import (
    ChunkRow,
    ChunkTable,
    Session,
    run_session_loop,
    session_registry,
)
from rath.session.graph import lineage_journal_tracking
from rath.session.outcome import (
    BudgetExceeded,
    Cancelled,
    Completed,
    RoundLimit,
)
from rath.session.record import ModelCall, Operation, ToolRun
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support import anthropic_replies as claude
from tests.support import chat_replies as replies
from tests.support.api import PARTIAL_SUFFIX, Entry
from tests.support.asking import KEY
from tests.support.chat_replies import Reply
from tests.support.chat_server import ChatServer
from tests.support.cut_off import cut_off
from tests.support.images import picture
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.random_programs import AGENT, Effects, Program, programs
from tests.support.sessions import AsyncFunctionTool, FunctionTool, entries_of, run
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


def test_a_cancelled_answer_is_in_no_later_request() -> None:
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
def test_any_changed_row_is_a_difference(program: Program, data: st.DataObject) -> None:
    session = replace(program, steps=())()
    table = session.chunk_table
    # The last answer was never sent to anybody.
    at = data.draw(st.integers(0, len(table) - 2))
    text = data.draw(st.text(max_size=5).map(lambda reply: f"changed {reply}"))
    other = ChunkRow(table[at].kind, {**table[at].payload, "content": text})
    with pytest.raises(ReplayDifference) as reports:
        edited(session, at, other).replay()
    assert reports.value.where.startswith("session ")


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


def test_a_failed_session_that_was_loaded_replays_to_where_it_failed(tmp_path: Path) -> None:
    file = tmp_path / "failed.jsonl"
    effects = Effects()
    out = run([tool_call("f"), RuntimeError("down")], effects.tool, persist_path=file)
    with pytest.raises(Exception, match="down"):
        out.synchronize()
    assert not file.exists()
    loaded = Session.load(tmp_path / f"{file.name}{PARTIAL_SUFFIX}")
    again = loaded.replay()
    assert again.chunk_table == loaded.chunk_table == out.partial_table


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
    complete = run(script, effects.tool, agent=AGENT)
    if turn != 0:
        begun, known = set(), set()
    cut = cut_off(complete, turn, begun=begun, known=known)
    waiting = cut.replay()
    assert (waiting.chunk_table, waiting.outcome) == (cut.chunk_table, cut.outcome)
    for at in sorted(begun - known):
        cut.decide(f"c{at}", choice)
    out = run(script if turn is None else script[turn + 1 :], effects.tool, user=cut, agent=AGENT)
    assert out.id == complete.id
    assert_replays(out, effects)


# ---- what was changed is told


def edited(session: Session, index: int, row: ChunkRow) -> Session:
    """The session with one of its rows changed."""
    body = session.core.body.result()
    rows = [each if at != index else row.with_id(each.id) for at, each in enumerate(body.table)]  # type: ignore[arg-type]  # all rows have one
    return _with(session, replace(body, table=ChunkTable(rows)))


def with_entry(session: Session, change: Callable[[Entry], Entry]) -> Session:
    """The session with entries of its record changed."""
    body = session.core.body.result()
    record = type(body.record)(change(entry) for entry in body.record)
    return _with(session, replace(body, record=record))


def _with(session: Session, body: Any) -> Session:
    return Session.from_body(Deferred.of(body), session.provenance, id=session.id)


def a_session() -> Session:
    client = ScriptedClient(
        [tool_call("f", {"x": 1}, id="c1"), tool_call("f", {"x": 2}, id="c2"), "ok"]
    )
    return run([], Effects().tool, agent_provider=client.provider).synchronize()


def test_another_prompt_is_a_difference_before_anything_runs() -> None:
    session = a_session()
    other = Session.from_user_message("went").chunk_table[0]
    with pytest.raises(ReplayDifference, match="not those that the run began with") as reports:
        edited(session, 0, other).replay()
    assert reports.value.where.startswith(f"session {str(session.id)[:8]}")


@pytest.mark.parametrize("index", [2, 4])
def test_a_changed_tool_result_is_a_difference_at_its_row(index: int) -> None:
    session = a_session()
    row = session.chunk_table[index]
    other = ChunkRow(row.kind, {**row.payload, "content": "x" * 1_000_000})
    with pytest.raises(ReplayDifference, match=f"row {index} is not what its run gave") as reports:
        edited(session, index, other).replay()
    assert len(str(reports.value)) < 1000


@pytest.mark.parametrize(
    ("kind", "nth", "change", "reply"),
    [
        (Operation, 0, {"tools": ()}, r"request is not|is new|schema"),
        (Operation, 0, {"head": AGENT.chunk_table.rows * 2}, "the request is not the one"),
        (Operation, 0, {"input_digest": "0" * 64}, "began with"),
        (ToolRun, 1, {"arguments": {"x": 3}}, "c2"),
        (ToolRun, 1, {"call_id": "c9"}, "c2"),
        (ToolRun, 1, {"schema_digest": "0" * 64}, "c2"),
        (ToolRun, 1, {"rows": ()}, "c2"),
        (ModelCall, 1, {"parameters": {"temperature": 0.5}}, "model call 2"),
        (ModelCall, 2, {"purpose": "repair"}, "."),
        (ModelCall, 2, {"status": "failed"}, "."),
    ],
)
def test_a_changed_entry_is_a_difference(
    kind: type[Entry], nth: int, change: dict[str, Any], reply: str
) -> None:
    session = a_session()
    entry = entries_of(session, kind)[nth]
    if isinstance(entry, ModelCall) and "parameters" in change:
        parameters = {**entry.evidence.parameters, **change["parameters"]}
        change = {"evidence": structs.replace(entry.evidence, parameters=parameters)}
    other = structs.replace(entry, **change)
    with pytest.raises((ReplayDifference, ProviderError), match=reply):
        with_entry(session, lambda each: other if each is entry else each).replay()


def test_a_missing_or_additional_call_is_a_difference() -> None:
    session = a_session()
    body = session.core.body.result()
    entries = list(body.record)
    short = replace(body, record=type(body.record)(entries[:-1]))
    with pytest.raises(ReplayDifference, match="another model call than the record has"):
        _with(session, short).replay()
    extra = structs.replace(entries[-1], id=session.id)
    long = replace(body, record=body.record.append(extra))
    with pytest.raises(ReplayDifference, match="a model call that the replay did not make"):
        _with(session, long).replay()


def test_another_outcome_is_a_difference() -> None:
    session = a_session()
    body = replace(session.core.body.result(), outcome=RoundLimit(3))
    with pytest.raises(ReplayDifference, match="ended in another way"):
        _with(session, body).replay()


def test_other_rows_of_a_fork_or_a_merge_are_a_difference() -> None:
    session = a_session()
    for made in (session.fork(), session.merge(Session.from_user_message("and"))):
        rows = [*made.chunk_table.rows, Session.from_user_message("more").chunk_table[0]]
        broken = _with(made, replace(made.core.body.result(), table=ChunkTable(rows)))
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


TOOL = FunctionTool("f", lambda *_: {"x": 1})


THOUGHT = claude.thinking("let me see")


OPENAI = [
    replies.completion(tool_calls=(replies.tool_call("f", "{}", id="c1"),)),
    replies.completion("done"),
]


OPENAI_STREAM = [
    replies.event_stream(replies.tool_chunk(id="c1", name="f", arguments="{}"),
                         replies.finish_chunk("tool_calls"), replies.usage_chunk(5, 6), "[DONE]"),
    replies.text_stream("so", " it", " is", counts=(7, 8)),
]  # fmt: skip


CLAUDE = [
    claude.message(THOUGHT, claude.text("hm"), claude.tool_use("f", {}), stop_reason="tool_use"),
    claude.message(claude.thinking("hm"), claude.text("done")),
]


CLAUDE_STREAM = [
    claude.streamed(THOUGHT, claude.tool_use("f", {}), stop_reason="tool_use"),
    claude.streamed(claude.text("so it is")),
]


Case = tuple[str, dict[str, Any], list[Reply], bool]


CASES: dict[str, Case] = {
    "openai": ("openai", {}, OPENAI, False),
    "openai, many parameters": (
        "openai",
        {"temperature": 0.5, "seed": 7, "stop": ["x"], "extra_create_args": {"top_k": 3}},
        OPENAI,
        False,
    ),
    "openai, tools as parameters": (
        "openai",
        {"extra_create_args": {"tools": [{"type": "web_search"}]}},
        OPENAI,
        False,
    ),
    "openai, streamed": ("openai", {}, OPENAI_STREAM, True),
    "anthropic": ("anthropic", {"max_tokens": 100}, CLAUDE, False),
    "anthropic, thinking": (
        "anthropic",
        {"extra_create_args": {"thinking": {"type": "enabled", "budget_tokens": 1024}}},
        CLAUDE,
        False,
    ),
    "anthropic, streamed": (
        "anthropic",
        {"extra_create_args": {"cache_control": None}},
        CLAUDE_STREAM,
        True,
    ),
}


def asked(
    kind: str, fields: dict[str, Any], answers: Sequence[Reply], streams: bool
) -> tuple[Session, Provider]:
    """A run over HTTP, whose server has gone when this returns."""
    with ChatServer() as server:
        server.queue(*answers)
        root = server.base_url.removesuffix("/v1") if kind == "anthropic" else server.base_url
        provider = Provider(
            model="m",
            provider_kind=kind,
            base_url=root,
            api_key=KEY,
            retry_max_attempts=1,
            **fields,
        )
        return ask_again(provider, streams).synchronize(), provider


def ask_again(provider: Provider, streams: bool) -> Session:
    return run_session_loop(
        Session.from_user_message("what is this?", images=[picture(b"x")]),
        AGENT,
        agent_provider=provider,
        tools=[TOOL],
        system_tools=False,
        on_event=ignore if streams else None,
    )


def ignore(_: RathLLMStreamDelta) -> None:
    return


@pytest.mark.parametrize("case", CASES)
def test_a_run_replays_from_its_record(case: str, tmp_path: Path) -> None:
    out, _ = asked(*CASES[case])
    assert out.replay().chunk_table == out.chunk_table
    out.save(store=str(tmp_path))
    assert Session.load(out.id, store=str(tmp_path)).replay().chunk_table == out.chunk_table


@pytest.mark.parametrize("case", CASES)
def test_its_program_replays_without_key_and_server(case: str) -> None:
    kind, fields, answers, streams = CASES[case]
    out, _ = asked(kind, fields, answers, streams)
    with rath.replay(out):
        again = ask_again(Provider(model="m", provider_kind=kind, **fields), streams)
        assert again.chunk_table == out.chunk_table
        assert again.cumulative_usage == out.cumulative_usage


def test_a_broken_stream_breaks_again_with_what_had_come() -> None:
    cut = replies.event_stream(replies.text_chunk("half of"), replies.Cut("close"))
    with ChatServer() as server:
        server.queue(cut)
        provider = Provider(model="m", base_url=server.base_url, api_key=KEY, retry_max_attempts=1)
        out = ask_again(provider, streams=True)
        with pytest.raises(StreamInterrupted):
            out.synchronize()
    reports: list[str | None] = []

    def note(delta: RathLLMStreamDelta) -> None:
        reports.append(delta.content_delta)

    with rath.replay(out):
        again = run_session_loop(
            Session.from_user_message("what is this?", images=[picture(b"x")]),
            AGENT,
            agent_provider=provider,
            tools=[TOOL],
            system_tools=False,
            on_event=note,
        )
        with pytest.raises(StreamInterrupted) as error:
            again.synchronize()
    assert (error.value.partial_text, reports) == ("half of", ["half of"])


def test_a_client_whose_code_is_not_here_cannot_be_replayed_and_says_so() -> None:
    vendor = OfflineVendor(lambda _: Says("hello"))
    out = run([], agent_provider=vendor.provider).synchronize()

    def refuse(_: Provider) -> ChatClient:
        raise ValueError("no such thing")

    register_chat_client(str(vendor.provider.provider_kind), refuse)
    with pytest.raises(PersistenceError, match=r"cannot be written again: no such thing.*import"):
        out.replay()


def test_an_answer_without_choices_fails_again() -> None:
    with ChatServer() as server:
        server.queue(replies.json_body({"id": "1", "object": "chat.completion", "choices": []}))
        provider = Provider(model="m", base_url=server.base_url, api_key=KEY, retry_max_attempts=1)
        out = ask_again(provider, streams=False)
        with pytest.raises(ProviderProtocolError):
            out.synchronize()
    with rath.replay(out), pytest.raises(ProviderError):
        ask_again(provider, streams=False).synchronize()
