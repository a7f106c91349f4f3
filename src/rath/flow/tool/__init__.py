"""Tools that a model can call: the base class, the built-in ones and their table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath.flow.tool.base import FlowToolCall
    from rath.flow.tool.function import FunctionTool, ObjectTool, tool
    from rath.flow.tool.mcp_adapter import (
        MCPClient,
        MCPToolCall,
        mcp_tools_from_config,
        mcp_tools_from_server,
        shared_mcp_loop,
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
        flow_tool_code_run,
        flow_tool_command_run,
        flow_tool_files_edit,
        flow_tool_files_exists,
        flow_tool_files_list,
        flow_tool_files_read,
        flow_tool_files_write,
        global_system_tools,
    )
    from rath.flow.tool.tool_table import (
        ToolNameConflictError,
        merge_tools_for_loop,
        tools_dict_to_schemas,
    )
else:
    from rath._core.lazy_imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "base": ("FlowToolCall",),
            "mcp_adapter": (
                "MCPClient", "MCPToolCall", "mcp_tools_from_config", "mcp_tools_from_server",
                "shared_mcp_loop",
            ),
            "system_tool": (
                "FlowToolCodeRun", "FlowToolCommandRun", "FlowToolFilesEdit", "FlowToolFilesExists",
                "FlowToolFilesList", "FlowToolFilesRead", "FlowToolFilesWrite", "SandboxTool",
                "flow_tool_code_run", "flow_tool_command_run", "flow_tool_files_edit",
                "flow_tool_files_exists", "flow_tool_files_list", "flow_tool_files_read",
                "flow_tool_files_write", "global_system_tools",
            ),
            "tool_table": (
                "ToolNameConflictError", "merge_tools_for_loop", "tools_dict_to_schemas",
            ),
            "function": ("FunctionTool", "ObjectTool", "tool"),
        },
    )  # fmt: skip

__all__ = [
    "FlowToolCall",
    "FlowToolCodeRun",
    "FlowToolCommandRun",
    "FlowToolFilesEdit",
    "FlowToolFilesExists",
    "FlowToolFilesList",
    "FlowToolFilesRead",
    "FlowToolFilesWrite",
    "FunctionTool",
    "MCPClient",
    "MCPToolCall",
    "ObjectTool",
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
    "mcp_tools_from_config",
    "mcp_tools_from_server",
    "merge_tools_for_loop",
    "shared_mcp_loop",
    "tool",
    "tools_dict_to_schemas",
]
