"""The OpenAI API of a server, used by the official client."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Generator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import openai
import pydantic
import pytest

from rath.errors import ProviderError
from rath.flow import Agent, Workflow
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.embedding import EmbeddingProvider
from rath.serving import Principal, ServerOptions, TokenFile, asgi
from rath.session import Session
from rath.session.outcome import Cancelled, Completed
from rath.session.persistence.store import FileStore
from rath.session.tooling import ApprovalRule
from rath.testing import ScriptedClient, tool_call
from rath.testing.chat import Turn
from tests.support.chat_replies import Reply
from tests.support.chat_server import CapturedRequest, ChatServer
from tests.support.embedding_replies import embeddings
from tests.support.serving import listening
from tests.support.sessions import FunctionTool
from tests.support.waiting import PATIENCE, wait_until

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def echo(request: RathLLMChatRequest) -> str:
    """Answer as a model that says again what was said last."""
    return f"you said {request.messages[-1].content}"


def agent(*turns: Turn, **more: Any) -> Agent:
    return Agent("x", ScriptedClient(turns).provider, system_tools=False, **more)


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


class Server:
    """A server in this process.

    Args:
        url: Where it listens.
        home: Its files.
        tokens: Of its principals.
    """

    def __init__(self, url: str, home: Path, tokens: TokenFile) -> None:
        self.url = url
        self.store = FileStore(home / "sessions")
        self.tokens = tokens

    def client(self, token: str = "any") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=token, max_retries=0)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0)


class Serve:
    """Starts servers for a test."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._open: list[Any] = []

    def __call__(self, workflows: Workflow | Mapping[str, Workflow], **more: Any) -> Server:
        tokens = TokenFile(self._home / "serve" / "tokens.json")
        store = FileStore(self._home / "sessions")
        options = ServerOptions(tokens=tokens, store=store, a2a=False, mcp=False, **more)
        named = {"team": workflows} if isinstance(workflows, Workflow) else workflows
        serving = listening(asgi(named, options))
        self._open.append(serving)
        return Server(serving.__enter__(), self._home, tokens)

    def close(self) -> None:
        for each in reversed(self._open):
            each.__exit__(None, None, None)


@pytest.fixture
def serve(tmp_path: Path) -> Generator[Serve]:
    started = Serve(tmp_path)
    yield started
    started.close()


def test_workflows_are_models(serve: Serve) -> None:
    with serve({"one": agent(), "two": agent()}).client() as client:
        assert [model.id for model in client.models.list()] == ["one", "two"]
        assert client.models.retrieve("two").id == "two"
        with pytest.raises(openai.NotFoundError, match="known: one, two") as caught:
            client.models.retrieve("three")
    assert caught.value.code == "model_not_found"


def test_a_chat_is_answered_with_its_usage_and_stored(serve: Serve) -> None:
    server = serve(agent(echo))
    with server.client() as client:
        answer = client.chat.completions.create(model="team", messages=user("hello"))
    assert answer.choices[0].message.content == "you said hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens > 0
    session = Session.load(answer.id.removeprefix("chatcmpl-"), store=server.store)
    assert (session.text(), session.outcome) == ("you said hello", Completed())
    first = session.provenance.parents[0].provenance
    assert first is not None
    assert first.extras == (("served", "team"), ("principal", "local"))


