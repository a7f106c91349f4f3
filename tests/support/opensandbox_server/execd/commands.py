"""Commands: `/command`, whose processes are started in groups of their own and followed."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from tests.support.opensandbox_server.execd.wire import (
    Answering,
    Frame,
    RefusedError,
    Request,
    frame,
)

PIECE = 1 << 16
_MISSING_COMMAND = (
    "invalid request, validation error Key: 'RunCommandRequest.Command' Error:Field validation "
    "for 'Command' failed on the 'required' tag"
)


class Commands:
    """All commands of one sandbox."""

    def __init__(self) -> None:
        self._pids: dict[str, int | None] = {}
        """By the ids of commands; None for one that has ended."""

    def run(self, request: Request, answering: Answering) -> None:
        """Run a command and tell each line as it comes, then how it ended."""
        body = request.json()
        command, cwd = body.get("command"), body.get("cwd") or "/"
        if not command:
            raise RefusedError(400, "INVALID_REQUEST_BODY", _MISSING_COMMAND)
        if not os.path.isdir(cwd):
            text = (
                f"invalid request, validation error working directory does not exist: {cwd}: "
                f"stat {cwd}: no such file or directory"
            )
            raise RefusedError(400, "INVALID_REQUEST_BODY", text)
        command_id, started = uuid.uuid4().hex, time.time_ns()
        self._pids[command_id] = None
        tell = answering.send_frames
        tell(frame("init", text=command_id), frame("ping", text="pong"))
        try:
            process = subprocess.Popen(
                ["bash", "-c", str(command)],
                cwd=cwd,
                env={**os.environ, **(body.get("envs") or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
            )
        except OSError as exc:
            text = f"fork/exec /usr/bin/bash: {(exc.strerror or str(exc)).lower()}"
            tell(_error(text, text))
            answering.end_stream()
            return
        self._pids[command_id] = process.pid
        lines = {"stdout": _Lines(), "stderr": _Lines()}

        def on_output(name: str, data: bytes) -> None:
            if texts := lines[name].feed(data):
                tell(*(frame(name, text=text) for text in texts))

        timeout = float(body["timeout"]) / 1000 if body.get("timeout") else None
        code = _follow(process, timeout, on_output)
        self._pids[command_id] = None
        tell(*(frame(name, text=text) for name, each in lines.items() for text in each.rest()))
        if code == 0:
            took = (time.time_ns() - started) // 1_000_000
            tell(frame("execution_complete", execution_time=took))
        else:
            tell(_error(str(max(code, -1)), exit_reason(code)))
        answering.end_stream()

    def interrupt(self, request: Request, answering: Answering) -> None:
        """End a command that runs."""
        command_id = request.first("id")
        if command_id not in self._pids:
            text = "error interruptting code context. no such session"
            raise RefusedError(500, "RUNTIME_ERROR", text)
        pid = self._pids[command_id]
        if pid is not None:
            signal_group(pid, signal.SIGTERM)
        answering.send()


class _Lines:
    """Cuts output into the texts of events: lines without their ends, an empty line as a newline.

    Both CR and LF end a line, the two together end one. An incomplete line waits for `rest()`.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._after_return = False

    def feed(self, data: bytes) -> list[str]:
        """Texts of the lines that end in `data`."""
        parts = re.split(rb"([\r\n])", self._pending + data)
        self._pending = parts.pop()
        texts: list[str] = []
        for line, end in zip(parts[::2], parts[1::2], strict=True):
            if line:
                texts.append(line.decode("utf-8", "replace"))
            elif end == b"\r" or not self._after_return:
                texts.append("\n")
            self._after_return = end == b"\r"
        return texts

    def rest(self) -> list[str]:
        """The incomplete last line, if there is one."""
        pending, self._pending = self._pending, b""
        return [pending.decode("utf-8", "replace")] if pending else []


def _follow(
    process: subprocess.Popen[bytes],
    timeout: float | None,
    on_output: Callable[[str, bytes], None],
) -> int:
    """Hand over what a process writes until it ends, and return its exit code.

    Processes that it leaves behind do not hold this up: what they write later is thrown away.

    Args:
        process: What to follow.
        timeout: Seconds after which the whole group is killed; None for no limit.
        on_output: Called on this thread.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    names = {process.stdout.fileno(): "stdout", process.stderr.fileno(): "stderr"}
    deadline = None if timeout is None else time.monotonic() + timeout
    exit_fd = os.pidfd_open(process.pid)
    poller = select.poll()
    for fd in (*names, exit_fd):
        poller.register(fd, select.POLLIN)
    is_running = True
    while is_running:
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        events = poller.poll(left)
        if not events:
            signal_group(process.pid, signal.SIGKILL)
            deadline = None
        for fd, _ in events:
            if fd == exit_fd:
                is_running = False
            elif data := os.read(fd, PIECE):
                on_output(names[fd], data)
            else:
                poller.unregister(fd)
                del names[fd]
    os.close(exit_fd)
    for fd, name in names.items():
        os.set_blocking(fd, False)
        # At most what a pipe holds, as others may go on writing.
        with contextlib.suppress(BlockingIOError):
            for _ in range(4):
                if not (data := os.read(fd, PIECE)):
                    break
                on_output(name, data)
    for stream in (process.stdout, process.stderr):
        if stream.fileno() in names:
            os.set_blocking(stream.fileno(), True)
            threading.Thread(target=_drain, args=(stream,), daemon=True).start()
        else:
            stream.close()
    return process.wait()


def _drain(stream: Any) -> None:
    """Throw away what those write that still hold a pipe."""
    with stream:
        while os.read(stream.fileno(), PIECE):
            pass


def _error(value: str, text: str) -> Frame:
    return frame("error", error={"ename": "CommandExecError", "evalue": value, "traceback": [text]})


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signal a process and its group, if there is one left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def exit_reason(code: int) -> str:
    """Why a process failed, as Go says it."""
    if code < 0:
        text = signal.strsignal(-code) or f"signal {-code}"
        return f"signal: {text.lower()}"
    return f"exit status {code}"
