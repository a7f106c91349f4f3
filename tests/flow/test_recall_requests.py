"""Recalled notes in the bodies that vendors get: one message, and nothing else is changed by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from rath import flow
from rath.llm import Provider, RathLLMStreamDelta
from rath.llm.body import to_json
from rath.memory import MemoryFindResult, MemoryHit, MemoryOp, MemoryOpFind, MemoryResult
from rath.session import ChunkTable, Session, user_text_chunk
from rath.session.record import ModelCall
from rath.testing import ScriptedClient, tool_call
from tests.support import anthropic_replies, chat_replies
from tests.support.asking import KEY
from tests.support.chat_replies import Reply
from tests.support.chat_server import ChatServer
from tests.support.fake_memory import FakeMemory
from tests.support.sessions import FunctionTool

ECHO = FunctionTool("echo", lambda *_: "echoed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A vendor: how it says something, calls a tool, and how a text of the user is written."""

    kind: str
    says: Reply
    calls: Reply
    user: Callable[[str], bytes]
    on_event: Callable[[RathLLMStreamDelta], None] | None = None


def ignore(_: RathLLMStreamDelta) -> None:
    return


def message_of_openai(text: str) -> bytes:
    return to_json({"role": "user", "content": text}) + b","


def block_of_anthropic(text: str) -> bytes:
    return to_json({"type": "text", "text": text}) + b","


TOOL_USE = anthropic_replies.tool_use("echo", {})
WIRES = {
    "openai": Wire(
        kind="openai",
        says=chat_replies.completion("ok"),
        calls=chat_replies.completion(tool_calls=(chat_replies.tool_call("echo"),)),
        user=message_of_openai,
    ),
    "openai, streamed": Wire(
        kind="openai",
        says=chat_replies.text_stream("ok"),
        calls=chat_replies.event_stream(
            chat_replies.tool_chunk("{}", id="call_1", name="echo"),
            chat_replies.finish_chunk("tool_calls"),
        ),
        user=message_of_openai,
        on_event=ignore,
    ),
    "anthropic": Wire(
        kind="anthropic",
        says=anthropic_replies.message(anthropic_replies.text("ok")),
        calls=anthropic_replies.message(TOOL_USE),
        user=block_of_anthropic,
    ),
    "anthropic, streamed": Wire(
        kind="anthropic",
        says=anthropic_replies.streamed(anthropic_replies.text("ok")),
        calls=anthropic_replies.streamed(TOOL_USE),
        user=block_of_anthropic,
        on_event=ignore,
    ),
}


class Asking:
    """Agents of one wire, with and without a memory whose notes are other ones each time."""

    def __init__(self, wire: Wire, server: ChatServer) -> None:
        self._wire = wire
        self._server = server
        self.memory = FakeMemory(self._found)

    def __call__(self, session: Session, *replies: Reply, with_memory: bool = True) -> Session:
        """Run an agent on `session`; it answers once, unless `replies` say otherwise."""
        self._server.queue(*(replies or (self._wire.says,)))
        wire = self._wire
        provider = Provider(
            provider_kind=wire.kind, model="m", api_key=KEY, base_url=self._server.base_url
        )
        store = self.memory.open() if with_memory else None
        agent = flow.Agent(
            "Be brief.", provider, [ECHO], memory=store, on_event=wire.on_event, system_tools=False
        )
        with agent:
            return agent(session).synchronize()

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self._server.calls]

    def context_in(self, out: Session, *, at: int = -1) -> bytes:
        """The context message of a call of the run `out`, as its vendor gets it."""
        call = [entry for entry in out.record if isinstance(entry, ModelCall)][at]
        assert call.seen is not None
        assert call.seen.context is not None
        return self._wire.user(call.seen.context)

    def _found(self, op: MemoryOp) -> MemoryResult:
        n_asked = len(self.memory.of(MemoryOpFind))
        return MemoryFindResult((MemoryHit("memory://user/a", 1.0, f"note {n_asked}"),))


@pytest.fixture(params=list(WIRES.values()), ids=list(WIRES))
def wire(request: pytest.FixtureRequest) -> Wire:
    given: Wire = request.param
    return given


@pytest.fixture
def asking(wire: Wire) -> Iterator[Asking]:
    with ChatServer() as server:
        yield Asking(wire, server)


def said(session: Session, text: str) -> Session:
    return Session(session.chunk_table.extend(user_text_chunk(text)))


def conversation(*texts: str) -> Session:
    return Session(ChunkTable(tuple(user_text_chunk(text) for text in texts)))


