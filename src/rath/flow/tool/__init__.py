"""Tools that a model can call: the base class, the built-in ones and their table."""

from __future__ import annotations

from rath.flow.tool.base import FlowToolCall
from rath.flow.tool.sandbox_calls import (
    flow_tool_code_run,
    flow_tool_command_run,
    flow_tool_files_edit,
    flow_tool_files_exists,
    flow_tool_files_list,
    flow_tool_files_read,
    flow_tool_files_write,
)
from rath.flow.tool.system_tool import (
    FlowToolCodeRun,
    FlowToolCommandRun,
    FlowToolFilesEdit,
    FlowToolFilesExists,
    FlowToolFilesList,
    FlowToolFilesRead,
    FlowToolFilesWrite,
    SandboxTool,
    global_system_tools,
)
from rath.flow.tool.tool_table import (
    ToolNameConflictError,
    merge_tools_for_loop,
    tools_dict_to_schemas,
)

__all__ = [
    "FlowToolCall",
    "FlowToolCodeRun",
    "FlowToolCommandRun",
    "FlowToolFilesEdit",
    "FlowToolFilesExists",
    "FlowToolFilesList",
    "FlowToolFilesRead",
    "FlowToolFilesWrite",
    "SandboxTool",
    "ToolNameConflictError",
    "flow_tool_code_run",
    "flow_tool_command_run",
    "flow_tool_files_edit",
    "flow_tool_files_exists",
    "flow_tool_files_list",
    "flow_tool_files_read",
    "flow_tool_files_write",
    "global_system_tools",
    "merge_tools_for_loop",
    "tools_dict_to_schemas",
]
