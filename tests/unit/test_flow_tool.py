"""The built-in tools: names, schemas, lanes and what they ask of a sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import rath.flow
import rath.flow.tool
from rath.backend import (
    BackendTool,
    BackendToolCodeRun,
    BackendToolCommandRun,
    BackendToolFilesEdit,
    BackendToolFilesExists,
    BackendToolFilesList,
    BackendToolFilesRead,
    BackendToolFilesWrite,
)
from rath.flow.tool import FlowToolCommandRun, SandboxTool, global_system_tools
from rath.session import Session

TOOLS = global_system_tools()
FILE_TOOLS = [
    "read_workspace_file",
    "write_workspace_file",
    "edit_workspace_file",
    "list_workspace_files",
    "workspace_path_exists",
]


def payload(name: str, arguments: Mapping[str, Any]) -> BackendTool:
    """What the built-in tool of that name asks of the sandbox."""
    tool = TOOLS[name]
    assert isinstance(tool, SandboxTool)
    return tool.to_payload(arguments)


def test_the_seven_tools_stand_in_their_order() -> None:
    assert list(TOOLS) == ["run_shell_command", *FILE_TOOLS, "run_code"]


def test_the_table_of_built_in_tools_is_one_and_read_only() -> None:
    assert global_system_tools() is TOOLS
    with pytest.raises(TypeError):
        TOOLS["x"] = TOOLS["run_code"]  # type: ignore[index]  # wrong on purpose


@pytest.mark.parametrize(
    ("name", "properties", "required"),
    [
        ("run_shell_command", ["cmd"], ["cmd"]),
        ("read_workspace_file", ["path", "encoding", "offset", "limit"], ["path"]),
        ("write_workspace_file", ["path", "content"], ["path", "content"]),
        ("edit_workspace_file", ["path", "old", "new", "replace_all"], ["path", "old", "new"]),
        ("list_workspace_files", ["path"], ["path"]),
        ("workspace_path_exists", ["path"], ["path"]),
        ("run_code", ["code", "language", "timeout"], ["code"]),
    ],
)
def test_a_schema_is_closed(name: str, properties: list[str], required: list[str]) -> None:
    schema = TOOLS[name].parameters
    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == properties
    assert schema["required"] == required


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_says_what_it_does(name: str) -> None:
    assert TOOLS[name].description
    assert TOOLS[name].origin == "built-in"


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("run_shell_command", {"cmd": "ls"}, BackendToolCommandRun("ls")),
        ("run_shell_command", {"cmd": 7}, BackendToolCommandRun("7")),
        ("read_workspace_file", {"path": "a"}, BackendToolFilesRead("a", "utf-8")),
        ("read_workspace_file", {"path": "a", "encoding": None}, BackendToolFilesRead("a", None)),
        (
            "read_workspace_file",
            {"path": "a", "offset": 5, "limit": 7},
            BackendToolFilesRead("a", offset=5, limit=7),
        ),
        (
            "read_workspace_file",
            {"path": "a", "limit": None},
            BackendToolFilesRead("a"),
        ),
        (
            "edit_workspace_file",
            {"path": "a", "old": "x", "new": "y"},
            BackendToolFilesEdit("a", "x", "y"),
        ),
        (
            "edit_workspace_file",
            {"path": "a", "old": "x", "new": "", "replace_all": True},
            BackendToolFilesEdit("a", "x", "", replace_all=True),
        ),
        (
            "write_workspace_file",
            {"path": "a", "content": "x"},
            BackendToolFilesWrite("a", "x", 0o644),
        ),
        ("list_workspace_files", {"path": "."}, BackendToolFilesList(".")),
        ("workspace_path_exists", {"path": "a"}, BackendToolFilesExists("a")),
        ("run_code", {"code": "1"}, BackendToolCodeRun("1", "python", None)),
        (
            "run_code",
            {"code": "1", "language": "sh", "timeout": 2},
            BackendToolCodeRun("1", "sh", 2.0),
        ),
    ],
)
def test_arguments_become_a_payload(
    name: str, arguments: dict[str, Any], expected: BackendTool
) -> None:
    assert payload(name, arguments) == expected


@pytest.mark.parametrize("cmd", ["a\nb", "a\rb", "x" * 2049], ids=["newline", "return", "long"])
def test_a_command_is_one_short_line(cmd: str) -> None:
    with pytest.raises(ValueError, match="write_workspace_file"):
        payload("run_shell_command", {"cmd": cmd})


def test_the_longest_command_is_accepted() -> None:
    assert payload("run_shell_command", {"cmd": "x" * 2048}) == BackendToolCommandRun("x" * 2048)


def test_written_content_is_text() -> None:
    with pytest.raises(TypeError, match="content must be a string, got int"):
        payload("write_workspace_file", {"path": "a", "content": 1})


def test_an_edit_is_made_of_texts() -> None:
    with pytest.raises(TypeError, match="old and new must be strings"):
        payload("edit_workspace_file", {"path": "a", "old": 1, "new": "x"})


@pytest.mark.parametrize("name", TOOLS)
def test_a_missing_argument_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=r"needs the argument '(cmd|path|code)'"):
        payload(name, {})


@pytest.mark.parametrize(
    ("name", "key"), [("run_shell_command", ("exec",)), ("run_code", ("code",))]
)
def test_commands_and_code_are_barriers(name: str, key: tuple[str, ...]) -> None:
    assert TOOLS[name].parallel_safe is False
    assert TOOLS[name].resource_key({}) == key


@pytest.mark.parametrize("name", FILE_TOOLS)
def test_file_tools_run_beside_each_other_on_different_paths(name: str) -> None:
    tool = TOOLS[name]
    assert tool.parallel_safe
    assert tool.resource_key({"path": "a"}) == ("fs", "a")
    assert tool.resource_key({}) == ("fs", "<unknown>")


@given(st.lists(st.sampled_from([".", "", "x/.."]), max_size=4))
def test_one_file_has_one_lane(detours: list[str]) -> None:
    tool = TOOLS["read_workspace_file"]
    path = "/".join([*(part or "." for part in detours), "", "dir", "a.txt"]).lstrip("/")
    assert tool.resource_key({"path": path}) == ("fs", "dir/a.txt")


@pytest.mark.parametrize(
    ("name", "effects"),
    [
        ("run_shell_command", "non_idempotent"),
        ("read_workspace_file", "read_only"),
        ("write_workspace_file", "idempotent"),
        ("edit_workspace_file", "non_idempotent"),
        ("list_workspace_files", "read_only"),
        ("workspace_path_exists", "read_only"),
        ("run_code", "non_idempotent"),
    ],
)
def test_a_tool_declares_its_effects(name: str, effects: str) -> None:
    assert TOOLS[name].effects == effects


def test_a_tool_that_does_more_than_its_payload_is_not_awaited_by_the_loop() -> None:
    class Logged(FlowToolCommandRun):
        def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
            return super().__call__(session, {"cmd": "true"})

    assert FlowToolCommandRun().runs_on_sandbox
    assert not Logged().runs_on_sandbox
    assert Logged().origin.endswith("Logged")


def test_flow_exposes_no_tool_and_the_tools_no_payload() -> None:
    assert [
        name for name in vars(rath.flow) if name.lower().startswith(("flowtool", "flow_tool"))
    ] == []
    assert [name for name in vars(rath.flow.tool) if name.startswith("BackendTool")] == []
