"""The table of the tools of one run, as other code may want to build it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rath.errors import ToolNameConflictError
from rath.llm import RathLLMFunctionTool
from rath.session.tooling import Tool, tool_schemas, tool_table

__all__ = ["ToolNameConflictError", "merge_tools_for_loop", "tools_dict_to_schemas"]


def merge_tools_for_loop(user_tools: Sequence[Tool] | None) -> dict[str, Tool]:
    """Return the built-in tools, then those of the user, by name.

    A tool of the user named `edit_workspace_file` takes the place of the built-in one.

    Raises:
        ToolNameConflictError: Two tools have the same name otherwise.
    """
    return tool_table(user_tools)


def tools_dict_to_schemas(table: Mapping[str, Tool]) -> tuple[RathLLMFunctionTool, ...]:
    """Return what a model is told of the tools, sorted by name."""
    return tool_schemas(table)
