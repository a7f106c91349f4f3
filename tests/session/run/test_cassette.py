"""The first run of a cassette is live, and all later ones are replayed from one file."""

from __future__ import annotations

import asyncio
import inspect
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rath
from rath.errors import OfflineError, PersistenceError, ReplayDifference, SessionDamaged
from rath.flow import Agent
from rath.llm import Provider, RathLLMChatRequest, RathLLMMessage, chat_client_for
from rath.session import Session
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.images import picture
from tests.support.sessions import FunctionTool


class Program:
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
    path, program = tmp_path / "new" / "greeting.jsonl", Program()
    play = rath.cassette(path)(program.__call__)
    said = [play(), play(), play()]
    assert said == ["more"] * 3
    assert (program.n_runs, len(program.client.requests)) == (1, 3)
    assert path.stat().st_mode & 0o077 == 0


def test_the_file_holds_no_key_and_is_a_zip_of_logs_as_they_are(tmp_path: Path) -> None:
    path, program = tmp_path / "c.jsonl", Program()
    key = "sk-canary-0123456789"
    program.agent.agent.to(Provider(model="m", provider_kind=program.client.provider.provider_kind,
                                    api_key=key))  # fmt: skip
    rath.cassette(path)(program)()
    data = path.read_bytes()
    assert key.encode() not in data
    with zipfile.ZipFile(path) as file:
        assert all(file.read(name) in data for name in file.namelist())


def test_another_prompt_differs(tmp_path: Path) -> None:
    path, program = tmp_path / "c.jsonl", Program()
    rath.cassette(path)(program)("hi")
    with pytest.raises(ReplayDifference, match=r"'hi'.*'ho'"):
        rath.cassette(path)(program)("ho")
    assert len(program.client.requests) == 3


def test_a_test_that_fails_while_it_records_leaves_no_file(tmp_path: Path) -> None:
    path, program = tmp_path / "c.jsonl", Program()

    @rath.cassette(path)
    def fails() -> None:
        program()
        raise AssertionError("as asked")

    with pytest.raises(AssertionError, match="as asked"):
        fails()
    assert list(tmp_path.iterdir()) == []


def test_an_async_function_is_recorded_and_replayed(tmp_path: Path) -> None:
    program = Program()

    @rath.cassette(tmp_path / "c.jsonl")
    async def ask(prompt: str) -> str | None:
        return (await program.agent(Session.from_user_message(prompt))).text()

    assert inspect.iscoroutinefunction(ask)
    assert [asyncio.run(ask("hi")), asyncio.run(ask("hi"))] == ["hello", "hello"]
    assert program.n_runs == 1


def test_a_block_is_recorded_and_replayed(tmp_path: Path) -> None:
    path, program = tmp_path / "c.jsonl", Program()
    with rath.cassette(path):
        first = program.agent(Session.from_user_message("hi"))
    with rath.cassette(path):
        again = program.agent(Session.from_user_message("hi"))
        assert (again.text(), again.id) == ("hello", first.id)
    assert program.n_runs == 1


def test_one_cassette_may_be_entered_again_and_inside_itself(tmp_path: Path) -> None:
    program = Program()
    tape = rath.cassette(tmp_path / "c.jsonl")
    with tape:
        assert program() == "more"
    with tape:
        assert program() == "more"


def test_a_failed_run_fails_again_and_what_came_before_is_there(tmp_path: Path) -> None:
    program = Program(tool_call("f", {}), RuntimeError("down"))

    @rath.cassette(tmp_path / "c.jsonl")
    def ask() -> int:
        out = program.agent(Session.from_user_message("hi"))
        with pytest.raises(Exception, match="down"):
            out.synchronize()
        return len(out.partial_table)

    assert [ask(), ask()] == [3, 3]
    assert program.n_runs == 1


def test_what_tools_ask_of_other_agents_belongs_to_their_call(tmp_path: Path) -> None:
    inner = ScriptedClient(["inner"])
    helper = Agent("Help.", inner.provider, system_tools=False)

    def ask_helper(session: Session, _: dict[str, Any]) -> str | None:
        return helper(session).text()

    tool = FunctionTool("ask", ask_helper)
    client = ScriptedClient([tool_call("ask"), "outer"])
    agent = Agent("Greet.", client.provider, [tool], system_tools=False)

    @rath.cassette(tmp_path / "c.jsonl")
    def ask() -> Any:
        out = agent(Session.from_user_message("hi")).synchronize()
        return out.text(), out.cumulative_usage

    assert ask() == ask()
    assert len(inner.requests) == 1


def test_code_that_asks_nobody_has_an_empty_cassette(tmp_path: Path) -> None:
    @rath.cassette(tmp_path / "c.jsonl")
    def play() -> int:
        return 1

    assert [play(), play()] == [1, 1]


def test_a_replay_makes_no_other_live_calls(tmp_path: Path) -> None:
    path, program = tmp_path / "c.jsonl", Program()
    with rath.cassette(path):
        program()
    live = chat_client_for(Provider(model="m", base_url="http://127.0.0.1:1/v1", api_key="sk-x"))
    request = RathLLMChatRequest(messages=(RathLLMMessage("user", "hi"),), model="m")
    with pytest.raises(OfflineError), rath.cassette(path):
        live.complete(request)


def test_recording_anew_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    assert rath.cassette(path)(Program())() == "more"
    other = Program("else", "new")
    assert rath.cassette(path, mode="record")(other)() == "new"
    assert rath.cassette(path, mode="replay")(other)() == "new"


def test_a_mode_that_never_records_needs_the_file(tmp_path: Path) -> None:
    program = Program()
    with pytest.raises(PersistenceError, match=r"no cassette .*c\.jsonl.*OPENRATH_CASSETTE=record"):
        rath.cassette(tmp_path / "c.jsonl", mode="replay")(program)()
    assert program.client.requests == []


def test_the_environment_says_it_for_all_that_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, program = tmp_path / "c.jsonl", Program("a", "b", "c", "d")
    monkeypatch.setenv("OPENRATH_CASSETTE", "replay")
    with pytest.raises(PersistenceError, match="no cassette"):
        rath.cassette(path)(program)()
    monkeypatch.setenv("OPENRATH_CASSETTE", "record")
    assert [rath.cassette(path)(program)() for _ in range(2)] == ["b", "d"]
    assert rath.cassette(path, mode="replay")(program)() == "d"
    monkeypatch.setenv("OPENRATH_CASSETTE", "sometimes")
    with pytest.raises(ValueError, match="OPENRATH_CASSETTE is 'sometimes'"):
        rath.cassette(path)(program)()


@pytest.mark.parametrize("mode", ["", "Auto", "live"])
def test_an_unknown_mode_is_refused_at_once(tmp_path: Path, mode: Any) -> None:
    with pytest.raises(ValueError, match="expected 'auto', 'record' or 'replay'"):
        rath.cassette(tmp_path / "c.jsonl", mode=mode)


def _generate() -> Any:
    yield 1


async def _generate_async() -> Any:
    yield 1


@pytest.mark.parametrize("function", [_generate, _generate_async])
def test_a_generator_is_refused(tmp_path: Path, function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="is a generator"):
        rath.cassette(tmp_path / "c.jsonl")(function)


def test_a_damaged_cassette_is_named(tmp_path: Path) -> None:
    path, program = tmp_path / "c.jsonl", Program()
    rath.cassette(path)(program)()
    path.write_bytes(path.read_bytes().replace(b"Greet.", b"Greed."))
    with pytest.raises(SessionDamaged, match=r"c\.jsonl: .* changed or cut off"):
        rath.cassette(path)(program)()
