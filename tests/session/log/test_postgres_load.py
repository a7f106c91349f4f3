"""What storing sessions in PostgreSQL costs the server, and how many are stored side by side."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rath.errors import SessionBusy
from rath.session import Session, run_session_loop, save_many
from rath.session.log.index import StoreIndex
from rath.session.persistence.store import open_store
from rath.testing import ScriptedClient, tool_call
from tests.support.postgres_server import PostgresServer
from tests.support.sessions import AGENT, FunctionTool, echo

_STATEMENT = re.compile(r"LOG: +(?:statement|execute [^:]*):")
_MANY = 100
_SECONDS = 60.0


@pytest.fixture
def url(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, home: object) -> Iterator[str]:
    url = postgres.url(options="-c log_statement=all")
    monkeypatch.setenv("OPENRATH_STORE", url)
    yield url
    open_store(url).close()


def statements(postgres: PostgresServer, work: Callable[[], object]) -> int:
    """Return how many statements the server got meanwhile from who lets it log them."""
    log = postgres.directory / "log"
    start = log.stat().st_size
    work()
    return len(_STATEMENT.findall(log.read_bytes()[start:].decode()))


def run(user: Session, *turns: object) -> Session:
    client = ScriptedClient(turns)  # type: ignore[arg-type]
    return run_session_loop(
        user,
        AGENT,
        agent_provider=client.provider,
        tools=[FunctionTool("echo", echo)],
        system_tools=False,
        persist=True,
    )


def test_three_calls_and_a_tool_take_few_statements(url: str, postgres: PostgresServer) -> None:
    run(Session.from_user_message("the connections are opened"), "yes").synchronize()

    def two_runs() -> None:
        asked = run(Session.from_user_message("go"), tool_call("echo"), "done").synchronize()
        run(asked, "once more").synchronize()
        assert len(open_store(url).stamps()) >= 4

    # 69 when every log was locked, found and unlocked by statements of its own.
    assert statements(postgres, two_runs) <= 30


def test_many_sessions_are_in_flight(url: str) -> None:
    in_flight = threading.Barrier(_MANY)

    def wait_for_all(_request: object) -> str:
        in_flight.wait(_SECONDS)
        return "done"

    sessions = [
        run(Session.from_user_message(f"question {number}"), tool_call("echo"), wait_for_all)
        for number in range(_MANY)
    ]
    assert [session.text() for session in sessions] == ["done"] * _MANY
    store = open_store(url)
    stored = [store.read(session.id) for session in sessions]
    assert all(log is not None and log.is_finished for log in stored)


def test_many_sessions_are_saved_at_once(url: str, postgres: PostgresServer) -> None:
    asked = run(Session.from_user_message("go"), tool_call("echo"), "done").synchronize()
    new = [Session.from_user_message(f"question {number}") for number in range(_MANY)]
    forks = [session.fork() for session in new]
    given = [asked, *forks, *new]

    places: list[str] = []
    n_statements = statements(postgres, lambda: places.extend(save_many(given, store=url)))
    assert n_statements <= 10
    assert places == [f"{open_store(url).where}/{session.id}" for session in given]
    for session in given:
        assert Session.load(session.id, store=url).text() == session.text()
    # What is there already is not stored again, and what comes late is added.
    before = open_store(url).stamps()
    save_many([*given, forks[0].fork()], store=url)
    after = open_store(url).stamps()
    assert len(after) == len(before) + 1
    assert before.items() <= after.items()


def test_of_many_that_are_there_already_the_rest_is_saved(url: str) -> None:
    first, second = (Session.from_user_message(text) for text in ("one", "two"))
    store = open_store(url)
    theirs = store.create(second.id)
    with pytest.raises(SessionBusy):
        save_many([first, second], store=store)
    theirs.abandon()
    save_many([first, second], store=store)
    assert {first.id, second.id} <= set(store.stamps())


def test_a_log_is_indexed_once_for_all_machines(
    url: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    new = [Session.from_user_message(f"question {number}") for number in range(20)]
    ran = run(new[0], tool_call("echo"), "an answer with a pelican").synchronize()
    save_many(new, store=url)
    store = open_store(url)
    n_logs = len(store.stamps())

    def ask(machine: str) -> list[object]:
        with StoreIndex(store, path=tmp_path / machine / "index.sqlite3") as index:
            calls = index.calls([ran.id])
            return [index.summaries(), index.search("pelican"), index.runs(), calls]

    answers: list[list[object]] = []
    first = statements(postgres, lambda: answers.append(ask("first")))
    second = statements(postgres, lambda: answers.append(ask("second")))
    assert first > 2 * n_logs  # once for the facts, once for the text
    assert second <= 8
    assert answers[0] == answers[1]
    assert answers[1][1]
    # What changes is read again, and what cannot be understood is not believed.
    with postgres.connect() as connection:
        schema = url.partition("schema=")[2].partition("&")[0]
        connection.execute(f"UPDATE {schema}.facts SET data = '\\x00'")
    assert ask("third") == answers[0]
    store.delete(new[1].id)
    assert len(ask("fourth")[0]) == n_logs - 1  # type: ignore[arg-type]
