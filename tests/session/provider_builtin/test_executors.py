"""A caller's own executor stands between the loop and the world, in every form it may have."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

import rath
from rath.errors import MissingExtra
from rath.llm import (
    Provider,
    RathLLMChatRequest,
    RathLLMChatResponse,
    RathLLMFunctionTool,
    RathLLMStreamDelta,
    register_chat_client,
)
from rath.session import (
    DefaultSessionLoopExecutor,
    Session,
    run_session_compress,
    run_session_loop,
    select_session,
)
from rath.session.provider_builtin import StreamingExecutor
from rath.session.tooling import Tool
from rath.testing import ScriptedClient, tool_call
from tests.support.api import resolve_executor
from tests.support.sessions import AGENT, FunctionTool, echo, run

REQUEST = RathLLMChatRequest(messages=())


ECHO = FunctionTool("echo", echo)


class Executor(DefaultSessionLoopExecutor):
    """An executor that notes what goes through it."""

    def __init__(self, *turns: Any, schemas: tuple[RathLLMFunctionTool, ...] = ()) -> None:
        self.client = ScriptedClient(turns)
        self.dispatched: list[tuple[str, dict[str, Any]]] = []
        self._schemas = schemas
        super().__init__(self.client)

    def tool_schemas(self) -> tuple[RathLLMFunctionTool, ...]:
        return self._schemas

    def dispatch_tool(self, session: Session, tool: Tool, arguments: Mapping[str, Any]) -> Any:
        self.dispatched.append((tool.name, dict(arguments)))
        return super().dispatch_tool(session, tool, arguments)


class AsyncExecutor:
    """The same with coroutine functions."""

    def __init__(self, *turns: Any) -> None:
        self.inner = Executor(*turns)

    async def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        return self.inner.complete(req)

    async def dispatch_tool(
        self, session: Session, tool: Tool, arguments: Mapping[str, Any]
    ) -> Any:
        return self.inner.dispatch_tool(session, tool, arguments)

    def tool_schemas(self) -> tuple[RathLLMFunctionTool, ...]:
        return ()


def result_of(out: Session) -> Any:
    return json.loads(out.chunk_table[2].payload["content"])


def text_of(response: RathLLMChatResponse) -> str | None:
    return response.primary_choice.message.content


# ---- the streaming one


def test_the_streaming_executor_tells_each_delta_and_returns_the_answer() -> None:
    heard: list[str | None] = []
    executor = StreamingExecutor(
        ScriptedClient(["one two"]), lambda delta: heard.append(delta.content_delta)
    )
    response = executor.complete(RathLLMChatRequest(messages=(), model="m"))
    assert text_of(response) == "one two"
    assert response.model == "m"
    assert "".join(part for part in heard if part) == "one two"
    assert len(heard) > 1


def test_the_streaming_executor_dispatches_through_the_inner_one_or_calls_tools_itself() -> None:
    schema = RathLLMFunctionTool(name="only", parameters={})
    inner = Executor(schemas=(schema,))
    executor = StreamingExecutor(ScriptedClient([]), lambda _: None, inner)
    alone = StreamingExecutor(ScriptedClient([]), lambda _: None)
    for one in (executor, alone):
        assert one.dispatch_tool(AGENT, ECHO, {"x": 1}) == {"x": 1}
    assert inner.dispatched == [("echo", {"x": 1})]
    assert (executor.tool_schemas(), alone.tool_schemas()) == ((schema,), ())


class Whole:
    """A client that cannot stream."""

    provider = Provider(model="m")

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        return ScriptedClient(["whole"]).complete(req)


@pytest.mark.parametrize("on_event", [None, print])
def test_the_callers_executor_or_the_client_of_the_provider_answers(on_event: Any) -> None:
    client, executor = ScriptedClient(["hello"]), Executor("hello")
    resolved = resolve_executor(agent_provider=client.provider, executor=None, on_event=on_event)
    assert text_of(resolved.complete(REQUEST)) == "hello"
    remaining = resolve_executor(agent_provider=client.provider, executor=executor, on_event=None)
    assert remaining is executor


# ---- choosing one


def test_on_event_and_a_client_that_cannot_stream_exclude_each_other() -> None:
    register_chat_client("whole", lambda _: Whole())
    provider = Provider(model="m", provider_kind="whole")
    with pytest.raises(TypeError, match="complete_stream"):
        resolve_executor(agent_provider=provider, executor=None, on_event=print)


def test_on_event_and_an_executor_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="custom executor"):
        resolve_executor(agent_provider=Provider(model="m"), executor=Executor(), on_event=print)


def test_fallbacks_and_an_executor_exclude_each_other() -> None:
    provider = Provider(model="m", fallbacks=[Provider(model="n")])
    with pytest.raises(ValueError, match="the executor makes the calls"):
        run([], executor=Executor("x"), agent_provider=provider)


# ---- fallbacks


@pytest.fixture
def first() -> Provider:
    return ScriptedClient(["hello"]).provider


def select(user: Session, agent: Session, *, agent_provider: Provider) -> object:
    return select_session(user, agent, "a", agent_provider=agent_provider)


@pytest.mark.parametrize(
    ("fallback", "problem"),
    [
        (Provider(model="m", provider_kind="smoke"), "unknown provider_kind 'smoke'"),
        (Provider(api_key="k"), "model is required"),
    ],
    ids=["unknown kind", "no model"],
)
@pytest.mark.parametrize(
    "ask", [run_session_loop, run_session_compress, select], ids=["loop", "compress", "select"]
)
def test_a_fallback_that_can_never_answer_raises_at_the_call(
    first: Provider, fallback: Provider, problem: str, ask: Callable[..., object]
) -> None:
    provider, user = replace(first, fallbacks=[fallback]), Session.from_user_message("x")
    with pytest.raises(ValueError, match=f"fallback 1 of the provider cannot be used: {problem}"):
        ask(user, AGENT, agent_provider=provider)


def test_a_fallback_that_cannot_stream_raises_at_the_call(first: Provider) -> None:
    register_chat_client("whole", lambda _: Whole())
    provider = replace(first, fallbacks=[Provider(model="m", provider_kind="whole")])
    with pytest.raises(TypeError, match="fallback 1 of the provider cannot be used: Whole cannot"):
        run([], agent_provider=provider, on_event=print)


def test_a_fallback_whose_extra_is_missing_says_which_one_it_is(first: Provider) -> None:
    def missing(_: Provider) -> Whole:
        raise MissingExtra("exotic", "its client")

    register_chat_client("exotic", missing)
    provider = replace(first, fallbacks=[Provider(model="m", provider_kind="exotic")])
    with pytest.raises(MissingExtra) as caught:
        run([], agent_provider=provider)
    assert caught.value.__notes__ == ["fallback 1 of the provider cannot be used"]


# ---- in a run


@pytest.mark.parametrize("kind", [Executor, AsyncExecutor], ids=["def", "async def"])
def test_an_executor_completes_and_dispatches_in_place_of_the_loop(kind: Any) -> None:
    executor = kind(tool_call("echo", {"x": 1}), "done")
    out = run(["never asked"], ECHO, executor=executor)
    assert out.text() == "done"
    assert result_of(out) == {"x": 1}
    inner = executor if isinstance(executor, Executor) else executor.inner
    assert inner.dispatched == [("echo", {"x": 1})]


def test_bad_arguments_never_reach_an_executor() -> None:
    executor = Executor(tool_call("echo", "{broken"), "done")
    out = run([], ECHO, executor=executor)
    assert result_of(out)["error_kind"] == "invalid_tool_arguments"
    assert executor.dispatched == []


class OwnError(Exception):
    """What only the program knows."""


def ignore(_: RathLLMStreamDelta) -> None:
    return


@pytest.mark.parametrize(
    "error", [OwnError("boom"), ValueError("boom"), ConnectionError("boom"), TimeoutError("boom")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
@pytest.mark.parametrize("how", ["executor", "client", "streaming client"])
def test_an_error_of_the_program_keeps_its_class(error: Exception, how: str) -> None:
    turns = (tool_call("echo"), error)
    if how == "executor":
        failed = run([], ECHO, executor=Executor(*turns))
    elif how == "client":
        failed = run(turns, ECHO)
    else:
        failed = run(turns, ECHO, on_event=ignore)
    with pytest.raises(type(error)) as caught:
        failed.text()
    assert (type(caught.value), str(caught.value)) == (type(error), "boom")
    with pytest.raises(type(error)) as again:
        failed.synchronize()
    assert again.value is caught.value
    note = caught.value.__notes__[-1]
    assert f"in the run of session {failed.id}, round 2, model call 2, started at " in note


@pytest.mark.parametrize(
    ("error", "is_passed_on"),
    [(ConnectionError("gone"), True), (TimeoutError("late"), True), (ValueError("no"), False)],
    ids=lambda one: type(one).__name__,
)
def test_another_provider_answers_where_the_network_failed_a_client(
    error: Exception, is_passed_on: bool
) -> None:
    second = ScriptedClient(["from the second"])
    first = ScriptedClient([error])
    provider = replace(first.provider, fallbacks=(second.provider,))
    out = run([], agent_provider=provider)
    if not is_passed_on:
        with pytest.raises(type(error)):
            out.text()
        return
    assert out.text() == "from the second"
    with rath.replay(out):
        again = run([], agent_provider=provider)
        assert again.text() == "from the second"
    assert second.n_left == 0


def test_the_schemas_of_an_executor_are_offered_in_place_of_the_table() -> None:
    schema = RathLLMFunctionTool(name="only", parameters={"type": "object"})
    executor = Executor("done", schemas=(schema,))
    run([], ECHO, executor=executor).synchronize()
    assert executor.client.requests[0].tools == (schema,)


@pytest.mark.parametrize("kind", [Executor, AsyncExecutor], ids=["def", "async def"])
def test_compression_and_selection_ask_an_executor(kind: Any) -> None:
    provider, user = Provider(model="m"), Session.from_user_message("a story")
    short = run_session_compress(user, AGENT, agent_provider=provider, executor=kind("short"))
    assert short.text() == "short"
    chosen = select_session(user, AGENT, "a", "b", agent_provider=provider, executor=kind("1"))
    assert chosen == (1, "b")
