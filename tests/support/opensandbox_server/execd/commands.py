"""Commands and sessions of the shell: `/command` and `/session`."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.opensandbox_server.execd import processes
from tests.support.opensandbox_server.execd.lines import Lines
from tests.support.opensandbox_server.execd.wire import (
    Answering,
    Frame,
    RefusedError,
    Request,
    frame,
    stamp,
)

_MISSING_COMMAND = (
    "invalid request, validation error Key: 'RunCommandRequest.Command' Error:Field validation "
    "for 'Command' failed on the 'required' tag"
)
_NO_SESSION = "error interruptting code context. no such session"


@dataclass(slots=True)
class Command:
    """One command, and what is known of it after its end."""

    id: str
    content: str
    is_background: bool
    started: int
    """Nanoseconds since the epoch."""
    pid: int = 0
    finished: int | None = None
    exit_code: int | None = None
    error: str = ""
    output: bytearray = field(default_factory=bytearray)
    """What a background command wrote, both streams together."""

    def end(self, code: int, error: str) -> None:
        """Note the end."""
        self.exit_code, self.error = code, error
        self.finished = time.time_ns()

    def status(self) -> dict[str, Any]:
        """What `/command/status` says."""
        told: dict[str, Any] = {"id": self.id, "content": self.content}
        told["running"] = self.finished is None
        if self.finished is not None:
            told["exit_code"] = self.exit_code
            if self.error:
                told["error"] = self.error
        told["started_at"] = stamp(self.started)
        if self.finished is not None:
            told["finished_at"] = stamp(self.finished)
        return told


@dataclass(frozen=True, slots=True)
class _Asked:
    """How a command is to be run."""

    argv: list[str]
    content: str
    cwd: str
    env: Mapping[str, str]
    timeout: float | None
    """Seconds."""


class Commands:
    """All commands and sessions of one sandbox."""

    def __init__(self) -> None:
        self._commands: dict[str, Command] = {}
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    def run(self, request: Request, answering: Answering) -> None:
        """Run a command and tell what it does."""
        body = request.json()
        asked = _asked(body)
        command = Command(uuid.uuid4().hex, asked.content, bool(body.get("background")), _now())
        with self._lock:
            self._commands[command.id] = command
        if command.is_background:
            self._run_behind(command, asked, answering)
        else:
            _run_before(command, asked, answering, command.id)

    def interrupt(self, request: Request, answering: Answering) -> None:
        """End a command that runs before somebody's eyes.

        The recorded daemon does not find commands in the background: it says so, and they go on.
        """
        command = self._commands.get(request.first("id"))
        if command is None or command.is_background:
            raise RefusedError(500, "RUNTIME_ERROR", _NO_SESSION)
        if command.finished is None and command.pid:
            processes.signal_group(command.pid, signal.SIGTERM)
        answering.send()

    def status(self, request: Request, answering: Answering) -> None:
        """Tell whether a command runs, and how it ended."""
        answering.send_json(self._known(request.names[0]).status())

    def logs(self, request: Request, answering: Answering) -> None:
        """Tell what a background command wrote from byte `cursor` on."""
        command = self._known(request.names[0])
        if not command.is_background:
            text = f"command {command.id} is not running in background"
            raise RefusedError(400, "INVALID_REQUEST_BODY", text)
        start = int((request.all("cursor") or ["0"])[0])
        written = bytes(command.output)
        headers = {
            "content-type": "text/plain; charset=utf-8",
            "execd-commands-tail-cursor": str(len(written)),
        }
        answering.send(written[start:], headers=headers)

    def open_session(self, request: Request, answering: Answering) -> None:
        """Make a session: commands that see each other's variables and directory."""
        body: dict[str, str] = request.json() if request.body else {}
        cwd = body.get("cwd") or "/"
        if not os.path.isdir(cwd):
            text = f"error creating session. working directory does not exist: {cwd}"
            raise RefusedError(500, "RUNTIME_ERROR", text)
        session = Session(str(uuid.uuid4()), cwd)
        with self._lock:
            self._sessions[session.id] = session
        answering.send_json({"session_id": session.id})

    def run_in_session(self, request: Request, answering: Answering) -> None:
        """Run a command where the last one of the session left off."""
        session = self._sessions.get(request.names[0])
        if session is None:
            text = "error running in session. context not found"
            raise RefusedError(500, "RUNTIME_ERROR", text)
        body = request.json()
        if not body.get("command"):
            raise RefusedError(400, "INVALID_REQUEST_BODY", _MISSING_COMMAND)
        with session.lock:
            asked = session.asked(body)
            command = Command(session.id, asked.content, False, _now())
            with self._lock:
                self._commands[session.id] = command
            _run_before(command, asked, answering, session.id)

    def close_session(self, request: Request, answering: Answering) -> None:
        """Forget a session."""
        with self._lock:
            session = self._sessions.pop(request.names[0], None)
        if session is None:
            text = f"session {request.names[0]} not found"
            raise RefusedError(404, "CONTEXT_NOT_FOUND", text)
        answering.send()

    def _known(self, command_id: str) -> Command:
        command = self._commands.get(command_id)
        if command is None:
            text = f"command not found: {command_id}"
            raise RefusedError(404, "INVALID_REQUEST_BODY", text)
        return command

    def _run_behind(self, command: Command, asked: _Asked, answering: Answering) -> None:
        answering.send_frames(frame("init", text=command.id))
        process = _started(command, asked, answering.send_frames, is_merged=True)
        if process is not None:
            threading.Thread(target=_collect, args=(command, asked, process), daemon=True).start()
            answering.send_frames(frame("execution_complete", execution_time=_ms(command)))
        answering.end_stream()