def test_a_streamed_chat_comes_in_parts_with_usage_at_its_end(serve: Serve) -> None:
    with serve(agent("one two three")).client() as client:
        chunks = list(
            client.chat.completions.create(
                model="team",
                messages=user("hello"),
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(parts) == "one two three"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens > 0


def test_a_chat_goes_on_from_messages_that_the_client_keeps(serve: Serve) -> None:
    seen: list[RathLLMChatRequest] = []

    def look(request: RathLLMChatRequest) -> str:
        seen.append(request)
        return "ok"

    call: Any = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        *user("first"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "assistant", "content": "second"},
        *user("third"),
    ]
    with serve(agent(look)).client() as client:
        client.chat.completions.create(model="team", messages=messages)
    roles = [message.role for message in seen[0].messages]
    assert roles == ["system", "user", "user", "assistant", "tool", "assistant", "user"]
    assert seen[0].messages[1].content == "Instructions of the client:\nBe brief."


def test_a_tool_of_the_client_is_a_question_to_it(serve: Serve) -> None:
    more = tool_call("weather", {"city": "Oslo"}, id="b")
    calls = tool_call("weather", {"city": "Rome"}, more, id="a")
    server = serve(agent(calls, echo))
    with server.client() as client:
        messages = user("how is the weather?")
        asked = client.chat.completions.create(model="team", messages=messages, tools=[WEATHER])
        choice = asked.choices[0]
        assert choice.finish_reason == "tool_calls"
        wanted: Any = choice.message.tool_calls
        cities = [json.loads(call.function.arguments)["city"] for call in wanted]
        assert cities == ["Rome", "Oslo"]
        messages.append(choice.message.model_dump(exclude_none=True))
        results: list[Any] = [
            {"role": "tool", "tool_call_id": call.id, "content": f"sunny in {city}"}
            for call, city in zip(wanted, cities, strict=True)
        ]
        with pytest.raises(openai.BadRequestError, match="has no result"):
            client.chat.completions.create(
                model="team", messages=[*messages, results[0]], tools=[WEATHER]
            )
        done = client.chat.completions.create(
            model="team", messages=[*messages, *results], tools=[WEATHER]
        )
    assert done.choices[0].message.content == 'you said "sunny in Oslo"'
    first, second = (each.id.removeprefix("chatcmpl-") for each in (asked, done))
    assert first == second


def test_a_streamed_call_of_a_tool_of_the_client(serve: Serve) -> None:
    with serve(agent(tool_call("weather", {"city": "Rome"}))).client() as client:
        chunks = list(
            client.chat.completions.create(
                model="team", messages=user("?"), tools=[WEATHER], stream=True
            )
        )
    calls: Any = [c.choices[0].delta.tool_calls for c in chunks if c.choices[0].delta.tool_calls]
    assert calls[0][0].function.name == "weather"
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_chat_with_a_call_does_not_say_an_earlier_answer_again(
    serve: Serve, stream: bool
) -> None:
    messages: list[Any] = [*user("one"), {"role": "assistant", "content": "two"}, *user("three")]
    body = {"model": "team", "messages": messages, "tools": [WEATHER], "stream": stream}
    server = serve(agent(tool_call("weather")))
    said = httpx2.post(f"{server.url}/v1/chat/completions", json=body).text
    assert "weather" in said
    assert "two" not in said


def test_a_response_with_a_call_does_not_say_an_earlier_answer_again(serve: Serve) -> None:
    tool: Any = {"type": "function", **WEATHER["function"]}
    with serve(agent("one", tool_call("weather"))).client() as client:
        first = client.responses.create(model="team", input="hello")
        asked = client.responses.create(
            model="team", input="?", previous_response_id=first.id, tools=[tool]
        )
        assert [each.type for each in asked.output] == ["function_call"]
        assert client.responses.retrieve(asked.id).output == asked.output


class Weather(pydantic.BaseModel):
    sky: str


@pytest.mark.parametrize(
    ("wanted", "last", "text"),
    [
        (None, "It is there.", "Let me look.\n\nIt is there."),
        (Weather, '{ "sky": "blue" }', '{"sky":"blue"}'),
    ],
    ids=["text", "typed"],
)
def test_a_response_that_is_read_again_is_the_same(
    serve: Serve, wanted: Any, last: str, text: str
) -> None:
    look = FunctionTool("look", lambda *_: "found")
    turns = tool_call("look", content="Let me look."), last
    with serve(agent(*turns, tools=[look], output=wanted)).client() as client:
        whole = client.responses.create(model="team", input="hello")
        assert whole.output_text == text
        assert client.responses.retrieve(whole.id).output == whole.output


def test_a_typed_answer_follows_the_streamed_texts(serve: Serve) -> None:
    look = FunctionTool("look", lambda *_: "found")
    turns = tool_call("look", content="Let me look."), tool_call("final_answer", {"sky": "blue"})
    whole = 'Let me look.\n\n{"sky":"blue"}'
    with serve(agent(*turns, *turns, tools=[look], output=Weather)).client() as client:
        chunks = client.chat.completions.create(model="team", messages=user("?"), stream=True)
        assert "".join(each.choices[0].delta.content or "" for each in chunks) == whole
        events = list(client.responses.create(model="team", input="?", stream=True))
        *_, last = events
        assert last.type == "response.completed"
        assert last.response.output_text == whole
        deltas = [each for each in events if each.type == "response.output_text.delta"]
        assert "".join(each.delta for each in deltas) == whole
        at = deltas[0].sequence_number
        rest = client.responses.retrieve(last.response.id, stream=True, starting_after=at)
        later = [each.delta for each in rest if each.type == "response.output_text.delta"]
        assert deltas[0].delta + "".join(later) == whole


def test_a_tool_with_the_name_of_one_of_the_workflow_is_refused(serve: Serve) -> None:
    team = Agent(
        "x", ScriptedClient(["?"]).provider, [FunctionTool("weather", lambda *_: "")],
        system_tools=False,
    )  # fmt: skip
    with serve(team).client() as client, pytest.raises(openai.BadRequestError, match="weather"):
        client.chat.completions.create(model="team", messages=user("?"), tools=[WEATHER])


def test_a_regular_expression_of_a_client_does_not_hold_up_the_server(serve: Serve) -> None:
    endless: Any = {"type": "string", "pattern": "^(a+)+$"}
    schema = {"type": "object", "properties": {"city": endless}, "required": ["city"]}
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    turns = tool_call("weather", {"city": "a" * 64 + "!"}), tool_call("weather", {}), echo
    with serve(agent(*turns)).client() as client:
        asked = client.chat.completions.create(model="team", messages=user("?"), tools=[tool])
        assert asked.choices[0].finish_reason == "tool_calls"
        calls: Any = asked.choices[0].message.tool_calls
        result: Any = {"role": "tool", "tool_call_id": calls[0].id, "content": "sunny"}
        done = client.chat.completions.create(model="team", messages=[result], tools=[tool])
    assert "'city' is a required property" in (done.choices[0].message.content or "")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 2}, "n"),
        ({"stop": "x"}, "stop"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_a_workflow_cannot_be_given_is_refused(
    serve: Serve, more: dict[str, Any], param: str
) -> None:
    with serve(agent()).client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="team", messages=user("?"), **more)
    assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")


