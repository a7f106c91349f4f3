"""The table of a run's tools: built-in ones first, every name once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rath.flow.tool import (
    FlowToolCall,
    ToolNameConflictError,
    global_system_tools,
    merge_tools_for_loop,
    tools_dict_to_schemas,
)
from rath.session import Session
from rath.session.tooling import SystemTools
from tests.support.api import builtin_tools, tool_registry, tool_table
from tests.support.sessions import run


class Named(FlowToolCall):
    """A tool with a name and nothing else."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"type": "object", "properties": {}}

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return self._name


def test_the_loop_finds_the_built_in_tools_of_flow() -> None:
    assert builtin_tools() == global_system_tools()
    assert set(tool_registry.names()) >= set(builtin_tools())


@pytest.mark.parametrize("none", [None, []])
def test_without_own_tools_there_are_the_built_in_ones(none: list[FlowToolCall] | None) -> None:
    assert merge_tools_for_loop(none) == dict(global_system_tools())


def test_own_tools_come_after_the_built_in_ones() -> None:
    first, second = Named("zeta"), Named("alpha")
    table = merge_tools_for_loop([first, second])
    assert list(table) == [*global_system_tools(), "zeta", "alpha"]
    assert table["zeta"] is first


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["run_code"], id="built-in name"),
        pytest.param(["mine", "mine"], id="own name"),
    ],
)
def test_a_name_stands_once(names: list[str]) -> None:
    with pytest.raises(ToolNameConflictError, match=names[-1]):
        merge_tools_for_loop([Named(name) for name in names])


def test_a_tool_that_is_older_than_the_built_in_one_wins() -> None:
    mine = Named("edit_workspace_file")
    table = merge_tools_for_loop([mine])
    assert table["edit_workspace_file"] is mine
    assert table.keys() == global_system_tools().keys()


@pytest.mark.parametrize(
    ("names", "system_tools"),
    [
        pytest.param(["edit_workspace_file"], ["edit_workspace_file"], id="asked for by name"),
        pytest.param(["edit_workspace_file"] * 2, True, id="two own ones"),
    ],
)
def test_two_tools_that_were_asked_for_are_a_conflict(
    names: list[str], system_tools: SystemTools
) -> None:
    with pytest.raises(ToolNameConflictError, match="edit_workspace_file"):
        tool_table([Named(name) for name in names], system_tools=system_tools)


def test_a_conflict_is_a_value_error() -> None:
    assert issubclass(ToolNameConflictError, ValueError)


def test_schemas_are_sorted_by_name() -> None:
    schemas = tools_dict_to_schemas({"b": Named("b"), "a": Named("a")})
    assert [schema.name for schema in schemas] == ["a", "b"]
    assert schemas[0].parameters == {"type": "object", "properties": {}}
    assert schemas[0].description is None
    assert schemas[0].strict is None


@pytest.mark.parametrize(
    ("attribute", "value", "problem"),
    [
        ("name", "", "must be a non-empty str, not ''"),
        ("name", 3, "must be a non-empty str, not 3"),
        ("parameters", [], "parameters of tool 'odd' must be a JSON Schema mapping"),
        ("timeout", "soon", "timeout of tool 'odd' must be seconds, not 'soon'"),
        ("timeout", -1, "timeout of tool 'odd' must be seconds, not -1"),
        ("timeout", 0, "timeout of tool 'odd' must be seconds, not 0"),
        ("timeout", True, "timeout of tool 'odd' must be seconds, not True"),
    ],
)
def test_a_tool_that_describes_itself_wrongly_is_refused(
    attribute: str, value: object, problem: str
) -> None:
    wrong = type("Odd", (Named,), {attribute: value})("odd")
    with pytest.raises(TypeError, match=problem):
        run([], wrong)
