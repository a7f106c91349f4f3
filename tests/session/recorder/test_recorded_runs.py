"""A run is written while it goes on, and what is read back is what it made."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.errors import BudgetExceededError, PersistenceError
from rath.llm import Provider
from rath.session import Session, load_session, run_session_compress
from rath.session.log.verify import verify
from rath.session.outcome import Cancelled, Completed, DeadlineExceeded, RoundLimit
from rath.session.persistence.store import FileStore
from rath.session.record import Operation, ToolRun
from rath.testing import ScriptedClient, tool_call
from tests.support.api import partial_beside
from tests.support.sessions import AsyncFunctionTool, FunctionTool, cancelled_session, run
from tests.support.waiting import PATIENCE


def echo(_: Session, arguments: object) -> object:
    return arguments


ECHO = FunctionTool("echo", echo)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def kinds_of(path: Path) -> list[str]:
    return [line.get("event", "header") for line in lines_of(path)]


def log_of(session: UUID) -> Path:
    return FileStore().path(session)


def assert_is(loaded: Session, live: Session) -> None:
    """Check that a session that was read is the one that was written."""
    assert loaded.id == live.id
    assert loaded.chunk_table == live.chunk_table
    assert [row.id for row in loaded.chunk_table] == [row.id for row in live.chunk_table]
    assert list(loaded.record) == list(live.record)
    assert loaded.outcome == live.outcome
    assert loaded.parent_session_ids == live.parent_session_ids
    assert loaded.lineage == live.lineage
    assert loaded.cumulative_usage == live.cumulative_usage


turns = st.lists(
    st.integers(1, 3).map(
        lambda n: tool_call("echo", {"n": n}, *(tool_call("echo", {"n": i}) for i in range(1, n)))
    ),
    max_size=3,
)


@given(script=turns, durability=st.sampled_from(["turn", "row", "none"]), second=turns)
def test_what_is_read_back_is_what_was_made(script: Any, durability: Any, second: Any) -> None:
    first = run([*script, "one"], ECHO, persist=True, durability=durability)
    live = run([*second, "two"], ECHO, user=first, persist=True, durability=durability)
    live.synchronize()
    assert_is(Session.load(first.id), first)
    assert_is(Session.load(live.id), live)
    assert verify(FileStore(), live.id).problems == ()


@given(script=turns)
def test_a_file_of_its_own_holds_everything(
    script: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    first = run([*script, "one"], ECHO)
    live = run(["two"], ECHO, user=first, persist_path=path).synchronize()
    assert [file.name for file in path.parent.iterdir()] == ["run.jsonl"]
    loaded = Session.load(path)
    assert loaded.chunk_table == live.chunk_table
    assert list(loaded.record) == list(live.record)
    assert loaded.parent_session_ids == live.parent_session_ids
    assert load_session(live.id, path=path).closed


def test_nothing_is_written_unasked(tmp_path: Path) -> None:
    run(["done"]).synchronize()
    assert list(tmp_path.iterdir()) == []


def test_the_header_names_the_remote_sandbox(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    out = run(["done"], persist_path=path, sandbox_handle_id="sandbox-7").synchronize()
    assert load_session(out.id, path=path).header.sandbox_handle_id == "sandbox-7"


def test_the_call_stands_in_the_log_before_the_tool_begins() -> None:
    seen: list[list[str]] = []

    def look(session: Session, _: object) -> str:
        seen.append(kinds_of(partial_beside(log_of(session.id))))
        return "ok"

    run([tool_call("look"), "done"], FunctionTool("look", look), persist=True).synchronize()
    assert seen[0][-1] == "intent"
    assert "row" in seen[0]


def test_the_results_of_a_round_are_written_as_they_come() -> None:
    first, seen = threading.Event(), list[list[str]]()

    def slow(session: Session, _: object) -> str:
        first.wait(PATIENCE)
        while "result" not in (kinds := kinds_of(partial_beside(log_of(session.id)))):
            pass
        seen.append(kinds)
        return "slow"

    def quick(_: Session, __: object) -> str:
        first.set()
        return "quick"

    tools = [
        FunctionTool("slow", slow, parallel_safe=True),
        FunctionTool("quick", quick, parallel_safe=True),
    ]
    calls = tool_call("slow", "", tool_call("quick"))
    out = run([calls, "done"], *tools, persist=True).synchronize()
    assert seen[0].count("result") == 1
    assert "round" in kinds_of(log_of(out.id))
    assert_is(Session.load(out.id), out)


def test_rows_and_entries_of_a_turn_stand_in_one_group() -> None:
    out = run(["done"], persist=True).synchronize()
    row, _, entry = lines_of(log_of(out.id))[-4:-1]
    assert (row["event"], row["more"], entry["event"]) == ("row", 1, "model_call")


def test_each_durability_writes_the_same() -> None:
    kinds: set[tuple[str, ...]] = set()
    for durability in ("turn", "row", "none"):
        out = run([tool_call("echo"), "done"], ECHO, persist=True, durability=durability)
        kinds.add(tuple(kinds_of(log_of(out.synchronize().id))))
    assert len(kinds) == 1


def test_an_unknown_durability_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="unknown durability 'always'; expected one of 'turn'"):
        run(["done"], persist=True, durability="always")


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ({"max_tool_rounds": 1}, RoundLimit(1)),
        ({"timeout": 0.05}, DeadlineExceeded(0.05)),
    ],
    ids=["rounds", "deadline"],
)
def test_the_trailer_says_how_the_run_ended(options: dict[str, Any], outcome: object) -> None:
    go = threading.Event()
    wait = FunctionTool("wait", lambda *_: go.wait(0.3))
    out = run([tool_call("wait"), "never"], wait, persist=True, **options).synchronize()
    go.set()
    assert out.outcome == outcome
    assert_is(Session.load(out.id), out)


def test_a_session_that_is_only_passed_on_is_written_too() -> None:
    out = run(["never"], user=cancelled_session(), persist=True).synchronize()
    assert isinstance(out.outcome, Cancelled)
    assert_is(Session.load(out.id), out)


def test_a_cancelled_run_says_so_in_a_log_that_stays_unfinished() -> None:
    begun, go = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        begun.set()
        go.wait(PATIENCE)

    out = run([tool_call("hold"), "never"], FunctionTool("hold", hold), persist=True)
    begun.wait(PATIENCE)
    assert out.cancel().outcome == Cancelled(out.id)
    go.set()
    # What is added afterwards waits for what is on its way.
    out.add_entries()
    assert not log_of(out.id).exists()
    *_, last = lines_of(partial_beside(log_of(out.id)))
    assert (last["event"], last["how"]) == ("failed", "cancelled")
    assert_is(Session.load(out.id), out)


def test_a_round_that_is_cut_off_keeps_what_was_done() -> None:
    done, go = threading.Event(), threading.Event()

    def quick(*_: object) -> str:
        done.set()
        return "quick"

    tools = [
        FunctionTool("quick", quick, parallel_safe=True),
        FunctionTool("slow", lambda *_: go.wait(PATIENCE), parallel_safe=True),
    ]
    calls = tool_call("quick", "", tool_call("slow"))
    out = run([calls, "never"], *tools, persist=True)
    done.wait(PATIENCE)
    while not any(isinstance(each, ToolRun) for each in out.cancel().partial_record):
        pass
    assert isinstance(out.outcome, Cancelled)
    go.set()
    out.add_entries()
    assert_is(Session.load(out.id), out)


def test_a_failed_run_says_why() -> None:
    out = run([ValueError("the model broke")], persist=True)
    with pytest.raises(ValueError, match="the model broke"):
        out.synchronize()
    *_, last = lines_of(partial_beside(log_of(out.id)))
    assert last["how"] == "failed"
    assert last["error"].startswith("ValueError: ")
    assert last["error"].endswith("the model broke")


def test_the_error_of_a_run_is_cut_where_it_is_long() -> None:
    out = run([ValueError("x" * 10_000)], persist=True)
    with pytest.raises(ValueError, match="xxx"):
        out.synchronize()
    *_, last = lines_of(partial_beside(log_of(out.id)))
    assert len(last["error"]) == 4000


def test_a_stopped_run_is_written_with_its_last_call() -> None:
    def stop(*_: object) -> None:
        raise BudgetExceededError("enough")

    provider = Provider(budget_total_tokens=1, on_budget_exceeded=stop)
    client = ScriptedClient(["done"], provider=provider)
    out = run([], agent_provider=client.provider, persist=True)
    with pytest.raises(BudgetExceededError):
        out.synchronize()
    loaded = Session.load(out.id)
    assert loaded.chunk_table == out.partial_table
    assert list(loaded.record) == list(out.partial_record)


def test_calls_that_are_not_made_are_told_too() -> None:
    provider = Provider(budget_total_tokens=1)
    calls = tool_call("echo", "", tool_call("echo"))
    client = ScriptedClient([calls], provider=provider)
    out = run([], ECHO, agent_provider=client.provider, persist=True).synchronize()
    assert_is(Session.load(out.id), out)


def test_a_call_of_an_unknown_tool_has_no_intent() -> None:
    out = run([tool_call("missing"), "done"], persist=True).synchronize()
    assert "intent" not in kinds_of(log_of(out.id))
    assert_is(Session.load(out.id), out)


def test_calls_that_may_be_repeated_are_not_waited_for() -> None:
    class Safe(FunctionTool):
        effects = "idempotent"

    out = run([tool_call("f"), "done"], Safe("f", lambda *_: "x"), persist=True).synchronize()
    (intent,) = [one for one in lines_of(log_of(out.id)) if one.get("event") == "intent"]
    assert intent["effects"] == "idempotent"


def test_a_typed_answer_is_written_with_what_was_said_to_it() -> None:
    out = run(["no number", "7"], output=int, persist=True).synchronize()
    assert_is(Session.load(out.id), out)


def test_a_sub_agent_is_written_with_what_its_caller_had_made() -> None:
    made: list[Session] = []

    async def ask(session: Session, _: object) -> str:
        sub = run(["inner"], user=session, persist=True)
        made.append(await sub)
        return "asked"

    tool = AsyncFunctionTool("ask", ask)
    out = run([tool_call("ask"), "done"], tool, persist=True).synchronize()
    assert_is(Session.load(out.id), out)
    assert_is(Session.load(made[0].id), made[0])
    assert made[0].id in {one.session for one in out.record if isinstance(one, Operation)}


def test_a_sub_agent_is_written_where_its_caller_is_not() -> None:
    made: list[Session] = []

    async def ask(session: Session, _: object) -> str:
        made.append(await run(["inner"], user=session, persist=True))
        return "asked"

    tool = AsyncFunctionTool("ask", ask)
    out = run([tool_call("ask"), tool_call("ask"), "done"], tool).synchronize()
    for sub in made:
        assert_is(Session.load(sub.id), sub)
    assert not log_of(out.id).exists()
    out.save()
    assert_is(Session.load(out.id), out)
    assert [file.name for file in log_of(out.id).parent.glob("*__partial__*")] == []


def test_a_compression_is_written() -> None:
    user = run(["a long story"], persist=True)
    client = ScriptedClient(["short"])
    agent = Session.from_agent_prompt("Shrink.")
    out = run_session_compress(user, agent, agent_provider=client.provider, persist=True)
    out.synchronize()
    assert_is(Session.load(out.id), out)
    later = run(["more"], user=out, persist=True).synchronize()
    assert_is(Session.load(later.id), later)


def test_a_compression_that_is_not_paid_for_keeps_the_rows() -> None:
    user = run(["a long story"]).synchronize()
    client = ScriptedClient(["short"], provider=Provider(budget_total_tokens=1))
    agent = Session.from_agent_prompt("Shrink.")
    out = run_session_compress(user, agent, agent_provider=client.provider, persist=True)
    assert out.chunk_table == user.chunk_table
    assert_is(Session.load(out.id), out)


def test_a_compression_that_passes_on_what_waits_is_written() -> None:
    client = ScriptedClient([])
    agent = Session.from_agent_prompt("Shrink.")
    out = run_session_compress(
        cancelled_session(), agent, agent_provider=client.provider, persist=True
    )
    assert isinstance(out.outcome, Cancelled)
    assert_is(Session.load(out.id), out)


def test_a_compression_that_fails_says_why() -> None:
    client = ScriptedClient([tool_call("f")])
    agent = Session.from_agent_prompt("Shrink.")
    user = Session.from_user_message("hi")
    out = run_session_compress(user, agent, agent_provider=client.provider, persist=True, lazy=True)
    with pytest.raises(RuntimeError, match="it called tools"):
        out.synchronize()
    *_, last = lines_of(partial_beside(log_of(out.id)))
    assert last["how"] == "failed"
    loaded = Session.load(out.id)
    assert loaded.chunk_table == user.chunk_table
    assert list(loaded.record) == list(out.partial_record)


@pytest.mark.parametrize("name", ["run.jsonl", "below/run.jsonl"])
def test_a_relative_path_means_the_directory_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    go = threading.Event()
    monkeypatch.chdir(here)
    first = run([lambda _: "one" if go.wait(PATIENCE) else "late"])
    out = run(["done"], user=first, persist_path=Path(name))
    monkeypatch.chdir(elsewhere)
    go.set()
    out.synchronize()
    assert (here / name).exists()
    assert not list(elsewhere.iterdir())


def test_a_home_that_moves_takes_no_run_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "one"))
    first = run([lambda _: "one" if go.wait(PATIENCE) else "late"])
    out = run(["done"], user=first, persist=True)
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "two"))
    go.set()
    out.synchronize()
    directory = tmp_path / "one" / "sessions"
    assert (directory / f"{out.id}.jsonl").exists()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "two").exists()


def test_a_file_that_stands_there_is_replaced_by_a_run(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run(["one"], persist_path=path).synchronize()
    out = run(["two"], persist_path=path).synchronize()
    assert Session.load(path).id == out.id


def test_a_run_under_the_id_of_a_finished_one_is_refused() -> None:
    first = run(["one"], persist=True).synchronize()
    copy = Session(first.chunk_table, id=first.id)
    assert Completed() == first.outcome
    with pytest.raises(PersistenceError, match="is there already"):
        FileStore().create(copy.id)
