"""Servers of one store: each sees the runs of the others, and goes on with none of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import openai
import pytest

from rath.flow import Agent
from rath.serving import Principal, ServerOptions, TokenFile, asgi
from rath.session import Session
from rath.session.persistence.store import FileStore
from rath.testing import ScriptedClient, tool_call
from tests.serving.test_a2a_api import Talk, text, used
from tests.serving.test_mcp_api import asked
from tests.support.serving import listening
from tests.support.sessions import FunctionTool
from tests.support.waiting import PATIENCE, wait_until


class Elsewhere:
    """A session that another server of the store goes on with, in a tool that waits."""

    def __init__(self, home: Path, *, n_runs: int = 1) -> None:
        self.home = home
        self.tokens = TokenFile(home / "serve" / "tokens.json")
        self.n_begun = 0
        self.may_end = threading.Event()
        self.tool = tool = FunctionTool("work", self._work)
        tool.approval = "always"
        script = ScriptedClient([tool_call("work"), "done"] * n_runs)
        self.agent = Agent("x", script.provider, [tool], system_tools=False, description="Works.")
        self.store = FileStore(home / "sessions")

    async def _work(self, *_: object) -> str:
        self.n_begun += 1
        await asyncio.to_thread(self.may_end.wait, PATIENCE)
        return "worked"

    def app(self, store: FileStore | None = None) -> Any:
        options = ServerOptions(tokens=self.tokens, store=store or self.store)
        return asgi({"team": self.agent}, options)

    def approve(self, session_id: str) -> None:
        session = Session.load(session_id, store=self.store)
        session.approve(session.open_calls[0])


def client(url: str, token: str = "any") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0, timeout=PATIENCE)


def go_on(url: str, session_id: str, said: str = "") -> Any:
    with client(url) as using:
        return using.responses.create(model="team", input=said, previous_response_id=session_id)


class Held:
    """What a test needs of a session that runs elsewhere."""

    def __init__(self, url: str, elsewhere: Elsewhere, session_id: str, other: Future[Any]) -> None:
        self.url = url
        self.session_id = session_id
        self.store = elsewhere.store
        self.other = other
        self._elsewhere = elsewhere

    def end(self) -> str:
        """Let the other server end its run, and return what it answers."""
        self._elsewhere.may_end.set()
        return str(self.other.result(PATIENCE).output_text)


@pytest.fixture
def held(tmp_path: Path) -> Generator[Held]:
    elsewhere = Elsewhere(tmp_path)
    with (
        listening(elsewhere.app()) as other,
        listening(elsewhere.app()) as url,
        ThreadPoolExecutor(1) as pool,
    ):
        with client(url) as using:
            waits = using.responses.create(model="team", input="hello")
        session_id = waits.id.split("_")[1]
        elsewhere.approve(session_id)
        running = pool.submit(go_on, other, session_id)
        wait_until(lambda: elsewhere.n_begun == 1)
        try:
            yield Held(url, elsewhere, session_id, running)
        finally:
            elsewhere.may_end.set()


@pytest.mark.parametrize("said", ["", "more"], ids=["on", "more"])
def test_a_response_that_runs_elsewhere_is_a_conflict(held: Held, said: str) -> None:
    with pytest.raises(openai.ConflictError, match="still runs") as caught:
        go_on(held.url, held.session_id, said)
    assert caught.value.code == "conflict"
    assert "sessions/" not in str(caught.value)
    assert held.end() == "done"


def test_a_response_that_runs_elsewhere_is_read_as_it_comes(held: Held) -> None:
    with client(held.url) as using:
        assert using.responses.retrieve(f"resp_{held.session_id}").status == "in_progress"
        stream = using.responses.retrieve(f"resp_{held.session_id}", stream=True)
        events = iter(stream)
        assert next(events).type == "response.created"
        held.end()
        *_, last = events
    assert last.type == "response.completed"
    assert last.response.output_text == "done"
    assert last.response.usage is not None


def test_a_chat_that_runs_elsewhere_is_waited_for(held: Held) -> None:
    url = f"{held.url}/v1/chat/completions/chatcmpl-{held.session_id}"
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(httpx2.get, url, timeout=PATIENCE)
        held.end()
        answer = asking.result().json()
    assert answer["choices"][0]["message"]["content"] == "done"


def test_what_runs_elsewhere_is_not_cancelled_here(held: Held) -> None:
    with client(held.url) as using, pytest.raises(openai.ConflictError, match="another process"):
        using.responses.cancel(f"resp_{held.session_id}")
    assert held.end() == "done"


def test_an_interrupt_of_what_runs_elsewhere_is_a_conflict(held: Held) -> None:
    call = Session.load(held.session_id, store=held.store).open_calls[0]
    entry = {
        "interruptId": f"call_{held.session_id}_{call.row}_{call.index}",
        "status": "resolved",
        "payload": {"decision": "approve"},
    }
    body = {"threadId": "t", "runId": "r", "messages": [], "resume": [entry]}
    answer = httpx2.post(f"{held.url}/agui/team", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert "still runs" in answer.json()["error"]["message"]


def test_a_tool_call_for_what_runs_elsewhere_is_refused(held: Held) -> None:
    answer = asked(f"{held.url}/mcp/team", "any", "", session_id=held.session_id)
    assert (answer["outcome"], "in use" in answer["text"]) == ("refused", True)


def test_a_response_in_the_background_of_another_server_is_in_progress(tmp_path: Path) -> None:
    elsewhere = Elsewhere(tmp_path)
    elsewhere.tool.approval = "never"
    with listening(elsewhere.app()) as other, listening(elsewhere.app()) as url:
        with client(other) as using:
            begun = using.responses.create(model="team", input="hello", background=True)
        wait_until(lambda: elsewhere.n_begun == 1)
        try:
            with client(url) as using:
                assert using.responses.retrieve(begun.id).status == "in_progress"
                with pytest.raises(openai.ConflictError, match="another process"):
                    using.responses.cancel(begun.id)
                elsewhere.may_end.set()
                wait_until(lambda: using.responses.retrieve(begun.id).status == "completed")
                assert using.responses.retrieve(begun.id).output_text == "done"
        finally:
            elsewhere.may_end.set()


@contextmanager
def two_clients(
    elsewhere: Elsewhere, token: str = "any", store: FileStore | None = None
) -> Generator[tuple[openai.OpenAI, openai.OpenAI]]:
    """Yield clients of two servers of one store, whose runs end in the end.

    Args:
        elsewhere: The workflow of both.
        token: Of both clients.
        store: The store as the second server sees it.
    """
    elsewhere.tool.approval = "never"
    with (
        listening(elsewhere.app()) as one,
        listening(elsewhere.app(store)) as two,
        client(one, token) as first,
        client(two, token) as second,
    ):
        try:
            yield first, second
        finally:
            elsewhere.may_end.set()


def test_a_response_in_the_background_is_known_to_each_server_at_once(tmp_path: Path) -> None:
    elsewhere = Elsewhere(tmp_path, n_runs=10)
    elsewhere.may_end.set()
    with two_clients(elsewhere) as (asking, reading):
        for _ in range(10):
            begun = asking.responses.create(model="team", input="hello", background=True)
            assert reading.responses.retrieve(begun.id).status in ("in_progress", "completed")


def test_a_response_that_was_cancelled_goes_on_at_no_server(tmp_path: Path) -> None:
    elsewhere = Elsewhere(tmp_path)
    elsewhere.tool.effects = "idempotent"
    with two_clients(elsewhere) as (asking, reading):
        begun = asking.responses.create(model="team", input="hello", background=True)
        wait_until(lambda: elsewhere.n_begun == 1)
        asking.responses.cancel(begun.id)
        wait_until(lambda: asking.responses.retrieve(begun.id).status == "cancelled")
        wait_until(lambda: reading.responses.retrieve(begun.id).status == "cancelled")
        assert reading.responses.cancel(begun.id).status == "cancelled"
    assert elsewhere.n_begun == 1


def test_a_response_that_has_ended_is_read_by_who_may_run_no_more(tmp_path: Path) -> None:
    elsewhere = Elsewhere(tmp_path, n_runs=2)
    token = elsewhere.tokens.add(Principal(name="me", max_runs=1))
    with two_clients(elsewhere, token) as (asking, reading):
        ended = asking.responses.create(model="team", input="hello", background=True)
        elsewhere.may_end.set()
        wait_until(lambda: asking.responses.retrieve(ended.id).status == "completed")
        elsewhere.may_end.clear()
        reading.responses.create(model="team", input="hello", background=True)
        wait_until(lambda: elsewhere.n_begun == 2)
        wait_until(lambda: reading.responses.retrieve(ended.id).status == "completed")


class Unaware(FileStore):
    """Says that nobody writes a log, as a moment before somebody begins."""

    n_looks = 0

    def is_being_written(self, session: UUID) -> bool:
        self.n_looks += 1
        return self.n_looks > 1 and super().is_being_written(session)


def test_a_response_that_starts_between_two_reads_is_in_progress(tmp_path: Path) -> None:
    elsewhere = Elsewhere(tmp_path)
    with two_clients(elsewhere, store=Unaware(tmp_path / "sessions")) as (asking, reading):
        begun = asking.responses.create(model="team", input="hello", background=True)
        wait_until(lambda: elsewhere.n_begun == 1)
        states = {reading.responses.retrieve(begun.id).status for _ in range(20)}
        assert states == {"in_progress"}
        elsewhere.may_end.set()
        wait_until(lambda: reading.responses.retrieve(begun.id).status == "completed")


def test_a_task_that_goes_on_elsewhere_still_waits(tmp_path: Path) -> None:
    elsewhere = Elsewhere(tmp_path)

    async def use(talk: Talk) -> tuple[str, str]:
        waits = await talk.send(text("hello"))
        session_id = str(waits.metadata["session_id"])
        elsewhere.approve(session_id)
        with listening(elsewhere.app()) as other:
            running = asyncio.ensure_future(asyncio.to_thread(go_on, other, session_id))
            await asyncio.to_thread(wait_until, lambda: elsewhere.n_begun == 1)
            try:
                refused = await talk.send(text("go on", after=waits))
            finally:
                elsewhere.may_end.set()
            done = await running
        return refused.status.message.parts[0].text, done.output_text

    problem, answer = used(elsewhere.agent, tmp_path, use)
    assert ("still runs" in problem, answer) == (True, "done")