def test_a_run_that_fails_is_an_error_of_the_server(serve: Serve) -> None:
    def fail(_: RathLLMChatRequest) -> str:
        raise ProviderError("the model is gone")

    with serve(agent(fail, fail)).client() as client:
        with pytest.raises(openai.InternalServerError, match="the model is gone"):
            client.chat.completions.create(model="team", messages=user("?"))
        with pytest.raises(openai.APIError, match="the model is gone"):
            list(client.chat.completions.create(model="team", messages=user("?"), stream=True))


def test_a_response_that_failed_is_read_as_such_and_goes_on(serve: Serve) -> None:
    def fail(_: RathLLMChatRequest) -> str:
        raise ProviderError("the model is gone")

    server = serve(agent("one", fail, "two"))
    with server.client() as client:
        first = client.responses.create(model="team", input="hello")
        *_, last = client.responses.create(
            model="team", input="again", previous_response_id=first.id, stream=True
        )
        assert last.type == "response.failed"
        name = last.response.id
        stored = client.responses.retrieve(name)
        assert (stored.status, stored.output) == ("failed", [])
        assert stored.error is not None
        assert "the model is gone" in stored.error.message
        again = list(client.responses.retrieve(name, stream=True))
        assert again[-1].type == "response.failed"
        chat = httpx2.get(f"{server.url}/v1/chat/completions/chatcmpl-{name.split('_')[1]}")
        assert (chat.status_code, chat.json()["error"]["code"]) == (500, "run_failed")
        with pytest.raises(openai.BadRequestError, match="with an empty input"):
            client.responses.create(model="team", input="more", previous_response_id=name)
        done = client.responses.create(model="team", input="", previous_response_id=name)
        assert done.output_text == "two"


