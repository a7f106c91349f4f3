"""Sessions read while their runs go on, here and in another process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rath.errors import PersistenceError, SelfWaitError
from rath.flow import Agent
from rath.llm import Provider, RathLLMStreamDelta, register_chat_client
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMAssistantMessage, RathLLMChatResponse
from rath.session import ChunkRow, RowId, Session
from rath.session.outcome import Cancelled, Completed, NeedsDecision
from rath.session.persistence.store import FileStore
from rath.session.record import ModelCall, Operation, ToolRun
from rath.session.streaming import SessionStream, StreamEvent, TextDelta, ToolEnd, ToolStart
from rath.testing import ScriptedClient, tool_call
from tests.support.logs import session_in_a_call
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import PATIENCE, wait_until


async def read(session: Session) -> list[StreamEvent]:
    return [event async for event in session.stream()]


def rows(events: list[StreamEvent]) -> list[ChunkRow]:
    return [event for event in events if isinstance(event, ChunkRow)]


def entries(events: list[StreamEvent]) -> list[StreamEvent]:
    others = (ChunkRow, TextDelta, ToolStart, ToolEnd)
    return [event for event in events if not isinstance(event, others)]


def text_of(events: list[StreamEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


class Gate:
    """A tool that waits until it is let through."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.tool = FunctionTool("gate", self._wait)

    def _wait(self, *_: object) -> str:
        wait_until(self._path.exists, "nobody opens the gate")
        return "open"

    def open(self) -> None:
        self._path.touch()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.open()


def test_a_session_that_has_ended_gives_all_it_has() -> None:
    session = run([tool_call("f", {}, id="1"), "done"], FunctionTool("f", lambda *_: "yes"))
    events = asyncio.run(read(session.synchronize()))
    assert rows(events) == list(session.chunk_table)
    assert entries(events) == list(session.record)


def test_each_of_several_readers_gets_all_at_its_own_pace(gate: Gate) -> None:
    session = run([tool_call("gate", {}, id="1"), "done"], gate.tool)

    async def slow() -> list[StreamEvent]:
        events: list[StreamEvent] = []
        async for event in session.stream():
            events.append(event)
            gate.open()
            await asyncio.sleep(0)
        return events

    async def main() -> list[list[StreamEvent]]:
        async with asyncio.timeout(PATIENCE):
            return [*await asyncio.gather(read(session), slow(), read(session))]

    first, *others = asyncio.run(main())
    assert [type(event) for event in first if isinstance(event, ModelCall | ToolRun | Operation)]
    for events in (first, *others):
        assert rows(events) == list(session.chunk_table)
        assert entries(events) == [*session.record]


class WordByWord:
    """A model that says the next word when the one before was read."""

    provider = Provider(provider_kind="word-by-word", model="own")

    def __init__(self, *words: str) -> None:
        self._words = words
        self.was_read = threading.Semaphore(0)

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        raise NotImplementedError("the answer is asked for as a stream")

    def complete_stream(self, req: RathLLMChatRequest) -> Iterator[RathLLMStreamDelta]:
        for word in self._words:
            yield RathLLMStreamDelta(content_delta=word)
            assert self.was_read.acquire(timeout=PATIENCE)
        yield RathLLMStreamDelta(finish_reason="stop")

    def let_go_on(self, event: StreamEvent) -> None:
        if isinstance(event, TextDelta):
            for _ in range(sum(event.text.count(word) for word in self._words)):
                self.was_read.release()


def streamed_words(agent: Agent, model: WordByWord, *, awaited: bool) -> list[StreamEvent]:
    events: list[StreamEvent] = []

    async def read_along() -> None:
        async for event in agent(Session.from_user_message("go")).stream():
            events.append(event)
            model.let_go_on(event)

    if awaited:
        asyncio.run(asyncio.wait_for(read_along(), PATIENCE))
        return events
    for event in agent(Session.from_user_message("go")).stream():
        events.append(event)
        model.let_go_on(event)
    return events


@pytest.mark.parametrize("awaited", [True, False], ids=["async for", "for"])
def test_text_comes_while_the_answer_does(tmp_path: Path, awaited: bool) -> None:
    model = WordByWord("one ", "two ", "three")
    register_chat_client("word-by-word", lambda _: model)
    agent = Agent(
        "You answer.", model.provider, system_tools=False, streaming=True, store=str(tmp_path)
    )
    events = streamed_words(agent, model, awaited=awaited)
    texts = [event for event in events if isinstance(event, TextDelta)]
    assert text_of(events) == "one two three"
    assert len(texts) > 1
    assert rows(events)[-1].payload["content"] == "one two three"
    assert rows(events)[-1].id == RowId(texts[0].session, 1)


