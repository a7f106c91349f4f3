"""What a stream has said is written now and then, and prices are loaded only where they matter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.llm import Provider
from rath.llm.chat_response import RathLLMStreamDelta
from rath.llm.endpoint import is_loopback
from rath.llm.registry import chat_client_for
from rath.session import Session
from rath.session.persistence.store import FileStore
from rath.testing import ScriptedClient
from tests.support.api import WRITE_CHARS, Candidate, RunLog, load_prices, prices_module, watched
from tests.support.chat_replies import completion
from tests.support.chat_server import ChatServer
from tests.support.sessions import run


class Notes(RunLog):
    """Remembers what it is told to write."""

    def __init__(self, *, is_listening: bool = True) -> None:
        self.texts: list[str] = []
        self.is_listening = is_listening

    @property
    def is_recorded(self) -> bool:
        return self.is_listening

    def add_partial(self, operation: object, text: str) -> None:
        self.texts.append(text)


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def said(text: str | None) -> RathLLMStreamDelta:
    return RathLLMStreamDelta(content_delta=text)


@given(steps=st.lists(st.tuples(st.text(max_size=9), st.floats(0, 0.3)), max_size=30))
def test_what_is_written_is_the_beginning_of_what_was_said(steps: list[tuple[str, float]]) -> None:
    notes, clock, heard = Notes(), Clock(), list[str | None]()

    def hear(delta: RathLLMStreamDelta) -> Awaitable[None] | None:
        heard.append(delta.content_delta)
        return None

    sink = watched(hear, notes, Session.create("empty").id, clock=clock)
    assert sink is not None
    for text, seconds in steps:
        clock.now += seconds
        sink(said(text))
    whole = "".join(text for text, _ in steps)
    written = "".join(notes.texts)
    assert whole.startswith(written)
    assert heard == [text for text, _ in steps]
    assert len(notes.texts) <= clock.now / 0.5


def test_much_text_is_written_at_once() -> None:
    notes = Notes()
    sink = watched(lambda _: None, notes, Session.create("empty").id, clock=Clock())
    assert sink is not None
    sink(said("x" * (WRITE_CHARS - 1)))
    sink(said(None))
    assert notes.texts == []
    sink(said("y"))
    assert notes.texts == ["x" * (WRITE_CHARS - 1) + "y"]


def test_a_stream_of_a_run_is_written_while_it_goes_on() -> None:
    long = [said("a" * WRITE_CHARS), said("b" * WRITE_CHARS)]
    end = RathLLMStreamDelta(finish_reason="stop")

    def hear(_: RathLLMStreamDelta) -> None:
        return None

    out = run([[*long, end]], on_event=hear, persist=True).synchronize()
    lines = FileStore().path(out.id).read_bytes().splitlines()
    texts = [one["text"] for one in map(json.loads, lines) if one.get("event") == "partial"]
    assert texts == ["a" * WRITE_CHARS, "b" * WRITE_CHARS]
    assert Session.load(out.id).chunk_table == out.chunk_table


def test_nothing_listens_where_nothing_is_recorded() -> None:
    def sink(_: RathLLMStreamDelta) -> None:
        return None

    assert watched(sink, Notes(is_listening=False), Session.create("empty").id) is sink
    assert watched(None, Notes(), Session.create("empty").id) is None


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        ("https://127.0.0.1:8000/v1", True),
        ("https://localhost/v1", True),
        ("https://api.localhost.", True),
        ("http://[::1]:80", True),
        ("https://api.openai.com/v1", False),
        ("https://localhost.example/v1", False),
        (None, False),
    ],
)
def test_an_endpoint_on_this_machine_is_known(url: str | None, is_here: bool) -> None:
    assert is_loopback(url) is is_here


_CODE = """
import sys
from rath.llm import Provider
from rath.session import Session, run_session_loop
provider = Provider(model="gpt-5-mini", api_key="x", base_url=sys.argv[1])
run_session_loop(
    Session.from_user_message("hi"), Session.from_agent_prompt("."), agent_provider=provider,
    persist=True,
).synchronize()
print("genai_prices" in sys.modules)
"""


def test_a_model_on_this_machine_loads_no_prices() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with ChatServer() as server:
        server.queue(completion("hello"))
        done = subprocess.run(
            [sys.executable, "-c", _CODE, server.base_url],
            env=env, check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.stdout == "False\n"


def test_a_model_that_somebody_sells_has_its_prices_loaded_beside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs: list[object] = []

    class Workers:
        def start_in_worker(self, job: object) -> None:
            jobs.append(job)
            assert callable(job)
            job()

    monkeypatch.setattr(prices_module, "runtime", Workers)
    monkeypatch.delitem(sys.modules, "rath.llm.price_list", raising=False)
    provider = Provider(model="gpt-5-mini", api_key="x", base_url="https://api.openai.com/v1")
    load_prices([Candidate(chat_client_for(provider), provider)])
    assert "rath.llm.price_list" in sys.modules
    load_prices([Candidate(chat_client_for(provider), provider)])
    scripted = ScriptedClient([])
    load_prices([Candidate(scripted, scripted.provider)])
    assert len(jobs) == 1