def test_a_response_without_text_is_streamed_by_the_id_of_its_session(serve: Serve) -> None:
    tool: Any = {"type": "function", **WEATHER["function"]}
    with serve(agent(tool_call("weather"))).client() as client:
        asked = client.responses.create(model="team", input="?", tools=[tool])
        *_, last = client.responses.retrieve(f"resp_{asked.id.split('_')[1]}", stream=True)
    assert last.type == "response.completed"
    assert [each.type for each in last.response.output] == ["message", "function_call"]


def test_responses_go_on_from_the_session_of_another(serve: Serve) -> None:
    server = serve(agent("one", echo))
    with server.client() as client:
        first = client.responses.create(model="team", input="hello")
        second = client.responses.create(model="team", input="again", previous_response_id=first.id)
        assert (first.output_text, second.output_text) == ("one", "you said again")
        assert second.previous_response_id == first.id
        assert client.responses.retrieve(first.id).output_text == "one"
        by_session = client.responses.create
        session = Session.load(first.id.split("_")[1], store=server.store)
        with pytest.raises(openai.BadRequestError, match="has ended"):
            by_session(model="team", input="", previous_response_id=str(session.id))


def test_a_streamed_response_numbers_its_events_and_goes_on_after_one(serve: Serve) -> None:
    server = serve(agent("one two three"))
    with server.client() as client:
        events = list(client.responses.create(model="team", input="hello", stream=True))
        numbers = [event.sequence_number for event in events]
        assert numbers == sorted(set(numbers))
        assert events[0].type == "response.created"
        last = events[-1]
        assert last.type == "response.completed"
        assert last.response.output_text == "one two three"
        deltas = [event for event in events if event.type == "response.output_text.delta"]
        headers = {"Last-Event-ID": str(deltas[0].sequence_number), "Authorization": "Bearer x"}
        rest = httpx2.get(f"{server.url}/v1/responses/{last.response.id}", headers=headers)
    later = [json.loads(line[6:]) for line in rest.text.splitlines() if line.startswith("data: ")]
    text = "".join(e["delta"] for e in later if e["type"] == "response.output_text.delta")
    assert deltas[0].delta + text == "one two three"
    assert later[-1]["type"] == "response.completed"


def test_a_response_uses_tools_of_the_client(serve: Serve) -> None:
    tool: Any = {"type": "function", **WEATHER["function"]}
    with serve(agent(tool_call("weather", {"city": "Rome"}), echo)).client() as client:
        asked = client.responses.create(model="team", input="?", tools=[tool])
        call: Any = asked.output[-1]
        assert (call.type, call.name) == ("function_call", "weather")
        output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
        done = client.responses.create(
            model="team", input=output, previous_response_id=asked.id, tools=[tool]
        )
    assert done.output_text == 'you said "sunny"'
    assert done.id != asked.id


def test_a_response_in_the_background_is_asked_for_later(serve: Serve) -> None:
    server = serve(agent(echo, echo))
    with server.client() as client:
        begun = client.responses.create(model="team", input="hello", background=True)
        assert begun.status == "in_progress"
        wait_until(lambda: client.responses.retrieve(begun.id).status == "completed")
        assert client.responses.retrieve(begun.id).output_text == "you said hello"
        after = client.responses.create(model="team", input="again", previous_response_id=begun.id)
        assert after.output_text == "you said again"


