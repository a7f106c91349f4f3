"""Servers of one store: each sees the runs of the others, and goes on with none of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from rath.flow import Agent
from rath.serving import ServerOptions, TokenFile, asgi
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

    def __init__(self, home: Path) -> None:
        self.home = home
        self.n_begun = 0
        self.may_end = threading.Event()
        self.tool = tool = FunctionTool("work", self._work)
        tool.approval = "always"
        script = ScriptedClient([tool_call("work"), "done"])
        self.agent = Agent("x", script.provider, [tool], system_tools=False, description="Works.")
        self.store = FileStore(home / "sessions")

    async def _work(self, *_: object) -> str:
        self.n_begun += 1
        await asyncio.to_thread(self.may_end.wait, PATIENCE)
        return "worked"

    def app(self) -> Any:
        tokens = TokenFile(self.home / "serve" / "tokens.json")
        return asgi({"team": self.agent}, ServerOptions(tokens=tokens, store=self.store))

    def approve(self, session_id: str) -> None:
        session = Session.load(session_id, store=self.store)
        session.approve(session.open_calls[0])


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=PATIENCE)


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
