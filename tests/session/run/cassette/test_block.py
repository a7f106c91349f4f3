"""A program that runs again on its record gets what it got, and nothing is done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import rath
from rath._async.runtime import runtime
from rath.errors import OfflineError, ProviderServerError, RateLimitError, ReplayDifference
from rath.flow import Agent, Compressor, Selector, Workflow
from rath.flow.tool import FlowToolCall
from rath.llm import (
    Provider,
    RathLLMChatRequest,
    RathLLMMessage,
    RathLLMStreamDelta,
    chat_client_for,
    register_chat_client,
)
from rath.memory import MemoryStoreSpec
from rath.session import (
    Session,
    list_persisted_sessions,
    run_session_loop,
    session_registry,
)
from rath.session.outcome import Cancelled
from rath.session.record import ModelCall
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.api import Candidate, Playback, ReplayedClient, history_of
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.replayed import Program, programs
from tests.support.sessions import AsyncFunctionTool, FunctionTool, run
from tests.support.waiting import PATIENCE

NOBODY = ScriptedClient([])
"""Asking it is an error."""


def must_not_run(*_: Any) -> None:
    raise AssertionError("a tool ran")


UNUSED = FunctionTool("f", must_not_run)


def ignore(_: RathLLMStreamDelta) -> None:
    return


def echo_tool() -> FlowToolCall:
    def echo(_: Session, arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    return FunctionTool("f", echo)


class Team(Workflow):
    """Two branches that are merged, after a first answer."""

    def __init__(self, provider: Provider, tool: FlowToolCall) -> None:
        super().__init__()
        self.first = Agent("Plan.", provider, [tool], system_tools=False)
        self.second = Agent("Work.", provider, [tool], system_tools=False)

    def forward(self, session: Session) -> Session:
        planned = self.first(session)
        one, two = self.second(planned.fork()), self.second(planned.fork())
        return one.merge(two)


SCRIPT: list[Turn] = [tool_call("f", {"a": 1}, id="c1"), "planned", "left", "right"]


def recorded(prompt: str = "go") -> Session:
    client = ScriptedClient(SCRIPT)
    return Team(client.provider, echo_tool())(Session.from_user_message(prompt)).synchronize()


def assert_same(again: Session, session: Session) -> None:
    assert again.chunk_table.rows == session.chunk_table.rows
    assert again.id == session.id
    assert again.cumulative_usage == session.cumulative_usage


def test_a_workflow_gets_what_it_got_under_the_recorded_ids() -> None:
    session = recorded()
    with rath.replay(session):
        again = Team(NOBODY.provider, UNUSED)(Session.from_user_message("go"))
        assert_same(again, session)
    assert NOBODY.requests == []


class Writes(Workflow):
    """Makes a session of its own, and a branch of it."""

    def __init__(self, provider: Provider) -> None:
        super().__init__()
        self.agent = Agent("Answer.", provider, system_tools=False)
        self.made: list[Session] = []

    def forward(self, session: Session) -> Session:
        own = Session.from_user_message("my own question")
        self.made += [own, own.fork(), own.detach()]
        return self.agent(own.fork()).merge(self.agent(session))


def test_what_a_workflow_makes_itself_has_the_recorded_ids_too() -> None:
    program = Writes(ScriptedClient(["one", "two"]).provider)
    out = program(Session.from_user_message("go")).synchronize()
    again = Writes(NOBODY.provider)
    with rath.replay(out):
        assert_same(again(Session.from_user_message("go")), out)
    assert [each.id for each in again.made] == [each.id for each in program.made]


@given(program=programs)
def test_any_program_gets_what_it_got(program: Program) -> None:
    out = program()
    # What a detached session came from is not known to it.
    if "detach" not in program.steps:
        n_runs = program.effects.n_runs
        with rath.replay(out):
            assert_same(program(NOBODY.provider), out)
        assert program.effects.n_runs == n_runs


def test_an_unread_replay_is_compared_at_the_end_of_the_block() -> None:
    session = recorded()
    with rath.replay(session):
        Team(NOBODY.provider, UNUSED)(Session.from_user_message("go"))


@given(order=st.permutations([0, 1, 2]))
def test_branches_with_other_inputs_may_come_in_another_order(order: list[int]) -> None:
    def answer(request: RathLLMChatRequest) -> str:
        return f"to {request.messages[-1].content}"

    client = ScriptedClient([answer] * 3)
    agent = Agent("Answer.", client.provider, system_tools=False)
    asked = [Session.from_user_message(text) for text in ("a", "b", "c")]
    answers = [agent(session).synchronize() for session in asked]
    with rath.replay(*answers):
        again = {at: agent(Session.from_user_message("abc"[at])) for at in order}
        for at, session in again.items():
            assert_same(session, answers[at]) if not session.parent_session_ids else None
            assert session.text() == answers[at].text()
            assert session.id == answers[at].id


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (lambda: Team(NOBODY.provider, UNUSED)(Session.from_user_message("went")),
         "row 0 of the input.*expected .*'go'.*found .*'went'"),
        (lambda: Agent("Plan.", NOBODY.provider, [UNUSED], system_tools=False)(
            Session.from_user_message("go")), "another place of the program"),
    ],
    ids=["prompt", "place"],
)  # fmt: skip
def test_another_beginning_is_told_at_the_call(program: Callable[[], Session], said: str) -> None:
    with pytest.raises(ReplayDifference, match=said), rath.replay(recorded()):
        program()


def test_a_difference_that_was_caught_is_raised_at_the_end() -> None:
    session = recorded()
    with pytest.raises(ReplayDifference, match="row 0 of the input"), rath.replay(session):
        try_quietly(lambda: Team(NOBODY.provider, UNUSED)(Session.from_user_message("went")))


def try_quietly(call: Callable[[], object]) -> None:
    with pytest.raises(ReplayDifference):
        call()


def test_another_error_of_the_program_names_a_difference_that_was_caught() -> None:
    session = recorded()

    def program() -> None:
        try_quietly(lambda: Team(NOBODY.provider, UNUSED)(Session.from_user_message("went")))
        raise KeyError("something else")

    with pytest.raises(KeyError) as told, rath.replay(session):
        program()
    assert "the replay had differed before" in told.value.__notes__[0]


def changed_tool() -> FlowToolCall:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    return FunctionTool("f", must_not_run, schema=schema)


@pytest.mark.parametrize(
    ("team", "said"),
    [
        (lambda: Team(NOBODY.provider, changed_tool()), "schema of tool 'f'.*properties"),
        (lambda: Team(NOBODY.provider, FunctionTool("g", must_not_run)), "'f'.*no such tool"),
        (lambda: Team(NOBODY.provider, UNUSED).to(model="another"), "'model'.*another"),
    ],
    ids=["schema", "another tool", "model"],
)
def test_what_is_sent_otherwise_is_told_where_it_is_read(
    team: Callable[[], Team], said: str
) -> None:
    with pytest.raises(ReplayDifference, match=said) as told, rath.replay(recorded()):
        team()(Session.from_user_message("go")).synchronize()
    assert "model call 1" in told.value.where


def test_other_instructions_are_told_with_the_row() -> None:
    client = ScriptedClient(["done"])
    out = Agent("Plan.", client.provider)(Session.from_user_message("go")).synchronize()
    with pytest.raises(ReplayDifference, match=r"the agent.*'Plan\.'.*'Dream\.'"), rath.replay(out):
        Agent("Dream.", NOBODY.provider)(Session.from_user_message("go"))


def test_what_was_not_asked_for_is_told_at_the_end() -> None:
    said = r"did not ask.*Team\.first#0.*Team\.second#1"
    with pytest.raises(ReplayDifference, match=said), rath.replay(recorded()):
        pass


def test_a_call_too_many_is_told() -> None:
    def program() -> None:
        for _ in range(2):
            Team(NOBODY.provider, UNUSED)(Session.from_user_message("go")).synchronize()

    with pytest.raises(ReplayDifference, match="no further one"), rath.replay(recorded()):
        program()


def test_fewer_rounds_than_recorded_are_told() -> None:
    client = ScriptedClient([tool_call("f"), tool_call("f"), "done"])
    agent = Agent("Plan.", client.provider, [echo_tool()], system_tools=False)
    out = agent(Session.from_user_message("go")).synchronize()
    short = Agent("Plan.", NOBODY.provider, [UNUSED], system_tools=False, max_tool_rounds=2)
    with pytest.raises(ReplayDifference, match="replay did not make"), rath.replay(out):
        short(Session.from_user_message("go")).synchronize()


def test_a_streamed_run_gives_its_deltas_again() -> None:
    client = ScriptedClient([tool_call("f", {"a": 1}), "so many words"])
    first: list[RathLLMStreamDelta] = []
    again: list[RathLLMStreamDelta] = []

    def program(provider: Provider, tool: FlowToolCall, told: list[RathLLMStreamDelta]) -> Session:
        agent = Agent("Plan.", provider, [tool], system_tools=False, on_event=told.append)
        return agent(Session.from_user_message("go")).synchronize()

    out = program(client.provider, echo_tool(), first)
    with rath.replay(out):
        assert_same(program(NOBODY.provider, UNUSED, again), out)
    texts = [
        [delta.content_delta for delta in told if delta.content_delta] for told in (first, again)
    ]
    assert texts[0] == texts[1] == ["so", " many", " words"]


def test_a_failed_model_fails_again_with_the_class_that_it_had() -> None:
    def busy(_: object) -> Says:
        raise RateLimitError("slow down", status=429)

    provider = Provider(**_fields(OfflineVendor(busy).provider), retry_max_attempts=1)
    agent = Agent("Plan.", provider, system_tools=False)
    out = agent(Session.from_user_message("go"))
    with pytest.raises(RateLimitError):
        out.synchronize()
    with rath.replay(out):
        again = agent(Session.from_user_message("go"))
        with pytest.raises(RateLimitError, match="slow down"):
            again.synchronize()


def _fields(provider: Provider) -> dict[str, Any]:
    return {"model": provider.model, "provider_kind": provider.provider_kind}


def test_a_key_is_not_needed_and_nothing_is_sent() -> None:
    vendor = OfflineVendor(lambda _: Says("hello"))
    kind = vendor.provider.provider_kind
    assert kind is not None
    out = run([], agent_provider=vendor.provider).synchronize()
    n_sent = len(vendor.requests)
    agent = Session.from_agent_prompt("You are a test.")
    with rath.replay(out):
        user = Session.from_user_message("go")
        again = run_session_loop(user, agent, agent_provider=vendor.provider, system_tools=False)
        assert again.text() == "hello"
    assert len(vendor.requests) == n_sent
    openai = Provider(model="gpt-x", provider_kind="openai")
    with pytest.raises(ReplayDifference, match="gpt-x"), rath.replay(out):
        run_session_loop(
            Session.from_user_message("go"), agent, agent_provider=openai, system_tools=False
        ).synchronize()


def test_a_provider_that_cannot_even_write_a_request_is_refused_as_ever() -> None:
    out = run(["hello"]).synchronize()
    with pytest.raises(ValueError, match="unknown provider_kind"), rath.replay(out):
        run([], agent_provider=Provider(model="m", provider_kind="no-such-kind"))


def test_compressions_and_selections_are_served() -> None:
    client = ScriptedClient(["first", "short", "1", "last"])

    def program(provider: Provider) -> tuple[Session, Workflow]:
        agent = Agent("Plan.", provider, system_tools=False)
        compressor, selector = Compressor("Shorten.", provider), Selector(provider)
        short = compressor(agent(Session.from_user_message("go")))
        others = [Agent(name, provider, system_tools=False) for name in ("one", "two")]
        chosen = selector.forward(short, *others)
        return chosen(short).synchronize(), chosen

    out, _ = program(client.provider)
    with rath.replay(out):
        again, chosen = program(NOBODY.provider)
        assert_same(again, out)
        assert isinstance(chosen, Agent)
        assert chosen.agent.agent_session.chunk_table[0].payload["content"] == "two"


def test_checks_are_served_and_run_nothing(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    client = ScriptedClient(["done"])
    session = Session.from_user_message("go").to("local", spec=str(tmp_path))
    out = run([], user=session, agent_provider=client.provider).synchronize()
    verdict = out.check("tests", "echo x >> marks/ran")
    assert verdict.passed
    with rath.replay(out):
        user = Session.from_user_message("go").to("local", spec=str(tmp_path))
        again = run([], user=user, agent_provider=NOBODY.provider)
        assert again.check("tests", "echo x >> marks/ran") == verdict
        assert [one.verdict for one in again.verdicts] == [verdict]
    assert (marks / "ran").read_text() == "x\n"
    with pytest.raises(ReplayDifference, match="no check 'tests' by 'true'"), rath.replay(out):
        run([], user=Session.from_user_message("go"), agent_provider=NOBODY.provider).check(
            "tests", "true"
        )


def test_forks_with_files_of_their_own_open_no_sandbox(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")

    def program(provider: Provider) -> Session:
        user = Session.from_user_message("go").to("local", spec=str(tmp_path))
        first = run([], user=user, agent_provider=provider, system_tools=True)
        branch = first.fork(workspace="copy")
        return run([], user=branch, agent_provider=provider, system_tools=True).merge(
            first, files="ours"
        )

    client = ScriptedClient(
        [tool_call("write_workspace_file", {"path": "b", "content": "b"}), "1", "2"]
    )
    out = program(client.provider).synchronize()
    (tmp_path / "b").unlink()
    with rath.replay(out):
        again = program(NOBODY.provider)
        assert_same(again, out)
        assert again.sandbox is None
    assert not (tmp_path / "b").exists()


def test_recalled_notes_come_from_the_record_and_commits_are_not_made(tmp_path: Path) -> None:
    spec = MemoryStoreSpec(options={"path": str(tmp_path / "memory")})
    client = ScriptedClient(["hello Ada"])

    def program(provider: Provider) -> Session:
        with Agent("Greet.", provider, memory=spec, commit_on_forward=True,
                   system_tools=False) as agent:  # fmt: skip
            return agent(Session.from_user_message("what is my name?")).synchronize()

    with Agent("Greet.", client.provider, memory=spec) as writer:
        writer.remember_memory("my name is Ada", wait=True)
    out = program(client.provider)
    (call,) = [entry for entry in out.record if isinstance(entry, ModelCall)]
    assert call.seen is not None
    assert call.seen.recalled
    with Agent("Greet.", client.provider, memory=spec) as writer:
        writer.remember_memory("my name is Bob", wait=True)
    with rath.replay(out):
        assert_same(program(NOBODY.provider), out)


@pytest.mark.parametrize("name", ["remember_memory", "recall_memory", "forget_memory"])
def test_a_memory_that_is_asked_outside_of_a_run_is_refused(name: str) -> None:
    out = run(["hello"]).synchronize()
    agent = Agent("Greet.", NOBODY.provider, memory="local")
    with agent, pytest.raises(ReplayDifference, match=f"{name} asks"), rath.replay(out):
        getattr(agent, name)("a note")


def test_what_follows_a_cancelled_run_passes_it_on_again() -> None:
    is_there = threading.Event()

    async def stop(session: Session, _: dict[str, Any]) -> None:
        await asyncio.to_thread(is_there.wait, PATIENCE)
        out.cancel()
        await asyncio.Event().wait()

    client = ScriptedClient([tool_call("f")])
    agent = Agent("Plan.", client.provider, [AsyncFunctionTool("f", stop)], system_tools=False)
    out = agent(Session.from_user_message("go"))
    is_there.set()
    last = agent(out).synchronize()
    assert isinstance(last.outcome, Cancelled)
    with rath.replay(last):
        unused = Agent("Plan.", NOBODY.provider, [AsyncFunctionTool("f", stop)], system_tools=False)
        again = unused(unused(Session.from_user_message("go")))
        assert again.outcome == last.outcome
        assert_same(again, last)


class Point(BaseModel):
    """A typed answer."""

    x: int


def test_a_typed_answer_is_an_object_again() -> None:
    client = ScriptedClient(
        [tool_call("final_answer", {"x": "?"}), tool_call("final_answer", {"x": 1})]
    )

    def program(provider: Provider) -> Session:
        agent = Agent("Measure.", provider, system_tools=False, output=Point)
        return agent(Session.from_user_message("go")).synchronize()

    out = program(client.provider)
    with rath.replay(out):
        assert program(NOBODY.provider).output == Point(x=1)


def test_other_live_calls_are_refused_meanwhile() -> None:
    out = run(["hello"]).synchronize()
    live = Provider(model="m", base_url="http://127.0.0.1:1/v1", api_key="sk-x")
    request = RathLLMChatRequest(messages=(RathLLMMessage("user", "hi"),), model="m")
    with pytest.raises(OfflineError), rath.replay(out):
        chat_client_for(live).complete(request)


def test_a_replay_stores_and_registers_nothing(tmp_path: Path) -> None:
    out = run(["hello"]).synchronize()
    with rath.replay(out), rath.autosave():
        again = run([], agent_provider=NOBODY.provider, persist=True).fork().synchronize()
    assert again.text() == "hello"
    assert list_persisted_sessions() == []
    assert session_registry().get(out.id) is out


def test_a_replayed_session_replays() -> None:
    session = recorded()
    with rath.replay(session):
        again = Team(NOBODY.provider, UNUSED)(Session.from_user_message("go")).synchronize()
    assert again.replay().chunk_table.rows == session.chunk_table.rows


def test_the_real_thing_is_back_after_the_block() -> None:
    with rath.replay(recorded()):
        Team(NOBODY.provider, UNUSED)(Session.from_user_message("go"))
    assert run(["live again"]).text() == "live again"


def test_a_client_of_a_kind_that_answers_differently_now_is_not_asked() -> None:
    vendor = OfflineVendor(lambda _: Says("then"))
    out = run([], agent_provider=vendor.provider).synchronize()
    register_chat_client(str(vendor.provider.provider_kind), lambda _: ScriptedClient(["now"]))
    with pytest.raises(ReplayDifference, match=r"parameter|request"), rath.replay(out):
        run([], agent_provider=vendor.provider).synchronize()


def spent_compression(provider: Provider) -> Session:
    """A compression for which no budget was left."""
    user = run([], agent_provider=provider)
    return Compressor("Shorten.", provider)(user)


def test_a_compression_without_a_budget_is_made_without_a_question_again() -> None:
    limited = ScriptedClient(["one two three"], provider=Provider(budget_total_tokens=1))
    out = spent_compression(limited.provider).synchronize()
    nobody = ScriptedClient([], provider=Provider(budget_total_tokens=1))
    with rath.replay(out):
        again = spent_compression(nobody.provider)
        assert_same(again, out)
        assert again.outcome == out.outcome
    with pytest.raises(ReplayDifference, match="made without a question"), rath.replay(out):
        spent_compression(NOBODY.provider).synchronize()


def test_a_replayed_run_can_be_cancelled() -> None:
    client = ScriptedClient(["many words", "done"])
    out = run([], agent_provider=client.provider, on_event=ignore).synchronize()
    is_there = threading.Event()

    def cancel(_: RathLLMStreamDelta) -> None:
        assert is_there.wait(PATIENCE)
        again.cancel()

    with rath.replay(out):
        again = run([], agent_provider=NOBODY.provider, on_event=cancel)
        is_there.set()
        assert again.synchronize().outcome == Cancelled(out.id)


def test_the_same_rows_of_another_session_are_not_the_same_input() -> None:
    client = ScriptedClient(["same", "same", "more"])
    first, second = (run([], agent_provider=client.provider).synchronize() for _ in range(2))
    third = run([], user=second, agent_provider=client.provider).synchronize()

    def program() -> None:
        again = [run([], agent_provider=NOBODY.provider).synchronize() for _ in range(2)]
        run([], user=again[0], agent_provider=NOBODY.provider)

    with pytest.raises(ReplayDifference, match="another session"), rath.replay(first, third):
        program()


def test_a_replayed_model_answers_only_within_a_run() -> None:
    out = run(["hello"]).synchronize()
    playback = Playback(history_of(out))
    live = Candidate(ScriptedClient([]), Provider(model="m"))
    (candidate,) = playback.candidates((live,))
    client = candidate.client
    assert isinstance(client, ReplayedClient)
    request = RathLLMChatRequest(messages=(RathLLMMessage("user", "hi"),), model="m")
    for call in (client.complete, client.complete_stream):
        with pytest.raises(RuntimeError, match="only within a run"):
            call(request)
    draft = client.open_draft(request, streaming=False, provider_origin="call")
    assert b'"hi"' in draft.body()
    with pytest.raises(ReplayDifference, match="without a question"):
        runtime().run(draft.asend, label="a test")


def test_fallbacks_of_a_program_answer_where_they_had() -> None:
    answers: list[Says | Exception] = [ProviderServerError("busy", status=503), Says("back")]

    def serve(_: object) -> Says:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    first, second = OfflineVendor(serve), OfflineVendor(lambda _: Says("by another"))
    provider = Provider(
        **_fields(first.provider), retry_max_attempts=1, fallbacks=[second.provider]
    )
    out = run([], agent_provider=provider).synchronize()
    with rath.replay(out):
        assert run([], agent_provider=provider).text() == "by another"
    assert len(answers) == 1
