"""A workflow that is served over HTTP, called by a client that is not ours."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import anyio
import httpx2
import pytest
from mcp.client.client import Client

from rath.session import Session
from rath.session.outcome import Cancelled, Completed, NeedsApproval
from rath.session.persistence.store import FileStore
from tests.support.serving import ROOT, ask, environment, http_process, told
from tests.support.sessions import run
from tests.support.waiting import PATIENCE, wait_until


class Served(NamedTuple):
    url: str
    home: Path

    @property
    def store(self) -> FileStore:
        return FileStore(self.home / "sessions")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("served")
    with http_process(home) as (_, url):
        yield Served(url, home)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_tool_says_what_it_is_and_takes(served: Served, mode: str) -> None:
    async def look(client: Client) -> Any:
        return (await client.list_tools()).tools

    (tool,) = ask(served.url, look, mode=mode)
    assert (tool.name, tool.description) == ("team", "Says again what is said.")
    assert list(tool.input_schema["properties"]) == ["message", "session_id"]
    assert tool.output_schema is not None


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_call_answers_and_its_session_loads_elsewhere(served: Served, mode: str) -> None:
    answer = told(served.url, "hello", mode=mode)
    assert (answer["text"], answer["outcome"], answer["is_error"]) == (
        "1: hello",
        "completed",
        False,
    )
    assert answer["usage"]["total_tokens"] > 0
    session = Session.load(answer["session_id"], store=served.store)
    assert (session.text(), session.outcome) == ("1: hello", Completed())
    assert session.replay().text() == "1: hello"


def test_the_command_line_explains_the_session_of_a_call(served: Served) -> None:
    session = told(served.url, "hello")["session_id"]
    done = subprocess.run(
        [sys.executable, "-m", "rath", "explain", session],
        env=environment(served.home),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 model call, 1 request proved" in done.stdout


def test_a_call_goes_on_with_the_session_of_another(served: Served) -> None:
    first = told(served.url, "hello")["session_id"]
    second = told(served.url, "more", session_id=first)
    third = told(served.url, "still", session_id=second["session_id"])
    assert (second["text"], third["text"]) == ("2: more", "3: still")


def test_a_client_is_reported_of_each_step(served: Served) -> None:
    told_of: list[tuple[float, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told_of.append((progress, message))

    async def call(client: Client) -> Any:
        return await client.call_tool("team", {"message": "print"}, progress_callback=note)

    ask(served.url, call)
    assert [message for _, message in told_of] == [
        "scripted: turn done",
        "tool print: done",
        "scripted: turn done",
    ]
    assert [progress for progress, _ in told_of] == [1, 2, 3]


def test_a_run_that_fails_is_an_error_with_its_session(served: Served) -> None:
    answer = told(served.url, "fail")
    assert (answer["is_error"], answer["outcome"]) == (True, "failed")
    assert "the endpoint is gone" in answer["text"]
    assert Session.load(answer["session_id"], store=served.store).chunk_table[0].payload == {
        "content": "fail"
    }


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_that_cancels_ends_the_run(served: Served, mode: str) -> None:
    async def call(client: Client) -> None:
        begun = anyio.Event()

        async def note(progress: float, total: float | None, message: str | None) -> None:
            if progress == 2:
                begun.set()

        async with anyio.create_task_group() as group:

            async def wait() -> None:
                await client.call_tool("team", {"message": "wait"}, progress_callback=note)

            group.start_soon(wait)
            await begun.wait()
            group.cancel_scope.cancel()
        # Another call is answered meanwhile, and after it.
        await client.call_tool("team", {"message": "hello"})

    ask(served.url, call, mode=mode)
    session = (served.home / "begun").read_text()
    ended = _ended(served.store, session)
    assert isinstance(ended.outcome, Cancelled)
    refused = told(served.url, "more", session_id=session)
    assert "was cancelled; go on with it first" in refused["text"]


def _ended(store: FileStore, session: str) -> Session:
    """Load a session whose run was cancelled, once the other process has written so."""
    wait_until(lambda: isinstance(Session.load(session, store=store).outcome, Cancelled))
    return Session.load(session, store=store)


def test_a_run_that_waits_goes_on_once_that_is_reported(served: Served) -> None:
    waiting = told(served.url, "act")
    assert (waiting["outcome"], waiting["is_error"]) == ("needs_approval", False)
    assert "waits for somebody to allow the calls" in waiting["waits_for"]
    session = waiting["session_id"]
    assert "waits, or was cut off" in told(served.url, "more", session_id=session)["text"]
    assert told(served.url, "", session_id=session)["outcome"] == "needs_approval"
    stored = Session.load(session, store=served.store)
    assert isinstance(stored.outcome, NeedsApproval)
    stored.approve(stored.outcome.calls[0])
    done = told(served.url, "", session_id=session)
    assert (done["outcome"], done["session_id"], done["text"]) == ("completed", session, "1: act")


def test_many_calls_run_at_once(served: Served) -> None:
    async def call(client: Client) -> list[Any]:
        answers: list[Any] = []

        async def one(number: int) -> None:
            result = await client.call_tool("team", {"message": f"no {number}"})
            answers.append(result.structured_content)

        async with anyio.create_task_group() as group:
            for number in range(30):
                group.start_soon(one, number)
        return answers

    answers = ask(served.url, call)
    assert sorted(each["text"] for each in answers) == sorted(f"1: no {n}" for n in range(30))
    assert len({each["session_id"] for each in answers}) == 30


def test_a_session_that_the_server_did_not_make_is_not_there(served: Served) -> None:
    private = run(["a secret"])
    private.save(store=served.store)
    unknown = uuid4()
    texts = [
        told(served.url, "what?", session_id=str(each))["text"] for each in (private.id, unknown)
    ]
    assert texts[0].replace(str(private.id), "X") == texts[1].replace(str(unknown), "X")


BODY = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"host": "evil.example"}, 421), ({"origin": "http://evil.example"}, 403)],
    ids=["host", "origin"],
)
def test_a_page_in_a_browser_does_not_reach_it(
    served: Served, headers: dict[str, str], status: int
) -> None:
    answer = httpx2.post(served.url, content=BODY, headers={**HEADERS, **headers})
    assert answer.status_code == status


def test_a_body_that_is_too_large_is_refused(served: Served) -> None:
    answer = httpx2.post(served.url, content=b"x" * 5_000_000, headers=HEADERS)
    assert answer.status_code == 413


def test_only_who_knows_the_token_gets_in(tmp_path: Path) -> None:
    token = "t0ken-canary"
    with http_process(tmp_path, "--token-env", "SERVED_TOKEN", SERVED_TOKEN=token) as (_, url):
        for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": token}):
            answer = httpx2.post(url, content=BODY, headers={**HEADERS, **given})
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert token not in answer.text
        right = {"authorization": f"Bearer {token}"}
        assert told(url, "hello", headers=right)["text"] == "1: hello"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_it_ends_under_a_call_that_goes_on_and_its_sessions_load(
    tmp_path: Path, how: signal.Signals
) -> None:
    codes = list[int]()
    with http_process(tmp_path) as (process, url):

        async def call(client: Client) -> None:
            begun = anyio.Event()

            async def note(progress: float, total: float | None, message: str | None) -> None:
                if progress == 2:
                    begun.set()

            async def wait() -> None:
                # Its connection breaks, or it is told that the run was cancelled.
                with contextlib.suppress(Exception):
                    await client.call_tool("team", {"message": "wait"}, progress_callback=note)

            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await begun.wait()
                process.send_signal(how)
                # The call would wait ten times as long.
                codes.append(await anyio.to_thread.run_sync(process.wait, PATIENCE))
                group.cancel_scope.cancel()

        # The client may still want to tell the server that it has gone.
        with contextlib.suppress(Exception):
            ask(url, call)
    assert codes == [0]
    session = Session.load((tmp_path / "begun").read_text(), store=FileStore(tmp_path / "sessions"))
    assert isinstance(session.outcome, Cancelled)
    assert [row.kind_name for row in session.chunk_table] == ["user", "assistant", "tool_result"]