def test_what_waits_does_not_go_on_in_the_background(serve: Serve) -> None:
    tool: Any = {"type": "function", **WEATHER["function"]}
    with serve(agent(tool_call("weather"))).client() as client:
        asked = client.responses.create(model="team", input="?", tools=[tool])
        call: Any = asked.output[-1]
        assert call.arguments == "{}"
        output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "x"}]
        for said in (output, "never mind"):
            with pytest.raises(openai.BadRequestError, match="in the background"):
                client.responses.create(
                    model="team", input=said, previous_response_id=asked.id, background=True
                )


class Waiting:
    """A tool that waits until its call is cancelled."""

    def __init__(self) -> None:
        self.n_begun = 0
        self.n_ended = 0

    def agent(self) -> Agent:
        async def wait(*_: object) -> str:
            self.n_begun += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.n_ended += 1
            return ""

        tools = [FunctionTool("wait", wait)]
        script = ScriptedClient([tool_call("wait"), "done"])
        return Agent("x", script.provider, tools, system_tools=False)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_goes_away_cancels_its_run(serve: Serve, stream: bool) -> None:
    waiting = Waiting()
    server = serve(waiting.agent(), disconnect_grace=0.0)
    body = {"model": "team", "messages": user("hello"), "stream": stream}

    async def leave() -> None:
        async with httpx2.AsyncClient() as client:
            url = f"{server.url}/v1/chat/completions"
            asking = asyncio.ensure_future(client.post(url, json=body))
            await asyncio.to_thread(wait_until, lambda: waiting.n_begun == 1)
            asking.cancel()
            await asyncio.wait([asking])

    asyncio.run(leave())
    wait_until(lambda: waiting.n_ended == 1)


def test_a_run_is_cancelled_by_its_id_and_goes_on_later(serve: Serve) -> None:
    waiting = Waiting()
    server = serve(waiting.agent())
    with server.client() as client:
        stream = client.responses.create(model="team", input="hello", stream=True)
        begun: Any = next(iter(stream))
        wait_until(lambda: waiting.n_begun == 1)
        assert client.responses.cancel(begun.response.id).status == "cancelled"
        stream.close()
        session = Session.load(begun.response.id.split("_")[1], store=server.store)
        assert isinstance(session.outcome, Cancelled)
        with pytest.raises(openai.BadRequestError, match="cannot take a message"):
            client.responses.create(
                model="team", input="more", previous_response_id=begun.response.id
            )


class Paused:
    """A tool whose calls wait for the test."""

    def __init__(self, approval: ApprovalRule) -> None:
        self.n_begun = 0
        self.n_ended = 0
        self.may_end = threading.Event()
        self._tool = FunctionTool("work", self._work)
        self._tool.effects = "idempotent"
        self._tool.approval = approval

    def agent(self) -> Agent:
        return agent(tool_call("work"), "done", tools=[self._tool])

    async def _work(self, *_: object) -> str:
        self.n_begun += 1
        await asyncio.to_thread(self.may_end.wait, PATIENCE)
        self.n_ended += 1
        return "worked"


class Patient(Workflow):
    """Waits for its agent in `forward`, so that its run is known late."""

    def __init__(self, inner: Agent) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, session: Session) -> Session:
        made = self.inner(session)
        made.text()
        return made


async def go_on_at_once(server: Server, response: str, paused: Paused) -> tuple[str, list[object]]:
    """Go on with a response three times at once; return the answer and what the others get.

    The tool ends when two have been refused.
    """

    async def go_on(client: openai.AsyncOpenAI) -> str:
        made = await client.responses.create(model="team", input="", previous_response_id=response)
        return made.output_text

    refused: list[object] = []
    async with server.async_client() as client:
        asking = {asyncio.ensure_future(go_on(client)) for _ in range(3)}
        while len(refused) < 2:
            done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            refused += [each.exception() for each in done]
        paused.may_end.set()
        return await asking.pop(), refused


