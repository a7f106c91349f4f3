"""The sandbox plane: where tools run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath._core.blobs import Blob
    from rath.backend.abc import (
        Backend,
        BackendSandbox,
        BackendSandboxSpec,
        SandboxIdentity,
        SandboxLimits,
    )
    from rath.backend.capabilities import Capabilities, IsolationLevel
    from rath.backend.changes import EffectPolicy, FileState, Manifest, manifest_digest
    from rath.backend.effects import (
        EffectLog,
        FileEffect,
        is_observed,
        note_effect,
        note_gap,
        observe_effects,
    )
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
        FileEditResult,
        FileEntries,
        FileEntry,
        FileWriteResult,
        ToolExecutionFailure,
        ToolResult,
    )
    from rath.backend.snapshots import FrozenWorkspace, NewFile, Origin, Seed
    from rath.backend.stream import Event, Future, Stream
    from rath.backend.tool_types import (
        BackendTool,
        BackendToolCodeRun,
        BackendToolCommandRun,
        BackendToolFilesEdit,
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
else:
    from rath._core.lazy_imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "rath._core.blobs": ("Blob",),
            "abc": (
                "Backend", "BackendSandbox", "BackendSandboxSpec", "SandboxIdentity",
                "SandboxLimits",
            ),
            "capabilities": ("Capabilities", "IsolationLevel"),
            "changes": ("EffectPolicy", "FileState", "Manifest", "manifest_digest"),
            "effects": (
                "EffectLog", "FileEffect", "is_observed", "note_effect", "note_gap",
                "observe_effects",
            ),
            "registry": (
                "current", "get", "get_class", "is_available", "list_names", "preferred",
                "register", "set_default",
            ),
            "results": (
                "CodeResult", "CommandResult", "FileContent", "FileEditResult", "FileEntries",
                "FileEntry", "FileWriteResult", "ToolExecutionFailure", "ToolResult",
            ),
            "snapshots": ("FrozenWorkspace", "NewFile", "Origin", "Seed"),
            "stream": ("Event", "Future", "Stream"),
            "tool_types": (
                "BackendTool", "BackendToolCodeRun", "BackendToolCommandRun",
                "BackendToolFilesEdit", "BackendToolFilesExists", "BackendToolFilesList",
                "BackendToolFilesRead", "BackendToolFilesWrite",
            ),
            "rath.errors": (
                "BackendError", "BackendNotFound", "BackendSandboxClosed", "UnsupportedBackendTool",
            ),
        },
    )  # fmt: skip

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
    "BackendToolFilesEdit",
    "BackendToolFilesExists",
    "BackendToolFilesList",
    "BackendToolFilesRead",
    "BackendToolFilesWrite",
    "Blob",
    "Capabilities",
    "CodeResult",
    "CommandResult",
    "EffectLog",
    "EffectPolicy",
    "Event",
    "FileContent",
    "FileEditResult",
    "FileEffect",
    "FileEntries",
    "FileEntry",
    "FileState",
    "FileWriteResult",
    "FrozenWorkspace",
    "Future",
    "IsolationLevel",
    "Manifest",
    "NewFile",
    "Origin",
    "SandboxIdentity",
    "SandboxLimits",
    "Seed",
    "Stream",
    "ToolExecutionFailure",
    "ToolResult",
    "UnsupportedBackendTool",
    "current",
    "get",
    "get_class",
    "is_available",
    "is_observed",
    "list_names",
    "manifest_digest",
    "note_effect",
    "note_gap",
    "observe_effects",
    "preferred",
    "register",
    "set_default",
]