def test_an_answer_is_streamed_where_somebody_reads(gate: Gate) -> None:
    client = ScriptedClient([tool_call("gate", {}, id="1"), "done"])
    agent = Agent("You answer.", client.provider, [gate.tool], system_tools=False)
    session = agent(Session.from_user_message("go"))
    stream = session.stream()
    gate.open()
    assert text_of(list(stream)) == "done"
    _, last = [entry for entry in session.record if isinstance(entry, ModelCall)]
    assert last.evidence.parameters["stream"] is True
    quiet = Agent("You answer.", ScriptedClient(["done"]).provider, streaming=False)
    unread = quiet(Session.from_user_message("go"))
    assert text_of(list(unread.stream())) == "done"
    (call,) = [entry for entry in unread.record if isinstance(entry, ModelCall)]
    assert "stream" not in call.evidence.parameters


def test_a_client_that_cannot_stream_gives_its_text_at_once() -> None:
    register_chat_client("whole", lambda _: Whole())
    agent = Agent("You answer.", Whole.provider, system_tools=False)
    assert text_of(list(agent(Session.from_user_message("go")).stream())) == "whole"


class Whole:
    provider = Provider(provider_kind="whole", model="own")

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        return ScriptedClient(["whole"]).complete(req)


def test_only_the_text_of_the_run_itself_is_told() -> None:
    session = run(["one"])
    later = run(["two"], user=session.say("and now?")).synchronize()
    events = list(later.stream())
    assert text_of(events) == "two"
    assert rows(events) == list(later.chunk_table)


class Held:
    """A turn that is given once somebody reads."""

    def __init__(self, turn: RathLLMAssistantMessage) -> None:
        self._turn = turn
        self._is_read = threading.Event()

    def __call__(self, _: RathLLMChatRequest) -> RathLLMAssistantMessage:
        assert self._is_read.wait(PATIENCE)
        return self._turn

    def let_go(self, stream: SessionStream) -> SessionStream:
        self._is_read.set()
        return stream


def test_tool_calls_have_a_start_and_an_end(gate: Gate) -> None:
    turn = tool_call("gate", {"n": 1}, tool_call("lost", "{broken", id="b"), id="a", content="So.")
    model = Held(turn)
    session = run([model, "done"], gate.tool)
    events: list[StreamEvent] = []
    for event in model.let_go(session.stream()):
        events.append(event)
        if isinstance(event, ToolStart) and event.tool == "gate":
            assert session.is_pending
            gate.open()
    starts = {one.call_id: one for one in events if isinstance(one, ToolStart)}
    ends = {one.call_id: one for one in events if isinstance(one, ToolEnd)}
    assert starts["a"] == ToolStart(session.id, "a", "gate", {"n": 1})
    assert starts["b"] == ToolStart(session.id, "b", "lost", {})
    assert (ends["a"].status, ends["a"].text, ends["b"].status) == ("done", '"open"', "failed")
    for call_id, start in starts.items():
        assert events.index(start) < events.index(ends[call_id])
    # Whoever reads it later is told the same, in the order of the record.
    later = [one for one in session.stream() if isinstance(one, TextDelta | ToolStart | ToolEnd)]
    assert later == [
        TextDelta("So.", session.id),
        *(starts["a"], ends["a"], starts["b"], ends["b"]),
        TextDelta("done", session.id),
    ]


def test_calls_of_an_agent_inside_a_call_name_its_session() -> None:
    inner_sessions: list[Session] = []
    is_read = threading.Event()

    def ask(session: Session, _: object) -> str | None:
        # Who reads later is told both in the order in which they end.
        assert is_read.wait(PATIENCE)
        looking = FunctionTool("look", lambda *_: "seen")
        inner_sessions.append(
            run([tool_call("look", id="i"), "found"], looking, user=session.delegate("look"))
        )
        return inner_sessions[-1].text()

    model = Held(tool_call("ask", id="o"))
    out = run([model, "done"], FunctionTool("ask", ask))
    starts: list[ToolStart] = []
    for event in model.let_go(out.stream()):
        if isinstance(event, ToolStart):
            starts.append(event)
            is_read.set()
    assert [(one.call_id, one.session) for one in starts] == [
        ("o", out.id),
        ("i", inner_sessions[0].id),
    ]