def test_without_its_one_message_a_request_is_the_same_byte_for_byte(asking: Asking) -> None:
    session = said(asking(conversation("one"), with_memory=False), "two")
    bare = asking(session, with_memory=False)
    out = asking(session)
    assert out.text() == bare.text()
    _, without, with_notes = asking.bodies
    context = asking.context_in(out)
    assert with_notes.count(context) == 1
    assert with_notes.replace(context, b"") == without


def test_notes_stand_directly_before_the_last_user_row(asking: Asking, wire: Wire) -> None:
    out = asking(conversation("one", "two", "three"))
    last = wire.user("three")[:-1]
    assert asking.context_in(out) + last in asking.bodies[0]


def test_what_stands_before_the_last_user_row_is_stable_from_turn_to_turn(asking: Asking) -> None:
    first = asking(conversation("one"))
    second = asking(said(first, "two"))
    asking(said(second, "three"), with_memory=False)
    _, body, later = asking.bodies
    stable, _, _ = body.partition(asking.context_in(second))
    assert b"two" not in stable
    assert later.startswith(stable)
    assert b"one" in stable


def test_notes_do_not_pile_up_over_turns(asking: Asking) -> None:
    session = conversation("one")
    for text in ("two", "three", "four"):
        session = said(asking(session), text)
    for number, body in enumerate(asking.bodies, start=1):
        assert [n for n in range(1, 5) if f"note {n}".encode() in body] == [number]
    assert not any("note" in str(row.payload) for row in session.chunk_table)


def test_all_rounds_of_a_run_have_the_notes_of_its_beginning(asking: Asking, wire: Wire) -> None:
    out = asking(conversation("one", "two"), wire.calls, wire.calls, wire.says)
    first, second, third = asking.bodies
    context = asking.context_in(out)
    assert len(asking.memory.of(MemoryOpFind)) == 1
    assert [body.count(context) for body in (first, second, third)] == [1, 1, 1]
    end = first.index(wire.user("two")[:-1]) + len(wire.user("two")) - 1
    assert first[:end] == second[:end] == third[:end]
    calls = [entry for entry in out.record if isinstance(entry, ModelCall)]
    assert len({call.seen and call.seen.context for call in calls}) == 1
    assert len(calls) == 3


def merged(session: Session) -> Session:
    return session.merge(session.fork())


@pytest.mark.parametrize(
    "derive",
    [Session.fork, Session.detach, merged],
    ids=["fork", "detach", "merge"],
)
def test_a_session_that_comes_from_others_has_the_notes_of_its_own_run_only(
    asking: Asking, derive: Callable[[Session], Session]
) -> None:
    out = derive(asking(conversation("one")))
    asking(said(out, "two"))
    body = asking.bodies[-1]
    assert (body.count(b"note 1"), body.count(b"note 2")) == (0, 1)


# ---- others that read a session whose run had notes


def with_notes() -> Session:
    """A session that an agent with a memory has answered."""
    memory = FakeMemory(hits=(MemoryHit("memory://user/a", 1.0, "a secret"),))
    with flow.Agent("p", ScriptedClient(["ok"]).provider, memory=memory.open()) as agent:
        return agent(conversation("one")).synchronize()


def requested(client: ScriptedClient) -> str:
    (request,) = client.requests
    return repr(request.messages)


def test_a_compressor_reads_no_notes() -> None:
    client = ScriptedClient(["short"])
    flow.Compressor("Be short.", client.provider)(with_notes()).synchronize()
    assert "secret" not in requested(client)


def test_a_selector_reads_no_notes() -> None:
    client = ScriptedClient(["0"])
    flow.Selector(client.provider).forward(with_notes(), flow.EmptyWorkflow())
    assert "secret" not in requested(client)


def test_another_agent_reads_no_notes() -> None:
    client = ScriptedClient(["ok"])
    flow.Agent("q", client.provider)(with_notes()).synchronize()
    assert "secret" not in requested(client)


def test_an_agent_inside_of_a_tool_has_the_notes_of_its_own_memory() -> None:
    outer, inner = ScriptedClient([tool_call("ask"), "done"]), ScriptedClient(["ok"])
    memories = [
        FakeMemory(hits=(MemoryHit("memory://user/a", 1.0, f"{name} note"),))
        for name in ("outer", "inner")
    ]
    with (
        flow.Agent("q", inner.provider, memory=memories[1].open()) as helper,
        flow.Agent("p", outer.provider, memory=memories[0].open()) as agent,
    ):

        def ask(session: Session, _: object) -> str | None:
            return helper(session).text()

        agent.register_tool(FunctionTool("ask", ask))
        agent(conversation("one")).synchronize()
    assert ("inner note" in requested(inner), "outer note" in requested(inner)) == (True, False)
    assert all("inner note" not in repr(request.messages) for request in outer.requests)