class Session:
    """State between the commands of a session: a directory, and exported variables in a file."""

    def __init__(self, session_id: str, cwd: str) -> None:
        self.id = session_id
        self.lock = threading.Lock()
        self._cwd = cwd
        self._state = f"/tmp/.session-{session_id}"

    def asked(self, body: Mapping[str, Any]) -> _Asked:
        """How the next command is run: behind the restored state, which it leaves again."""
        state, content = shlex.quote(self._state), str(body["command"])
        go = f"cd {shlex.quote(body['cwd'])}" if body.get("cwd") else ":"
        script = (
            f"[ ! -f {state} ] || . {state}\n{go}\n"
            f'trap \'{{ export -p; printf "cd %q\\n" "$PWD"; }} > {self._state}\' EXIT\n'
            f"{content}\n"
        )
        timeout = float(body["timeout"]) / 1000 if body.get("timeout") else None
        env = processes.environment({})
        return _Asked(["bash", "-c", script], content, self._cwd, env, timeout)


def _run_before(command: Command, asked: _Asked, answering: Answering, told_id: str) -> None:
    """Run a command and tell each line as it comes, then how it ended."""

    def tell(*frames: Frame) -> None:
        answering.send_frames(*frames)

    tell(frame("init", text=told_id), frame("ping", text="pong"))
    process = _started(command, asked, tell)
    if process is not None:
        lines = {"stdout": Lines(), "stderr": Lines()}

        def on_output(name: str, data: bytes) -> None:
            if texts := lines[name].feed(data):
                tell(*(frame(name, text=text) for text in texts))

        code = processes.follow(process, asked.timeout, on_output)
        tell(*(frame(name, text=text) for name, each in lines.items() for text in each.rest()))
        _note_end(command, code)
        if code == 0:
            tell(frame("execution_complete", execution_time=_ms(command)))
        else:
            tell(_error(str(command.exit_code), processes.exit_reason(code)))
    answering.end_stream()


def _collect(command: Command, asked: _Asked, process: subprocess.Popen[bytes]) -> None:
    code = processes.follow(process, asked.timeout, lambda _, data: command.output.extend(data))
    _note_end(command, code)


def _started(
    command: Command, asked: _Asked, tell: Callable[..., None], *, is_merged: bool = False
) -> subprocess.Popen[bytes] | None:
    """Start the process; what keeps it from starting is told as its error."""
    try:
        process = processes.start(asked.argv, asked.cwd, asked.env, is_merged=is_merged)
    except OSError as exc:
        text = f"fork/exec /usr/bin/bash: {(exc.strerror or str(exc)).lower()}"
        command.end(255, text)
        tell(_error(text, text))
        return None
    command.pid = process.pid
    return process


def _asked(body: Mapping[str, Any]) -> _Asked:
    content = body.get("command")
    if not content:
        raise RefusedError(400, "INVALID_REQUEST_BODY", _MISSING_COMMAND)
    cwd = os.path.expandvars(os.path.expanduser(body.get("cwd") or "/"))
    if not os.path.isdir(cwd):
        text = (
            f"invalid request, validation error working directory does not exist: {cwd}: "
            f"stat {cwd}: no such file or directory"
        )
        raise RefusedError(400, "INVALID_REQUEST_BODY", text)
    argv = processes.as_user(["bash", "-c", str(content)], body.get("uid"), body.get("gid"))
    timeout = float(body["timeout"]) / 1000 if body.get("timeout") else None
    env = processes.environment(body.get("envs") or {})
    return _Asked(argv, str(content), cwd, env, timeout)


def _note_end(command: Command, code: int) -> None:
    command.end(max(code, -1), processes.exit_reason(code) if code else "")


def _error(value: str, text: str) -> Frame:
    return frame("error", error={"ename": "CommandExecError", "evalue": value, "traceback": [text]})


def _ms(command: Command) -> int:
    return (time.time_ns() - command.started) // 1_000_000


def _now() -> int:
    return time.time_ns()