def test_leaving_the_reading_leaves_the_run_alone(gate: Gate) -> None:
    session = run([tool_call("gate", {}, id="1"), "done"], gate.tool)

    async def first_event() -> StreamEvent:
        stream = session.stream()
        try:
            return await anext(stream)
        finally:
            await stream.aclose()

    asyncio.run(first_event())
    assert not session.core.body.is_watched
    gate.open()
    assert session.text() == "done"


def test_a_run_does_not_read_itself_to_its_end() -> None:
    errors: list[BaseException] = []
    sessions: list[Session] = []

    async def read_own() -> None:
        async for _ in sessions[0].stream():
            pass

    def own(*_: object) -> str:
        wait_until(lambda: bool(sessions), "the session is not known")
        try:
            asyncio.run(read_own())
        except SelfWaitError as exc:
            errors.append(exc)
        return "read"

    sessions.append(run([tool_call("f", {}, id="1"), "done"], FunctionTool("f", own)))
    assert sessions[0].text() == "done"
    assert len(errors) == 1


def test_the_error_of_a_run_that_fails_is_raised_at_its_end() -> None:
    session = run([RuntimeError("the endpoint is gone")])
    events: list[StreamEvent] = []

    async def main() -> None:
        async for event in session.stream():
            events.append(event)  # those before the error

    with pytest.raises(RuntimeError, match="the endpoint is gone"):
        asyncio.run(main())


# ---- elsewhere

CHILD = """
import sys
from pathlib import Path
from rath.flow import Agent
from rath.session import Session
from rath.testing import ScriptedClient, tool_call
from tests.session.test_streaming import Gate
from uuid import UUID
store, gate = sys.argv[1:]
tool = Gate(Path(gate)).tool
client = ScriptedClient([tool_call("gate", {}, id="1"), "done elsewhere"])
agent = Agent("You answer.", client.provider, [tool], system_tools=False, store=store)
agent.run(Session.from_user_message("go"), run=UUID(int=7), store=store).synchronize()
"""


class Elsewhere:
    """A run in another process, which waits at a gate."""

    def __init__(self, directory: Path) -> None:
        self.store = FileStore(directory / "store")
        self.gate = Gate(directory / "gate elsewhere")
        command = [sys.executable, "-c", CHILD, str(self.store.directory)]
        self.process = subprocess.Popen(
            [*command, str(directory / "gate elsewhere")], cwd=Path(__file__).parents[2]
        )
        self.session = ""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Elsewhere]:
    other = Elsewhere(tmp_path)

    def is_running() -> bool:
        other.session = session_in_a_call(other.store.directory) or ""
        return bool(other.session)

    try:
        wait_until(is_running, "the other process does not begin")
        yield other
    finally:
        other.gate.open()
        other.process.kill()
        other.process.wait()


def test_a_session_is_followed_to_its_end(elsewhere: Elsewhere) -> None:
    session = Session.follow(elsewhere.session, store=elsewhere.store)
    assert session.is_pending

    async def main() -> list[Any]:
        events: list[StreamEvent] = []
        async with asyncio.timeout(PATIENCE):
            async for event in session.stream():
                events.append(event)
                elsewhere.gate.open()
        return events

    events = asyncio.run(main())
    assert (session.text(), session.outcome) == ("done elsewhere", Completed())
    assert rows(events) == list(session.chunk_table)
    assert any(isinstance(event, ToolRun) for event in events)


def test_a_writer_that_dies_leaves_what_it_wrote(elsewhere: Elsewhere) -> None:
    session = Session.follow(elsewhere.session, store=str(elsewhere.store.directory))
    elsewhere.process.kill()
    assert isinstance(session.outcome, NeedsDecision)
    assert len(session.chunk_table) == 2


def test_cancelling_ends_the_reading_alone(elsewhere: Elsewhere) -> None:
    session = Session.follow(elsewhere.session, store=elsewhere.store)
    session.cancel().synchronize()
    assert not isinstance(session.outcome, Cancelled)
    again = Session.follow(elsewhere.session, store=elsewhere.store)
    elsewhere.gate.open()
    assert again.text() == "done elsewhere"


def test_the_end_of_a_program_that_follows_does_not_wait_for_the_run(
    elsewhere: Elsewhere,
) -> None:
    program = f"""
from rath.session import Session
session = Session.follow({elsewhere.session!r}, store={str(elsewhere.store.directory)!r})
assert session.is_pending
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)
    assert elsewhere.process.poll() is None


def test_what_has_ended_is_there_at_once(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    session = run(["done"])
    session.save(store=store)
    assert not Session.follow(session.id, store=store).is_pending
    with pytest.raises(PersistenceError):
        Session.follow("00000000-0000-4000-8000-000000000001", store=store)
