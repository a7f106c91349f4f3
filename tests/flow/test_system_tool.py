"""Built-in tools, long outputs that are read in parts, and tools that users derive."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from rath import flow
from rath.backend import (
    CodeResult,
    CommandResult,
    FileContent,
    FileEditResult,
    FileEntries,
    FileWriteResult,
    ToolExecutionFailure,
)
from rath.flow.tool import (
    FlowToolCall,
    flow_tool_code_run,
    flow_tool_command_run,
    flow_tool_files_edit,
    flow_tool_files_exists,
    flow_tool_files_list,
    flow_tool_files_read,
    flow_tool_files_write,
    global_system_tools,
)
from rath.llm import RathLLMAssistantMessage, RathLLMChatRequest
from rath.session import ChunkKind, Session
from rath.session.record import ToolRun
from rath.testing import ScriptedClient, tool_call


@pytest.fixture
def placed(tmp_path: Path) -> Iterator[Session]:
    """A session in an empty workspace."""
    session = Session.from_user_message("hi").to("local", spec=str(tmp_path))
    yield session
    session.close_sandbox()


def test_a_file_is_written_and_read_back(placed: Session, tmp_path: Path) -> None:
    written = flow_tool_files_write(placed, "dir/a.txt", "words", mode=0o600)
    assert written == FileWriteResult(5)
    assert (tmp_path / "dir" / "a.txt").read_text() == "words"
    assert (tmp_path / "dir" / "a.txt").stat().st_mode & 0o777 == 0o600
    assert flow_tool_files_read(placed, "dir/a.txt") == FileContent("words")
    assert flow_tool_files_read(placed, "dir/a.txt", encoding=None) == FileContent(b"words")


def test_a_part_of_a_file_is_read(placed: Session) -> None:
    flow_tool_files_write(placed, "a.txt", "one\ntwo\nthree\n")
    part = flow_tool_files_read(placed, "a.txt", offset=1, limit=1)
    assert part == FileContent("two\n", next_offset=2, total=3)


def test_a_file_is_edited(placed: Session, tmp_path: Path) -> None:
    flow_tool_files_write(placed, "a.txt", "one\none\n")
    assert isinstance(flow_tool_files_edit(placed, "a.txt", "one", "1"), ToolExecutionFailure)
    result = flow_tool_files_edit(placed, "a.txt", "one", "1", replace_all=True)
    assert isinstance(result, FileEditResult)
    assert (tmp_path / "a.txt").read_text() == "1\n1\n"


def test_files_are_listed_and_found(placed: Session, tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    entries = flow_tool_files_list(placed, ".")
    assert isinstance(entries, FileEntries)
    assert [entry.name for entry in entries.entries] == ["a.txt"]
    assert flow_tool_files_exists(placed, "a.txt") is True
    assert flow_tool_files_exists(placed, "b.txt") is False


def test_a_missing_file_is_a_value(placed: Session) -> None:
    assert isinstance(flow_tool_files_read(placed, "none.txt"), ToolExecutionFailure)


def test_a_command_gets_all_of_its_options(placed: Session, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    result = flow_tool_command_run(
        placed,
        ["sh", "-c", 'printf "%s " "$WORD"; pwd; cat'],
        env={"WORD": "given"},
        cwd="sub",
        stdin=b"input",
        timeout=10,
    )
    assert isinstance(result, CommandResult)
    assert result.exit_code == 0
    assert result.stdout == f"given {(tmp_path / 'sub').resolve()}\ninput".encode()


def test_code_runs(placed: Session) -> None:
    result = flow_tool_code_run(placed, "print(6 * 7)", timeout=10)
    assert isinstance(result, CodeResult)
    assert "42" in str(result.stdout)


def test_a_built_in_tool_can_be_called_by_a_program(placed: Session) -> None:
    tools = global_system_tools()
    tools["write_workspace_file"](placed, {"path": "a.txt", "content": "words"})
    assert tools["read_workspace_file"](placed, {"path": "a.txt"}) == FileContent("words")


def test_without_a_place_there_is_nowhere_to_run() -> None:
    with pytest.raises(RuntimeError, match=r'session\.to\("local"\)'):
        flow_tool_files_list(Session.from_user_message("hi"), ".")


def last_result(request: RathLLMChatRequest) -> dict[str, Any]:
    """What the model was shown last."""
    shown: dict[str, Any] = json.loads(str(request.messages[-1].content))
    return shown


def tool_runs(session: Session) -> list[ToolRun]:
    return [entry for entry in session.record if isinstance(entry, ToolRun)]


def test_a_model_reads_the_rest_of_a_long_output(placed: Session) -> None:
    def read_on(request: RathLLMChatRequest) -> RathLLMAssistantMessage:
        path = last_result(request)["kept"]["stdout"]
        return tool_call("read_workspace_file", {"path": path, "offset": 7000, "limit": 2})

    client = ScriptedClient(
        [
            tool_call("run_shell_command", {"cmd": "seq 10000"}),
            read_on,
            lambda request: last_result(request)["data"],
        ]
    )
    out = flow.Agent("Count.", client.provider)(placed)
    assert out.text() == "7001\n7002\n"
    command = tool_runs(out)[0]
    assert command.full is not None
    whole = json.loads((command.full.data or b"").decode())
    assert whole["stdout"] == "".join(f"{n}\n" for n in range(1, 10_001))


def test_a_model_edits_a_file_and_reads_the_diff(placed: Session, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 1\n")
    edit = {"path": "a.py", "old": "= 1", "new": "= 2"}
    client = ScriptedClient(
        [
            tool_call("edit_workspace_file", edit),
            tool_call("edit_workspace_file", {**edit, "old": "z = 1"}),
            tool_call("edit_workspace_file", {**edit, "old": "y = 1", "new": "y = 2"}),
            lambda request: last_result(request)["diff"],
        ]
    )
    out = flow.Agent("Edit.", client.provider)(placed)
    assert "-y = 1\n+y = 2\n" in (out.text() or "")
    assert [run.error_kind for run in tool_runs(out)] == ["text_not_unique", "text_not_found", None]
    (effect,) = tool_runs(out)[-1].file_effects
    assert (effect.path, effect.kind, effect.attribution) == ("a.py", "changed", "exact")


class Plain(FlowToolCall):
    """Doubles a number."""

    @property
    def name(self) -> str:
        return "double"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
            "additionalProperties": False,
        }

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        return {"doubled": 2 * arguments["n"]}


class Awaited(Plain):
    """The same as a coroutine."""

    async def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        return {"doubled": 2 * arguments["n"]}


def test_a_tool_needs_name_parameters_and_call() -> None:
    assert FlowToolCall.__abstractmethods__ == {"name", "parameters", "__call__"}


def test_what_a_tool_gets_by_itself() -> None:
    tool = Plain()
    assert tool.description is None
    assert tool.parallel_safe is False
    assert tool.timeout is None
    assert tool.effects == "non_idempotent"
    assert tool.origin == f"{__name__}:Plain"


def test_the_lane_follows_parallel_safe() -> None:
    class Safe(Plain):
        parallel_safe = True

    assert Plain().resource_key({}) == ("global",)
    assert Safe().resource_key({}) == ("safe", "double")


@pytest.mark.parametrize("tool", [Plain(), Awaited()], ids=["def", "async def"])
def test_an_agent_runs_it_and_the_model_reads_its_result(tool: FlowToolCall) -> None:
    client = ScriptedClient([tool_call("double", {"n": 21}), "42"])
    out = flow.Agent("p", client.provider, [tool])(Session.from_user_message("hi"))
    assert out.text() == "42"
    results = [row for row in out.chunk_table if row.kind is ChunkKind.TOOL_RESULT]
    assert [json.loads(row.payload["content"]) for row in results] == [{"doubled": 42}]


@pytest.mark.parametrize("name", global_system_tools())
def test_a_schema_that_a_program_adapts_is_its_own(name: str) -> None:
    tool = global_system_tools()[name]
    before = deepcopy(tool.parameters)
    tool.parameters["properties"].clear()
    assert tool.parameters == before
