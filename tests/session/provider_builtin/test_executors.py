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
from rath.llm.openai import RathOpenAIChatClient
from rath.session import (
    DefaultSessionLoopExecutor,
    Session,
    SessionLoopExecutor,
    run_session_compress,
    run_session_loop,
    select_session,
)
from rath.session.provider_builtin import StreamingExecutor, candidates_for
from rath.session.tooling import Tool
from rath.testing import ScriptedClient, tool_call
from tests.support.api import resolve_executor
from tests.support.sessions import FunctionTool, run

AGENT = Session.from_agent_prompt("You are a test.")
REQUEST = RathLLMChatRequest(messages=())


def echo(_: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return dict(arguments)


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


# ---- the plain one


def test_the_plain_executor_is_one_and_asks_its_client() -> None:
    client = ScriptedClient(["hello"])
    executor = DefaultSessionLoopExecutor(client)
    assert isinstance(executor, SessionLoopExecutor)
    assert text_of(executor.complete(REQUEST)) == "hello"
    assert client.requests == [REQUEST]
    assert executor.tool_schemas() == ()


def test_the_plain_executor_calls_the_tool_with_arguments_of_its_own() -> None:
    seen: list[dict[str, Any]] = []

    def note(_: Session, arguments: dict[str, Any]) -> None:
        seen.append(arguments)

    keep = FunctionTool("keep", note)
    given = {"x": 1}
    executor = DefaultSessionLoopExecutor(ScriptedClient([]))
    executor.dispatch_tool(AGENT, keep, given)
    assert seen == [given]
    assert seen[0] is not given


# ---- the streaming one


def test_the_streaming_executor_tells_each_delta_and_returns_the_whole() -> None:
    heard: list[str | None] = []
    executor = StreamingExecutor(
        ScriptedClient(["one two"]), lambda delta: heard.append(delta.content_delta)
    )
    response = executor.complete(RathLLMChatRequest(messages=(), model="m"))
    assert text_of(response) == "one two"
    assert response.model == "m"
    assert "".join(part for part in heard if part) == "one two"
    assert len(heard) > 1


def test_the_streaming_executor_names_the_model_of_its_client() -> None:
    client = ScriptedClient(["hello"])
    assert StreamingExecutor(client, lambda _: None).complete(REQUEST).model == "scripted"


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
    kept = resolve_executor(agent_provider=client.provider, executor=executor, on_event=None)
    assert kept is executor


def test_the_streaming_executor_refuses_a_client_that_cannot_stream() -> None:
    with pytest.raises(TypeError, match="complete_stream"):
        StreamingExecutor(Whole(), lambda _: None)  # type: ignore[arg-type]  # that is tested


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


def test_the_provider_stands_first_and_its_fallbacks_follow(first: Provider) -> None:
    other = ScriptedClient(["other"])
    provider = replace(first, fallbacks=[other.provider])
    one, two = candidates_for(provider, None, None, origin="session")
    assert (one.provider, one.origin, two.provider, two.origin) == (
        provider, "session", other.provider, "session",
    )  # fmt: skip
    assert two.client is other


def test_a_fallback_without_a_key_raises_at_the_call_and_says_which(first: Provider) -> None:
    fallbacks = [ScriptedClient([]).provider, Provider(model="m")]
    with pytest.raises(ValueError, match=r"fallback 2 of the provider cannot be used: .*api_key"):
        run([], agent_provider=replace(first, fallbacks=fallbacks))


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


@pytest.mark.parametrize(
    "ask", [run_session_loop, run_session_compress, select], ids=["loop", "compress", "select"]
)
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_provider_without_a_model_raises_at_the_call(
    kind: str, ask: Callable[..., object]
) -> None:
    with pytest.raises(ValueError, match=r"^model is required"):
        ask(
            Session.from_user_message("x"),
            AGENT,
            agent_provider=Provider(provider_kind=kind, api_key="k"),
        )


def test_a_client_that_has_a_model_of_its_own_needs_none_in_the_provider() -> None:
    own = RathOpenAIChatClient(Provider(model="m", api_key="k"))
    register_chat_client("own", lambda _: own)
    (one,) = candidates_for(Provider(provider_kind="own"), None, None)
    assert one.client is own


def test_a_client_of_ours_that_answers_by_itself_needs_no_model() -> None:
    class Fixed(RathOpenAIChatClient):
        def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
            return ScriptedClient(["by itself"]).complete(req)

    register_chat_client("fixed", lambda _: Fixed(Provider(api_key="k")))
    assert run([], agent_provider=Provider(provider_kind="fixed")).text() == "by itself"


def test_a_client_of_somebody_else_needs_no_model() -> None:
    assert run([], agent_provider=ScriptedClient(["x"], provider=Provider()).provider).text() == "x"


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


def test_an_executor_may_answer_for_a_tool_that_it_never_calls() -> None:
    class Refusing(Executor):
        def dispatch_tool(self, session: Session, tool: Tool, arguments: Mapping[str, Any]) -> Any:
            return f"{tool.name} is not allowed"

    called: list[object] = []
    tool = FunctionTool("delete", lambda *_: called.append(1))
    out = run([], tool, executor=Refusing(tool_call("delete"), "done"))
    assert result_of(out) == "delete is not allowed"
    assert called == []


def test_built_in_tools_go_through_an_executor_too() -> None:
    class Noting(Executor):
        def dispatch_tool(self, session: Session, tool: Tool, arguments: Mapping[str, Any]) -> Any:
            return {"would run": arguments["cmd"]}

    executor = Noting(tool_call("run_shell_command", {"cmd": "rm -r ."}), "done")
    out = run([], executor=executor, system_tools=True)
    assert result_of(out) == {"would run": "rm -r ."}


def test_bad_arguments_never_reach_an_executor() -> None:
    executor = Executor(tool_call("echo", "{broken"), "done")
    out = run([], ECHO, executor=executor)
    assert result_of(out)["error_kind"] == "invalid_tool_arguments"
    assert executor.dispatched == []


def test_what_an_executor_raises_while_dispatching_is_read_by_the_model() -> None:
    class Failing(Executor):
        def dispatch_tool(self, session: Session, tool: Tool, arguments: Mapping[str, Any]) -> Any:
            raise KeyError("nope")

    out = run([], ECHO, executor=Failing(tool_call("echo"), "done"))
    assert result_of(out)["error_kind"] == "tool_execution_exception"
    assert out.text() == "done"


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


def compressed(executor: Executor) -> None:
    user = Session.from_user_message("go")
    provider = Provider(model="m")
    run_session_compress(user, AGENT, agent_provider=provider, executor=executor).synchronize()


def selected(executor: Executor) -> None:
    user = Session.from_user_message("go")
    select_session(user, AGENT, "a", agent_provider=Provider(model="m"), executor=executor)


@pytest.mark.parametrize("operation", [compressed, selected])
def test_it_keeps_its_class_in_side_calls_too(operation: Callable[[Executor], None]) -> None:
    with pytest.raises(OwnError) as caught:
        operation(Executor(OwnError("boom")))
    assert "started at" in caught.value.__notes__[-1]


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


def test_a_replay_raises_what_the_program_caught() -> None:
    def program(provider: Provider) -> Session:
        failed = run([], agent_provider=provider)
        with pytest.raises(ValueError, match="boom") as caught:
            failed.text()
        assert (type(caught.value), str(caught.value)) == (ValueError, "boom")
        return failed

    failed = program(ScriptedClient([ValueError("boom")]).provider)
    with rath.replay(failed):
        program(ScriptedClient([]).provider)


def test_the_schemas_of_an_executor_are_offered_in_place_of_the_table() -> None:
    schema = RathLLMFunctionTool(name="only", parameters={"type": "object"})
    executor = Executor("done", schemas=(schema,))
    run([], ECHO, executor=executor).synchronize()
    assert executor.client.requests[0].tools == (schema,)


def test_an_executor_without_schemas_leaves_the_offer_to_the_loop() -> None:
    executor = Executor("done")
    run([], ECHO, executor=executor).synchronize()
    (request,) = executor.client.requests
    assert [tool.name for tool in request.tools or ()] == ["echo"]


@pytest.mark.parametrize("kind", [Executor, AsyncExecutor], ids=["def", "async def"])
def test_compression_and_selection_ask_an_executor(kind: Any) -> None:
    provider, user = Provider(model="m"), Session.from_user_message("a story")
    short = run_session_compress(user, AGENT, agent_provider=provider, executor=kind("short"))
    assert short.text() == "short"
    chosen = select_session(user, AGENT, "a", "b", agent_provider=provider, executor=kind("1"))
    assert chosen == (1, "b")