def cancelled(server: Server, paused: Paused) -> str:
    """Return a response whose run was cancelled in its tool."""
    with server.client() as client:
        stream = client.responses.create(model="team", input="hello", stream=True)
        begun: Any = next(iter(stream))
        wait_until(lambda: paused.n_begun == 1)
        assert client.responses.cancel(begun.response.id).status == "cancelled"
        stream.close()
    paused.n_begun = 0
    return str(begun.response.id)


def as_it_is(inner: Workflow) -> Workflow:
    return inner


def approved(server: Server, _: Paused) -> str:
    """Return a response whose tool somebody has allowed."""
    with server.client() as client:
        waits = client.responses.create(model="team", input="hello")
    session = Session.load(waits.id.split("_")[1], store=server.store)
    session.approve(session.open_calls[0])
    return waits.id


@pytest.mark.parametrize(
    ("make", "approval", "wrap"),
    [
        pytest.param(cancelled, "never", as_it_is, id="cancelled"),
        pytest.param(approved, "always", as_it_is, id="approved"),
        pytest.param(approved, "always", Patient, id="known-late"),
    ],
)
def test_one_of_several_continues_goes_on(
    serve: Serve,
    make: Callable[[Server, Paused], str],
    approval: ApprovalRule,
    wrap: Callable[[Agent], Workflow],
) -> None:
    paused = Paused(approval)
    server = serve(wrap(paused.agent()))
    response = make(server, paused)
    answer, refused = asyncio.run(go_on_at_once(server, response, paused))
    assert answer == "done"
    codes = [isinstance(each, openai.ConflictError) and each.code for each in refused]
    assert codes == ["conflict", "conflict"]
    assert (paused.n_begun, paused.n_ended) == (1, 1)


def test_two_hundred_streams_at_once_are_not_mixed(serve: Serve) -> None:
    server = serve(agent(*[echo] * 200))

    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        parts = await client.chat.completions.create(
            model="team", messages=user(f"number {number}"), stream=True
        )
        return "".join([part.choices[0].delta.content or "" async for part in parts])

    async def ask_all() -> list[str]:
        async with server.async_client() as client:
            return await asyncio.gather(*(ask(client, number) for number in range(200)))

    answers = asyncio.run(ask_all())
    assert answers == [f"you said number {number}" for number in range(200)]


def test_sessions_belong_to_their_principal(serve: Serve) -> None:
    server = serve({"one": agent("first", "second"), "two": agent()})
    mine = server.tokens.add(Principal(name="me", workflows=("one",)))
    other = server.tokens.add(Principal(name="other"))
    with server.client(mine) as me, server.client(other) as them:
        assert [model.id for model in me.models.list()] == ["one"]
        with pytest.raises(openai.NotFoundError):
            me.responses.create(model="two", input="?")
        answer = me.responses.create(model="one", input="hello")
        with pytest.raises(openai.NotFoundError):
            them.responses.retrieve(answer.id)
        with pytest.raises(openai.NotFoundError):
            them.responses.cancel(answer.id)
        with pytest.raises(openai.NotFoundError):
            them.responses.create(model="one", input="?", previous_response_id=answer.id)
        assert me.responses.retrieve(answer.id).output_text == "first"


def test_a_principal_with_a_rate_is_told_when_to_come_back(serve: Serve) -> None:
    server = serve(agent("one", "two"))
    token = server.tokens.add(Principal(name="me", requests_per_minute=1))
    with server.client(token) as client:
        client.chat.completions.create(model="team", messages=user("?"))
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="team", messages=user("?"))
    assert int(caught.value.response.headers["retry-after"]) > 0


def test_one_run_at_a_time_is_free_again_once_its_end_is_told(serve: Serve) -> None:
    server = serve(agent(*[echo] * 40))
    token = server.tokens.add(Principal(name="me", max_runs=1))
    with server.client(token) as client:
        for number in range(20):
            messages = user(str(number))
            client.chat.completions.create(model="team", messages=messages)
            list(client.chat.completions.create(model="team", messages=messages, stream=True))


