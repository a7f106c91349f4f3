"""A program that runs again on its record, or on a cassette, gets what it got without effects."""

from __future__ import annotations

import asyncio
import inspect
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import rath
from rath._async.runtime import runtime
from rath.errors import OfflineError, PersistenceError, ReplayDifference
from rath.flow import Agent, Compressor, Workflow
from rath.flow.tool import FlowToolCall
from rath.llm import (
    Provider,
    RathLLMChatRequest,
    RathLLMMessage,
    chat_client_for,
)
from rath.memory import MemoryStoreSpec
from rath.session import Session, list_persisted_sessions, session_registry
from rath.session.record import ModelCall, Operation
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.api import Playback, ProviderCandidate, ReplayedClient, history_of
from tests.support.images import picture
from tests.support.random_programs import Program, programs
from tests.support.sessions import FunctionTool, entries_of, run


class Greeter:
    """An agent with a tool, of which every effect counts."""

    def __init__(self, *script: Any) -> None:
        usual: list[Turn] = [tool_call("f", {"x": 1}), "hello", "more"]
        self.client = ScriptedClient(script or usual)
        self.n_runs = 0
        tool = FunctionTool("f", self._call)
        self.agent = Agent("Greet.", self.client.provider, [tool], system_tools=False)

    def _call(self, _: Session, arguments: dict[str, Any]) -> dict[str, Any]:
        self.n_runs += 1
        return arguments

    def __call__(self, prompt: str = "hi") -> str | None:
        first = self.agent(Session.from_user_message(prompt, images=[picture(b"x")]))
        return self.agent(first.fork()).text()


def test_the_first_run_is_live_and_the_next_ones_are_not(tmp_path: Path) -> None:
    path, program = tmp_path / "new" / "greeting.jsonl", Greeter()
    play = rath.cassette(path)(program.__call__)
    reply = [play(), play(), play()]
    assert reply == ["more"] * 3
    assert (program.n_runs, len(program.client.requests)) == (1, 3)
    assert path.stat().st_mode & 0o077 == 0


def test_the_file_holds_no_key_and_is_a_zip_of_logs_as_they_are(tmp_path: Path) -> None:
    path, program = tmp_path / "c.jsonl", Greeter()
    key = "sk-canary-0123456789"
    program.agent.agent.to(Provider(model="m", provider_kind=program.client.provider.provider_kind,
                                    api_key=key))  # fmt: skip
    rath.cassette(path)(program)()
    data = path.read_bytes()
    assert key.encode() not in data
    with zipfile.ZipFile(path) as file:
        assert all(file.read(name) in data for name in file.namelist())


def test_a_test_that_fails_while_it_records_leaves_no_file(tmp_path: Path) -> None:
    path, program = tmp_path / "c.jsonl", Greeter()

    @rath.cassette(path)
    def fails() -> None:
        program()
        raise AssertionError("as asked")

    with pytest.raises(AssertionError, match="as asked"):
        fails()
    assert list(tmp_path.iterdir()) == []


def test_a_replay_offers_the_tools_that_were_recorded(tmp_path: Path) -> None:
    # As in what was recorded before runs without a sandbox left its tools out.
    agent = Agent("p", ScriptedClient(["ok"]).provider)
    is_placed = [True, False]

    @rath.cassette(tmp_path / "c.jsonl")
    def ask() -> list[str]:
        user = Session.from_user_message("hi")
        out = agent(user.to("local") if is_placed.pop(0) else user).synchronize()
        (operation,) = [each for each in out.record if isinstance(each, Operation)]
        return [tool.name for tool in operation.tools]

    recorded = ask()
    assert "run_shell_command" in recorded
    assert ask() == recorded


def test_an_async_function_is_recorded_and_replayed(tmp_path: Path) -> None:
    program = Greeter()

    @rath.cassette(tmp_path / "c.jsonl")
    async def ask(prompt: str) -> str | None:
        return (await program.agent(Session.from_user_message(prompt))).text()

    assert inspect.iscoroutinefunction(ask)
    assert [asyncio.run(ask("hi")), asyncio.run(ask("hi"))] == ["hello", "hello"]
    assert program.n_runs == 1


def test_a_failed_run_fails_again_and_what_came_before_is_there(tmp_path: Path) -> None:
    program = Greeter(tool_call("f", {}), RuntimeError("down"))

    @rath.cassette(tmp_path / "c.jsonl")
    def ask() -> int:
        out = program.agent(Session.from_user_message("hi"))
        with pytest.raises(Exception, match="down"):
            out.synchronize()
        return len(out.partial_table)

    assert [ask(), ask()] == [3, 3]
    assert program.n_runs == 1


