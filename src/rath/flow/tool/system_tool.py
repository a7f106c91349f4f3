"""The built-in tools of a sandbox, for models, and as functions for programs."""

from __future__ import annotations

import json
import posixpath
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

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
from rath.flow.tool.base import FlowToolCall
from rath.session import Session
from rath.session.tooling import ToolEffects

__all__ = [
    "FlowToolCodeRun",
    "FlowToolCommandRun",
    "FlowToolFilesEdit",
    "FlowToolFilesExists",
    "FlowToolFilesList",
    "FlowToolFilesRead",
    "FlowToolFilesWrite",
    "SandboxTool",
    "flow_tool_code_run",
    "flow_tool_command_run",
    "flow_tool_files_edit",
    "flow_tool_files_exists",
    "flow_tool_files_list",
    "flow_tool_files_read",
    "flow_tool_files_write",
    "global_system_tools",
]


MAX_COMMAND_CHARS = 2048
"""Longest command line that a model may run; a longer one belongs in a file."""

_PATH = {"type": "string", "description": "Path in the workspace, relative to its root."}


def _schema(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> str:
    """Return a JSON Schema as text, of which each reader gets one of his own."""
    schema = {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }
    return json.dumps(schema)


def _required(tool: str, arguments: Mapping[str, Any], name: str) -> Any:
    if name not in arguments:
        raise ValueError(f"{tool} needs the argument {name!r}; given: {sorted(arguments)}")
    return arguments[name]


class SandboxTool(FlowToolCall):
    """A tool whose whole work is one operation of the session's sandbox."""

    @abstractmethod
    def to_payload(self, arguments: Mapping[str, Any]) -> BackendTool:
        """Return the sandbox operation for these arguments.

        Raises:
            ValueError: An argument is missing or not allowed.
            TypeError: An argument has the wrong type.
        """

    @property
    def origin(self) -> str:
        return "built-in" if type(self).__module__ == __name__ else super().origin

    @property
    def runs_on_sandbox(self) -> bool:
        """Whether the loop may await the sandbox itself, which needs no worker thread."""
        return type(self).__call__ is SandboxTool.__call__

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        return session.require_sandbox().dispatch(self.to_payload(arguments))


class _About(NamedTuple):
    """The text and the schema of a built-in tool, for models."""

    name: str
    description: str
    parameters: str
    """JSON."""


class _BuiltIn(SandboxTool):
    """A tool that is described by a row of its class."""

    _about: ClassVar[_About]

    @property
    def name(self) -> str:
        return self._about.name

    @property
    def description(self) -> str:
        return self._about.description

    @property
    def parameters(self) -> Mapping[str, Any]:
        # A schema of one's own, which may be adapted; quicker than a deep copy.
        schema: dict[str, Any] = json.loads(self._about.parameters)
        return schema


class _FileTool(_BuiltIn):
    """A tool on one path: calls on different paths may overlap."""

    parallel_safe = True

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        path = arguments.get("path")
        # By its name alone; a run asks the sandbox which names mean one file (`canonical_path`).
        return ("fs", "<unknown>" if path is None else posixpath.normpath(str(path)))


class FlowToolCommandRun(_BuiltIn):
    """Runs one shell command line."""

    _about = _About(
        "run_shell_command",
        "Run one shell command line in the workspace and read its output and exit code.",
        _schema({"cmd": {"type": "string", "description": "One line, no line breaks."}}),
    )

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return ("exec",)

    def to_payload(self, arguments: Mapping[str, Any]) -> BackendTool:
        cmd = str(_required(self.name, arguments, "cmd"))
        if "\n" in cmd or "\r" in cmd:
            raise ValueError(
                "cmd must be one line without line breaks; write a script with "
                "write_workspace_file and run that, or join the commands with '&&'"
            )
        if len(cmd) > MAX_COMMAND_CHARS:
            raise ValueError(
                f"cmd has {len(cmd)} characters, at most {MAX_COMMAND_CHARS} are allowed; write a "
                "script with write_workspace_file and run that"
            )
        return BackendToolCommandRun(cmd)


class FlowToolFilesRead(_FileTool):
    """Reads one file."""

    effects: ToolEffects = "read_only"
    _about = _About(
        "read_workspace_file",
        "Read one file of the workspace, or a part of it; or the whole of an earlier output "
        "that was cut, under the path that its result names.",
        _schema(
            {"path": _PATH},
            {
                "encoding": {
                    "type": ["string", "null"],
                    "default": "utf-8",
                    "description": "Text encoding, or null for raw bytes.",
                },
                "offset": {
                    "type": "integer",
                    "default": 0,
                    "minimum": 0,
                    "description": "Lines to leave out at the beginning; bytes where encoding is "
                    "null.",
                },
                "limit": {
                    "type": ["integer", "null"],
                    "default": None,
                    "minimum": 1,
                    "description": "Lines, or bytes, to read at most.",
                },
            },
        ),
    )

    def to_payload(self, arguments: Mapping[str, Any]) -> BackendTool:
        path = str(_required(self.name, arguments, "path"))
        encoding = arguments.get("encoding", "utf-8")
        limit = arguments.get("limit")
        return BackendToolFilesRead(
            path,
            None if encoding is None else str(encoding),
            offset=int(arguments.get("offset", 0)),
            limit=None if limit is None else int(limit),
        )


class FlowToolFilesWrite(_FileTool):
    """Writes one whole file."""

    effects: ToolEffects = "idempotent"
    _about = _About(
        "write_workspace_file",
        "Write one file of the workspace, replacing what it held.",
        _schema({"path": _PATH, "content": {"type": "string"}}),
    )

    def to_payload(self, arguments: Mapping[str, Any]) -> BackendTool:
        path = str(_required(self.name, arguments, "path"))
        content = _required(self.name, arguments, "content")
        if not isinstance(content, str):
            raise TypeError(
                f"content must be a string, got {type(content).__name__}; encode it as text first"
            )
        return BackendToolFilesWrite(path, content)


class FlowToolFilesEdit(_FileTool):
    """Replaces a text in one file."""

    _about = _About(
        "edit_workspace_file",
        "Replace a text in one file of the workspace by another, exactly, and read the diff.",
        _schema(
            {
                "path": _PATH,
                "old": {
                    "type": "string",
                    "description": "What stands there now, exactly; with enough around it to occur "
                    "once.",
                },
                "new": {"type": "string"},
            },
            {
                "replace_all": {
                    "type": "boolean",
                    "default": False,
                    "description": "Replace every occurrence.",
                }
            },
        ),
    )

    def to_payload(self, arguments: Mapping[str, Any]) -> BackendTool:
        path = str(_required(self.name, arguments, "path"))
        old, new = (_required(self.name, arguments, name) for name in ("old", "new"))
        if not isinstance(old, str) or not isinstance(new, str):
            raise TypeError("old and new must be strings")
        return BackendToolFilesEdit(
            path, old, new, replace_all=bool(arguments.get("replace_all", False))
        )


class FlowToolFilesList(_FileTool):
    """Lists one directory."""

    effects: ToolEffects = "read_only"
    _about = _About(
        "list_workspace_files",
        "List the entries of one directory of the workspace, not recursively.",
        _schema({"path": _PATH}),
    )

    def to_payload(self, arguments: Mapping[str, Any]) -> BackendTool:
        return BackendToolFilesList(str(_required(self.name, arguments, "path")))


class FlowToolFilesExists(_FileTool):
    """Tells whether a path exists."""

    effects: ToolEffects = "read_only"
    _about = _About(
        "workspace_path_exists",
        "Tell whether a path of the workspace exists.",
        _schema({"path": _PATH}),
    )

    def to_payload(self, arguments: Mapping[str, Any]) -> BackendTool:
        return BackendToolFilesExists(str(_required(self.name, arguments, "path")))


class FlowToolCodeRun(_BuiltIn):
    """Runs a piece of code in an interpreter."""

    _about = _About(
        "run_code",
        "Run a piece of code in the workspace and read what it prints.",
        _schema(
            {"code": {"type": "string"}},
            {
                "language": {
                    "type": "string",
                    "default": "python",
                    "description": "python, bash, javascript or what else the sandbox has.",
                },
                "timeout": {"type": ["number", "null"], "default": None, "description": "Seconds."},
            },
        ),
    )

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return ("code",)

    def to_payload(self, arguments: Mapping[str, Any]) -> BackendTool:
        timeout = arguments.get("timeout")
        return BackendToolCodeRun(
            str(_required(self.name, arguments, "code")),
            language=str(arguments.get("language", "python")),
            timeout=None if timeout is None else float(timeout),
        )


# Under these names `rath.session.tooling` finds them.
RUN_SHELL_COMMAND = FlowToolCommandRun()
READ_WORKSPACE_FILE = FlowToolFilesRead()
WRITE_WORKSPACE_FILE = FlowToolFilesWrite()
EDIT_WORKSPACE_FILE = FlowToolFilesEdit()
LIST_WORKSPACE_FILES = FlowToolFilesList()
WORKSPACE_PATH_EXISTS = FlowToolFilesExists()
RUN_CODE = FlowToolCodeRun()

_BUILT_IN: tuple[SandboxTool, ...] = (
    RUN_SHELL_COMMAND, READ_WORKSPACE_FILE, WRITE_WORKSPACE_FILE, EDIT_WORKSPACE_FILE,
    LIST_WORKSPACE_FILES, WORKSPACE_PATH_EXISTS, RUN_CODE,
)  # fmt: skip
_SYSTEM_TOOLS: Mapping[str, FlowToolCall] = MappingProxyType(
    {each.name: each for each in _BUILT_IN}
)


def global_system_tools() -> Mapping[str, FlowToolCall]:
    """Return the built-in tools by name: one instance each, read-only."""
    return _SYSTEM_TOOLS


def flow_tool_command_run(
    session: Session,
    cmd: str | Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    stdin: bytes | None = None,
    timeout: float | None = None,
) -> Any:
    """Run a command in the session's sandbox, with more freedom than the model has.

    Args:
        session: Its sandbox is opened if it is not open yet.
        cmd: A shell command line, or an argument list that no shell sees.
        env: Variables to add to those of the sandbox.
        cwd: Directory in the workspace to start in.
        stdin: What the command reads.
        timeout: Seconds until it is ended.

    Returns:
        A `CommandResult`, or a `ToolExecutionFailure` that says what went wrong.
    """
    payload = BackendToolCommandRun(cmd, env=env, cwd=cwd, stdin=stdin, timeout=timeout)
    return session.require_sandbox().dispatch(payload)


def flow_tool_files_read(
    session: Session,
    path: str,
    *,
    encoding: str | None = "utf-8",
    offset: int = 0,
    limit: int | None = None,
) -> Any:
    """Read a file of the session's sandbox; `encoding=None` gives bytes.

    Args:
        session: Its sandbox is opened if it is not open yet.
        path: Path in the workspace, or that of an output that was cut.
        encoding: How to decode the content.
        offset: Lines to leave out at the beginning; bytes where nothing is decoded.
        limit: Lines, or bytes, to read at most; None for all that is left.
    """
    payload = BackendToolFilesRead(path, encoding, offset=offset, limit=limit)
    return session.require_sandbox().dispatch(payload)


def flow_tool_files_write(
    session: Session, path: str, data: bytes | str, *, mode: int = 0o644
) -> Any:
    """Write a whole file of the session's sandbox."""
    return session.require_sandbox().dispatch(BackendToolFilesWrite(path, data, mode))


def flow_tool_files_edit(
    session: Session, path: str, old: str, new: str, *, replace_all: bool = False
) -> Any:
    """Replace `old` by `new` in a file of the session's sandbox, and return the diff.

    `old` must stand there exactly, and once unless `replace_all` is set.
    """
    payload = BackendToolFilesEdit(path, old, new, replace_all=replace_all)
    return session.require_sandbox().dispatch(payload)


def flow_tool_files_list(session: Session, path: str) -> Any:
    """List one directory of the session's sandbox."""
    return session.require_sandbox().dispatch(BackendToolFilesList(path))


def flow_tool_files_exists(session: Session, path: str) -> Any:
    """Tell whether a path of the session's sandbox exists."""
    return session.require_sandbox().dispatch(BackendToolFilesExists(path))


def flow_tool_code_run(
    session: Session, code: str, *, language: str = "python", timeout: float | None = None
) -> Any:
    """Run code in an interpreter of the session's sandbox; `timeout` is seconds."""
    payload = BackendToolCodeRun(code, language=language, timeout=timeout)
    return session.require_sandbox().dispatch(payload)
