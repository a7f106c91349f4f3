"""What the built-in tools do, called by a program: with more freedom than a model has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rath.backend import (
    BackendToolCodeRun,
    BackendToolCommandRun,
    BackendToolFilesEdit,
    BackendToolFilesExists,
    BackendToolFilesList,
    BackendToolFilesRead,
    BackendToolFilesWrite,
)
from rath.session import Session

__all__ = [
    "flow_tool_code_run",
    "flow_tool_command_run",
    "flow_tool_files_edit",
    "flow_tool_files_exists",
    "flow_tool_files_list",
    "flow_tool_files_read",
    "flow_tool_files_write",
]


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
