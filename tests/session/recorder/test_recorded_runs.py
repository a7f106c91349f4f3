"""A run is written while it goes on, and what is read back is what it made."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rath import autosave
from rath.errors import BudgetExceededError, ConfigError, PersistenceError
from rath.llm import Provider
from rath.session import Session, run_session_compress
from rath.session.chunk import tool_feedback_chunk
from rath.session.events import Intent, PendingResult, Reopened
from rath.session.log.verify import verify
from rath.session.outcome import Cancelled
from rath.session.persistence.store import FileStore
from rath.session.record import Operation, ToolRun, Verdict
from rath.testing import ScriptedClient, tool_call
from tests.support.api import (
    default_durability,
    is_autosaving,
    open_logs_of,
    own_operation,
    partial_path_of,
    read_log,
)
from tests.support.cut_off import NOON
from tests.support.cut_off import cut_off as cut_short
from tests.support.sessions import (
    AsyncFunctionTool,
    FunctionTool,
    cancelled_session,
    run,
    verdict,
)
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


def test_an_unknown_durability_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="unknown durability 'always'; expected one of 'turn'"):
        run(["done"], persist=True, durability="always")


def test_a_cancelled_run_says_so_in_a_log_that_stays_unfinished() -> None:
    started, go = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        started.set()
        go.wait(PATIENCE)

    out = run([tool_call("hold"), "never"], FunctionTool("hold", hold), persist=True)
    started.wait(PATIENCE)
    assert out.cancel().outcome == Cancelled(out.id)
    go.set()
    # What is added afterwards waits for what is on its way.
    out.add_entry()
    assert not log_of(out.id).exists()
    *_, last = lines_of(partial_path_of(log_of(out.id)))
    assert (last["event"], last["how"]) == ("failed", "cancelled")
    assert_is(Session.load(out.id), out)


@pytest.mark.parametrize("persist", [True, False])
def test_a_sub_agent_is_written_next_to_its_caller_or_alone(persist: bool) -> None:
    made: list[Session] = []

    async def ask(session: Session, _: object) -> str:
        made.append(await run(["inner"], user=session, persist=True))
        return "asked"

    tool = AsyncFunctionTool("ask", ask)
    out = run([tool_call("ask"), tool_call("ask"), "done"], tool, persist=persist).synchronize()
    for sub in made:
        assert_is(Session.load(sub.id), sub)
    assert log_of(out.id).exists() == persist
    out.save()
    assert_is(Session.load(out.id), out)
    assert [file.name for file in log_of(out.id).parent.glob("*__partial__*")] == []
    assert {sub.id for sub in made} < {e.session for e in out.record if isinstance(e, Operation)}


def failed_compression() -> Session:
    client, agent = ScriptedClient([tool_call("f")]), Session.from_agent_prompt("Shrink.")
    user = Session.from_user_message("hi")
    return run_session_compress(
        user, agent, agent_provider=client.provider, persist=True, lazy=True
    )


def stopped() -> Session:
    def stop(*_: object) -> None:
        raise BudgetExceededError("enough")

    provider = Provider(budget_total_tokens=1, on_budget_exceeded=stop)
    client = ScriptedClient(["done"], provider=provider)
    return run([], agent_provider=client.provider, persist=True)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: run([ValueError("the model broke" + "x" * 10_000)], persist=True), "ValueError: "),
        (failed_compression, "RuntimeError: .*it called tools"),
        (stopped, "BudgetExceededError: enough"),
    ],
)
def test_a_failed_run_is_written_and_says_why(make: Callable[[], Session], error: str) -> None:
    out = make()
    with pytest.raises((RuntimeError, ValueError, BudgetExceededError)):
        out.synchronize()
    *_, last = lines_of(partial_path_of(log_of(out.id)))
    assert (last["event"], last["how"], len(last["error"]) <= 4000) == ("failed", "failed", True)
    assert re.match(error, last["error"], re.DOTALL)
    loaded = Session.load(out.id)
    assert loaded.chunk_table == out.partial_table
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


def passed_on(**options: Any) -> Session:
    return run(["never"], user=cancelled_session(), **options)


def stopped_by_its_budget(**options: Any) -> Session:
    calls = tool_call("echo", "", tool_call("echo"))
    client = ScriptedClient([calls], provider=Provider(budget_total_tokens=1))
    return run([], ECHO, agent_provider=client.provider, **options)


def late(**options: Any) -> Session:
    wait = FunctionTool("wait", lambda *_: threading.Event().wait(0.2))
    return run([tool_call("wait"), "never"], wait, timeout=0.05, **options)


def compressed(
    user: Session | None = None, provider: Provider | None = None, **options: Any
) -> Session:
    client, agent = (
        ScriptedClient(["short"], provider=provider),
        Session.from_agent_prompt("Shrink."),
    )
    user = user or run(["a long story"])
    return run_session_compress(user, agent, agent_provider=client.provider, **options)


RUNS: dict[str, Callable[..., Session]] = {
    "typed": partial(run, ["no number", "7"], output=int),
    "unknown tool": partial(run, [tool_call("missing"), "done"]),
    "rounds": partial(run, [tool_call("echo")], ECHO, max_tool_rounds=1),
    "deadline": late,
    "passed on": passed_on,
    "budget": stopped_by_its_budget,
    "compress": compressed,
    "compress, not paid for": partial(compressed, provider=Provider(budget_total_tokens=1)),
    "compress, passed on": partial(compressed, cancelled_session()),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_written_however_it_ends(name: str) -> None:
    out = RUNS[name](persist=True).synchronize()
    assert_is(Session.load(out.id), out)
    assert name != "unknown tool" or "intent" not in kinds_of(log_of(out.id))
    later = run(["more"], user=out, persist=True).synchronize()
    assert_is(Session.load(later.id), later)


CALLS = tool_call("echo", {"n": 1}, tool_call("echo", {"n": 2}))


def cut_off(**options: Any) -> Session:
    """Return a run that failed after a round of tools."""
    out = run([CALLS, ValueError("the model broke")], ECHO, **options)
    with pytest.raises(ValueError, match="the model broke"):
        out.synchronize()
    return out


def test_it_is_written_complete_where_its_log_is_gone() -> None:
    first = cut_off(persist=True)
    waiting = Session.load(first.id)
    FileStore().delete(first.id)
    out = run(["done"], ECHO, user=waiting, persist=True).synchronize()
    assert_is(Session.load(out.id), out)


def test_a_log_that_grew_since_it_was_read_is_not_gone_on_with() -> None:
    first = cut_off(persist=True)
    waiting = Session.load(first.id)
    other = run(["done"], ECHO, user=Session.load(first.id)).synchronize()
    late = run(["never"], ECHO, user=waiting)
    with pytest.raises(PersistenceError, match="somebody else has gone on with it"):
        late.synchronize()
    assert_is(Session.load(first.id), other)


def asked() -> Session:
    """Return a run as it was loaded that was cut off before its calls were begun."""
    complete = run([CALLS, "done"], ECHO).synchronize()
    cut_short(complete, 0).save()
    return Session.load(complete.id)


def gone_on_with(session: Session, *lines: Intent | PendingResult) -> None:
    """Add lines to a log as another process does, which is killed then."""
    store = FileStore()
    written = read_log(store, session.id)
    log = store.reopen(session.id, written.reader.n_good)
    encoder = written.reader.encoder()
    log.append(encoder.add(Reopened(NOON), *lines).data)
    log.abandon()


def intent_of(session: Session, call: int, *, minute: int = 0) -> Intent:
    operation = own_operation(session.record, session.id)
    assert operation is not None
    each = session.open_calls[call]
    return Intent(
        operation=operation.operation,
        row=each.row,
        call=call,
        call_id=each.call.id,
        tool="echo",
        effects="non_idempotent",
        at=NOON.replace(minute=minute),
    )


def result_of(session: Session, call: int) -> PendingResult:
    made = run([tool_call("echo"), "done"], ECHO).record
    each = structs.replace(next(entry for entry in made if isinstance(entry, ToolRun)), rows=())
    return PendingResult(
        row=session.open_calls[call].row, call=call, run=each, shown=tool_feedback_chunk("", "", "")
    )


@pytest.mark.parametrize("make", [intent_of, result_of], ids=["begun", "done"])
def test_a_call_that_somebody_else_made_since_is_not_made_again(make: Any) -> None:
    waiting = asked()
    gone_on_with(waiting, make(waiting, 1))
    late = run(["never"], FunctionTool("echo", pytest.fail), user=waiting)
    with pytest.raises(PersistenceError, match="somebody else has gone on with it"):
        late.synchronize()


def test_a_decision_does_not_hold_for_a_call_that_somebody_else_made_since() -> None:
    first = asked()
    gone_on_with(first, intent_of(first, 0))
    waiting = Session.load(first.id)
    waiting.decide(waiting.open_calls[0], "retry")
    gone_on_with(first, intent_of(first, 0, minute=1))
    late = run(["never"], FunctionTool("echo", pytest.fail), user=waiting)
    with pytest.raises(PersistenceError, match="somebody else has gone on with it"):
        late.synchronize()


def names(session: Session) -> list[str]:
    return [entry.name for entry in session.record if isinstance(entry, Verdict)]


def test_entries_are_added_to_every_place_where_a_session_is(tmp_path: Path) -> None:
    out = run(["done"], persist=True).synchronize()
    out.save(path=tmp_path / "copy.jsonl")
    out.save(store=str(tmp_path / "other"))
    out.add_entry(verdict())
    assert names(Session.load(tmp_path / "copy.jsonl")) == ["good"]
    assert names(Session.load(out.id, store=str(tmp_path / "other"))) == ["good"]
    assert names(Session.load(out.id)) == ["good"]


def test_a_log_that_somebody_else_changed_takes_nothing() -> None:
    out = run(["done"], persist=True).synchronize()
    other = Session.load(out.id)
    other.add_entry(verdict("theirs"), verdict("too"))
    before = log_of(out.id).read_bytes()
    for _ in range(2):
        with pytest.raises(PersistenceError, match=r"changed by somebody else.*Load the session"):
            out.add_entry(verdict("mine"))
    assert names(out) == []
    assert log_of(out.id).read_bytes() == before
    other.add_entry(verdict("again"))
    assert names(Session.load(out.id)) == ["theirs", "too", "again"]


def _is_refused(*_: object, **__: object) -> bool:
    return False


def test_a_log_that_changes_all_the_time_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    out = run(["done"], persist=True).synchronize()
    monkeypatch.setattr(FileStore, "append_to_finished", _is_refused)
    with pytest.raises(PersistenceError, match="changed by somebody else"):
        out.add_entry(verdict("mine"))
    assert names(out) == []


def test_a_log_that_is_gone_takes_nothing() -> None:
    Session.load(run(["done"], persist=True).synchronize().id)
    out = Session.load(run(["done"], persist=True).synchronize().id)
    FileStore().delete(out.id)
    with pytest.raises(PersistenceError, match=r"is not in .* any more"):
        out.add_entry(verdict())


def test_a_full_disk_takes_nothing_until_it_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    out = run(["done"], persist=True).synchronize()
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", _fail)
        with pytest.raises(PersistenceError, match="No space left"):
            out.add_entry(verdict("lost"))
    out.add_entry(verdict("kept"))
    assert names(Session.load(out.id)) == names(out) == ["kept"]


def _fail(_: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.fixture
def cut_off_in_a_call() -> Session:
    """A recorded run that was cancelled in a call of which it is not known what it did."""
    started = threading.Event()

    async def hang(*_: object) -> None:
        started.set()
        await asyncio.Event().wait()

    out = run([tool_call("hang"), "never"], AsyncFunctionTool("hang", hang), persist=True)
    assert started.wait(PATIENCE)
    assert out.cancel().outcome == Cancelled(out.id)
    return out


def test_a_session_that_was_cancelled_in_a_call_is_saved_as_cancelled(
    cut_off_in_a_call: Session, tmp_path: Path
) -> None:
    path = tmp_path / "whole.jsonl"
    cut_off_in_a_call.save(path=path)
    loaded = Session.load(path)
    assert loaded.outcome == cut_off_in_a_call.outcome
    assert loaded.open_calls == cut_off_in_a_call.open_calls


def test_what_comes_after_a_cut_off_call_has_no_part_in_it(cut_off_in_a_call: Session) -> None:
    assert [each.state for each in cut_off_in_a_call.open_calls] == ["begun"]
    after = run([], user=cut_off_in_a_call, persist=True).synchronize()
    assert after.outcome == cut_off_in_a_call.outcome
    assert kinds_of(log_of(after.id)) == ["header", "finished"]


def stored() -> set[UUID]:
    open_logs_of(FileStore()).lane.put(lambda: None).result(timeout=PATIENCE)
    return set(FileStore().stamps())


def say(home: Path, **sessions: object) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.json").write_text(json.dumps({"version": 1, "sessions": sessions}))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "openrath-home"


def test_inside_the_block_every_run_is_recorded() -> None:
    with autosave():
        inside = run(["one"]).synchronize()
    run(["two"]).synchronize()
    assert inside.id in stored()
    assert len(stored()) == 3  # with the user's and the agent's session
    assert not is_autosaving()
    off = autosave(False)
    with off:
        assert repr(off) == "Autosave(off)"


@pytest.mark.parametrize(
    ("config", "word", "reply", "is_on"),
    [
        (None, "1", None, True),
        (None, "yes", None, True),
        (True, "0", None, False),
        (None, "", None, False),
        (True, None, None, True),
        (False, None, None, False),
        (True, "1", False, False),
        (False, "0", True, True),
    ],
)
def test_the_program_stands_above_the_environment_and_that_above_the_config(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: bool | None,
    word: str | None,
    reply: bool | None,
    is_on: bool,
) -> None:
    say(home, **({} if config is None else {"persist": config}))
    if word is not None:
        monkeypatch.setenv("OPENRATH_PERSIST", word)
    with nullcontext() if reply is None else autosave(reply):
        assert is_autosaving() is is_on
        with autosave(False):
            autosave()
            assert is_autosaving()
            autosave(False)
            assert not is_autosaving()


def test_every_derivation_is_stored() -> None:
    with autosave():
        base = run(["one"])
        made = [base.fork(), base.detach(), base.fork().merge(base.fork())]
        client = ScriptedClient(["short"])
        agent = Session.from_agent_prompt("Shrink.")
        made.append(run_session_compress(base, agent, agent_provider=client.provider))
        for session in made:
            session.synchronize()
    there = stored()
    for session in made:
        assert session.id in there
        assert Session.load(session.id).chunk_table == session.chunk_table


def test_a_derivation_that_cannot_be_stored_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    FileStore().directory.parent.mkdir(parents=True)
    FileStore().directory.write_text("no directory")
    with autosave():
        fork = Session.from_user_message("hi").fork()
    with pytest.raises(PersistenceError, match="Not a directory"):
        stored()
    assert len(fork.chunk_table) == 1
    reports = [record for record in caplog.records if str(fork.id) in record.getMessage()]
    assert [record.levelno for record in reports] == [logging.ERROR]


def test_an_unknown_store_is_logged_and_the_fork_is_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENRATH_STORE", "nowhere://x")
    with autosave():
        fork = Session.from_user_message("hi").fork()
    assert fork.text() == ""
    assert "nowhere" in caplog.text


def test_the_environment_says_how_carefully(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    say(home, durability="none")
    assert default_durability() == "none"
    monkeypatch.setenv("OPENRATH_DURABILITY", "row")
    assert default_durability() == "row"


@pytest.mark.parametrize("where", ["env", "config"])
def test_unknown_durability_is_named(
    monkeypatch: pytest.MonkeyPatch, home: Path, where: str
) -> None:
    if where == "env":
        monkeypatch.setenv("OPENRATH_DURABILITY", "often")
    else:
        say(home, durability="often")
    with pytest.raises(ConfigError, match=r"unknown durability 'often' in .*expected one"):
        run(["done"], persist=True)


@pytest.mark.parametrize("as_url", [False, True])
def test_a_run_is_recorded_in_the_store_that_it_is_given(tmp_path: Path, as_url: bool) -> None:
    store = FileStore(tmp_path / "elsewhere")
    session = run(["done"], store=str(store.directory) if as_url else store).synchronize()
    assert Session.load(session.id, store=store).text() == "done"
    assert not log_of(session.id).exists()


def test_a_run_is_recorded_in_one_place(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a path or a store"):
        run(["done"], store=FileStore(tmp_path), persist_path=tmp_path / "session.jsonl")
