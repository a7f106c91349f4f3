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
    ("name", "properties", "n_required", "effects", "key"),
    [
        ("run_shell_command", ["cmd"], 1, "non_idempotent", ("exec",)),
        ("read_workspace_file", ["path", "encoding", "offset", "limit"], 1, "read_only", None),
        ("write_workspace_file", ["path", "content"], 2, "idempotent", None),
        ("edit_workspace_file", ["path", "old", "new", "replace_all"], 3, "non_idempotent", None),
        ("list_workspace_files", ["path"], 1, "read_only", None),
        ("workspace_path_exists", ["path"], 1, "read_only", None),
        ("run_code", ["code", "language", "timeout"], 1, "non_idempotent", ("code",)),
    ],
)
def test_a_tool_has_a_closed_schema_effects_and_a_lane(
    name: str, properties: list[str], n_required: int, effects: str, key: tuple[str, ...] | None
) -> None:
    tool = TOOLS[name]
    Draft202012Validator.check_schema(tool.parameters)
    assert (tool.parameters["type"], tool.parameters["additionalProperties"]) == ("object", False)
    assert list(tool.parameters["properties"]) == properties
    assert tool.parameters["required"] == properties[:n_required]
    assert tool.description
    assert (tool.origin, tool.effects) == ("built-in", effects)
    # Commands and code are barriers; file tools run beside each other on different paths.
    assert tool.parallel_safe is (key is None)
    assert tool.resource_key({"path": "a"}) == (key or ("fs", "a"))
    assert tool.resource_key({}) == (key or ("fs", "<unknown>"))


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


@given(st.lists(st.sampled_from([".", "", "x/.."]), max_size=4))
def test_one_file_has_one_lane(detours: list[str]) -> None:
    tool = TOOLS["read_workspace_file"]
    path = "/".join([*(part or "." for part in detours), "", "dir", "a.txt"]).lstrip("/")
    assert tool.resource_key({"path": path}) == ("fs", "dir/a.txt")


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