def test_embeddings_come_from_the_model_of_the_server(serve: Serve) -> None:
    def reply(request: CapturedRequest) -> Reply:
        vectors = ([1.0, float(len(text))] for text in request.json()["input"])
        return embeddings(*vectors, tokens=3)

    with ChatServer(reply) as models:
        provider = EmbeddingProvider(
            model="vectors", api_key="k", base_url=models.base_url, provider_kind="openai"
        )
        with serve(agent(), embeddings=provider).client() as client:
            assert "vectors" in [model.id for model in client.models.list()]
            texts = ["a", "bc"]
            made = client.embeddings.create(model="vectors", input=texts)  # sent as base64
            plain = client.embeddings.create(model="vectors", input=texts, encoding_format="float")
            assert [each.embedding for each in made.data] == [[1.0, 1.0], [1.0, 2.0]]
            assert [each.embedding for each in plain.data] == [[1.0, 1.0], [1.0, 2.0]]
            assert plain.usage.total_tokens == 3
            with pytest.raises(openai.BadRequestError, match="empty text"):
                client.embeddings.create(model="vectors", input=["a", ""])


def test_embeddings_count_against_the_limits_of_a_principal(serve: Serve) -> None:
    with ChatServer(lambda _: embeddings([1.0], tokens=3)) as models:
        provider = EmbeddingProvider(
            model="vectors", api_key="k", base_url=models.base_url, provider_kind="openai"
        )
        server = serve(agent(), embeddings=provider, max_message_chars=10)
        other = server.tokens.add(Principal(name="other", workflows=("team",)))
        poor = server.tokens.add(Principal(name="poor", usd_per_day=Decimal(1)))
        with server.client(other) as client:
            assert [model.id for model in client.models.list()] == ["team"]
            with pytest.raises(openai.NotFoundError, match="no embeddings"):
                client.embeddings.create(model="vectors", input="hello")
        with server.client(poor) as client:
            with pytest.raises(openai.APIStatusError, match="at most 10") as caught:
                client.embeddings.create(model="vectors", input=["hello", "hello!"])
            assert caught.value.status_code == 413
            client.embeddings.create(model="vectors", input="hello")
            with pytest.raises(openai.RateLimitError, match="no known cost"):
                client.embeddings.create(model="vectors", input="hello")
    assert len(models.requests) == 1


def test_embeddings_are_refused_where_none_are_configured(serve: Serve) -> None:
    refusal = pytest.raises(openai.NotFoundError, match="no embeddings")
    with serve(agent()).client() as client, refusal:
        client.embeddings.create(model="x", input="hello")


def test_a_client_that_comes_back_reads_on_while_the_run_goes_on(serve: Serve) -> None:
    go_on = threading.Event()

    def wait(*_: object) -> str:
        go_on.wait(PATIENCE)
        return ""

    call = tool_call("wait", content="Let me look.")
    script = ScriptedClient([call, "It is there."])
    team = Agent("x", script.provider, [FunctionTool("wait", wait)], system_tools=False)
    server = serve(team, disconnect_grace=None)
    with server.client() as client:
        stream = client.responses.create(model="team", input="hello", stream=True)
        name, last = "", 0
        for event in stream:
            if event.type == "response.created":
                name = event.response.id
            if event.type == "response.output_text.delta":
                last = event.sequence_number
                break
        stream.close()
        assert client.responses.retrieve(name).status == "in_progress"
        go_on.set()
        rest = list(client.responses.retrieve(name, stream=True, starting_after=last))
    assert rest[-1].type == "response.completed"
    assert rest[-1].response.output_text == "Let me look.\n\nIt is there."
    text = "".join(each.delta for each in rest if each.type == "response.output_text.delta")
    assert "Let me look.\n\nIt is there.".endswith(text)