def test_a_replay_makes_no_other_live_calls(tmp_path: Path) -> None:
    path, program = tmp_path / "c.jsonl", Greeter()
    with rath.cassette(path):
        program()
    live = chat_client_for(Provider(model="m", base_url="http://127.0.0.1:1/v1", api_key="sk-x"))
    request = RathLLMChatRequest(messages=(RathLLMMessage("user", "hi"),), model="m")
    with pytest.raises(OfflineError), rath.cassette(path):
        live.complete(request)


def test_the_environment_says_it_for_all_that_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, program = tmp_path / "c.jsonl", Greeter("a", "b", "c", "d")
    monkeypatch.setenv("OPENRATH_CASSETTE", "replay")
    with pytest.raises(PersistenceError, match="no cassette"):
        rath.cassette(path)(program)()
    monkeypatch.setenv("OPENRATH_CASSETTE", "record")
    assert [rath.cassette(path)(program)() for _ in range(2)] == ["b", "d"]
    assert rath.cassette(path, mode="replay")(program)() == "d"
    monkeypatch.setenv("OPENRATH_CASSETTE", "sometimes")
    with pytest.raises(ValueError, match="OPENRATH_CASSETTE is 'sometimes'"):
        rath.cassette(path)(program)()


def _generate() -> Any:
    yield 1


async def _generate_async() -> Any:
    yield 1


@pytest.mark.parametrize("function", [_generate, _generate_async])
def test_a_generator_is_refused(tmp_path: Path, function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="is a generator"):
        rath.cassette(tmp_path / "c.jsonl")(function)


NOBODY = ScriptedClient([])


"""Asking it is an error."""


def must_not_run(*_: Any) -> None:
    raise AssertionError("a tool ran")


UNUSED = FunctionTool("f", must_not_run)


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


@given(program=programs)
def test_any_program_gets_what_it_got(program: Program) -> None:
    out = program()
    # What a detached session came from is not known to it.
    if "detach" not in program.steps:
        n_runs = program.effects.n_runs
        with rath.replay(out):
            assert_same(program(NOBODY.provider), out)
        assert program.effects.n_runs == n_runs


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
    ("program", "reply"),
    [
        (lambda: Team(NOBODY.provider, UNUSED)(Session.from_user_message("went")),
         "row 0 of the input.*expected .*'go'.*found .*'went'"),
        (lambda: Agent("Plan.", NOBODY.provider, [UNUSED], system_tools=False)(
            Session.from_user_message("go")), "another place of the program"),
    ],
    ids=["prompt", "place"],
)  # fmt: skip
def test_another_input_is_a_difference_at_the_call(
    program: Callable[[], Session], reply: str
) -> None:
    with pytest.raises(ReplayDifference, match=reply), rath.replay(recorded()):
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

    with pytest.raises(KeyError) as reports, rath.replay(session):
        program()
    assert "the replay had differed before" in reports.value.__notes__[0]


def changed_tool() -> FlowToolCall:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    return FunctionTool("f", must_not_run, schema=schema)


@pytest.mark.parametrize(
    ("team", "reply"),
    [
        (lambda: Team(NOBODY.provider, changed_tool()), "schema of tool 'f'.*properties"),
        (lambda: Team(NOBODY.provider, FunctionTool("g", must_not_run)), "'f'.*no such tool"),
        (lambda: Team(NOBODY.provider, UNUSED).to(model="another"), "'model'.*another"),
    ],
    ids=["schema", "another tool", "model"],
)
def test_another_request_is_a_difference_at_its_model_call(
    team: Callable[[], Team], reply: str
) -> None:
    with pytest.raises(ReplayDifference, match=reply) as reports, rath.replay(recorded()):
        team()(Session.from_user_message("go")).synchronize()
    assert "model call 1" in reports.value.where


def test_recorded_runs_that_nobody_asked_for_are_a_difference_at_the_end() -> None:
    reply = r"did not ask.*Team\.first#0.*Team\.second#1"
    with pytest.raises(ReplayDifference, match=reply), rath.replay(recorded()):
        pass


def test_an_additional_run_is_a_difference() -> None:
    def program() -> None:
        for _ in range(2):
            Team(NOBODY.provider, UNUSED)(Session.from_user_message("go")).synchronize()

    with pytest.raises(ReplayDifference, match="no further one"), rath.replay(recorded()):
        program()


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
    (call,) = entries_of(out, ModelCall)
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


def test_a_replay_stores_and_registers_nothing(tmp_path: Path) -> None:
    out = run(["hello"]).synchronize()
    with rath.replay(out), rath.autosave():
        again = run([], agent_provider=NOBODY.provider, persist=True).fork().synchronize()
    assert again.text() == "hello"
    assert list_persisted_sessions() == []
    assert session_registry().get(out.id) is out


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
    live = ProviderCandidate(ScriptedClient([]), Provider(model="m"))
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
