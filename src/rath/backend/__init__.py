"""The sandbox plane: where tools run."""

from __future__ import annotations

from rath.backend.abc import Backend, BackendSandbox, BackendSandboxSpec, SandboxIdentity
from rath.backend.capabilities import Capabilities, IsolationLevel
from rath.backend.effects import FileEffect, observe_effects
from rath.backend.registry import (
    current,
    get,
    get_class,
    is_available,
    list_names,
    preferred,
    register,
    set_default,
)
from rath.backend.results import (
    CodeResult,
    CommandResult,
    FileContent,
    FileEntries,
    FileEntry,
    FileWriteResult,
    ToolExecutionFailure,
    ToolResult,
)
from rath.backend.stream import Event, Future, Stream
from rath.backend.tool_types import (
    BackendTool,
    BackendToolCodeRun,
    BackendToolCommandRun,
    BackendToolFilesExists,
    BackendToolFilesList,
    BackendToolFilesRead,
    BackendToolFilesWrite,
)
from rath.errors import (
    BackendError,
    BackendNotFound,
    BackendSandboxClosed,
    UnsupportedBackendTool,
)

__all__ = [
    "Backend",
    "BackendError",
    "BackendNotFound",
    "BackendSandbox",
    "BackendSandboxClosed",
    "BackendSandboxSpec",
    "BackendTool",
    "BackendToolCodeRun",
    "BackendToolCommandRun",
    "BackendToolFilesExists",
    "BackendToolFilesList",
    "BackendToolFilesRead",
    "BackendToolFilesWrite",
    "Capabilities",
    "CodeResult",
    "CommandResult",
    "Event",
    "FileContent",
    "FileEffect",
    "FileEntries",
    "FileEntry",
    "FileWriteResult",
    "Future",
    "IsolationLevel",
    "SandboxIdentity",
    "Stream",
    "ToolExecutionFailure",
    "ToolResult",
    "UnsupportedBackendTool",
    "current",
    "get",
    "get_class",
    "is_available",
    "list_names",
    "observe_effects",
    "preferred",
    "register",
    "set_default",
]
