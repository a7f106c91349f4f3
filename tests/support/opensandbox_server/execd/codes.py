"""Code: `/code` and its contexts, a process for each language that keeps its state."""

from __future__ import annotations

import codecs
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from tests.support.opensandbox_server.execd.commands import PIECE, exit_reason, signal_group
from tests.support.opensandbox_server.execd.wire import (
    Answering,
    RefusedError,
    Request,
    frame,
)

RUNS = ("python", "bash")
"""Languages that are really run here."""
KNOWN = (*RUNS, "java", "javascript", "typescript", "go")
"""Languages that the daemon knows; for those that do not run there is no kernel."""

_BASH_LOOP = (
    'trap : INT; while IFS= read -r -d "" -u {fd_in} __code; do eval "$__code" </dev/null; '
    'printf "%s\\n" "$?" >&{fd_out}; done'
)
_START_KERNEL = (
    "import sys; sys.path.insert(0, {library!r});"
    "from tests.support.opensandbox_server.execd.kernel import main;"
    "sys.path.pop(0); main({fd_in}, {fd_out})"
)


class Codes:
    """The code contexts of one sandbox, one for each language.

    Args:
        has_runtime: Whether the image has the language runtime; without it no code runs.
    """

    def __init__(self, *, has_runtime: bool) -> None:
        self._has_runtime = has_runtime
        self._contexts: dict[str, _Context] = {}
        self._lock = threading.Lock()

    def run(self, request: Request, answering: Answering) -> None:
        """Run code in the context of its language, and tell of output, value and error."""
        body = request.json()
        if not body.get("code"):
            text = (
                "invalid request, validation error Key: 'RunCodeRequest.Code' "
                "Error:Field validation for 'Code' failed on the 'required' tag"
            )
            raise RefusedError(400, "INVALID_REQUEST_BODY", text)
        wanted: dict[str, str] = body.get("context") or {}
        context = self._context(wanted.get("language", ""))
        tell = answering.send_frames
        tell(frame("init", text=context.id), frame("ping", text="pong"))
        if not context.busy.acquire(blocking=False):
            raise _failure("error running codes session is busy")
        started = time.time_ns()
        try:
            outcome = context.run(body["code"], lambda name, text: tell(frame(name, text=text)))
            if outcome["result"] is not None:
                tell(
                    frame("execution_count", execution_count=outcome["count"]),
                    frame("result", results={"text": outcome["result"]}),
                )
            if outcome["error"] is not None:
                tell(frame("error", error=outcome["error"]))
        finally:
            context.busy.release()
        # Only now: whoever reads that it is over may run code at once.
        took = max(1, (time.time_ns() - started) // 1_000_000)
        tell(frame("execution_complete", execution_time=took))
        answering.end_stream()

    def interrupt(self, request: Request, answering: Answering) -> None:
        """Interrupt what runs in a context."""
        wanted = request.first("id")
        for context in [*self._contexts.values()]:
            if context.id == wanted:
                context.interrupt()
                answering.send()
                return
        raise _failure("error interruptting code context. no such session")

    def list(self, request: Request, answering: Answering) -> None:
        """Describe the contexts of a language."""
        languages = request.all("language")
        answering.send_json(
            [
                {"id": each.id, "language": each.language}
                for each in [*self._contexts.values()]
                if each.language in languages
            ]
        )

    def _context(self, language: str) -> _Context:
        problem = ""
        if language not in KNOWN:
            problem = f"unknown language: {language}"
        elif not self._has_runtime:
            problem = "language runtime server not configured, please check your image runtime"
        elif language not in RUNS:
            problem = "no kernel specs found"
        if problem:
            raise _failure(f"error running codes {problem}")
        with self._lock:
            if language not in self._contexts:
                self._contexts[language] = _Context(language)
            return self._contexts[language]


class _Context:
    """One process that runs code of one language."""

    def __init__(self, language: str) -> None:
        self.id = str(uuid.uuid4())
        self.language = language
        self.busy = threading.Lock()
        """Held while code runs."""
        self._n_runs = 0
        self._start()

    def run(self, code: str, on_text: Callable[[str, str], None]) -> dict[str, Any]:
        """Run code; gives `count`, `result` (a text or None) and `error` (or None).

        A process that ended (by `exit`, or killed) is an error, and a new one without state takes
        its place.
        """
        self._n_runs += 1
        message = json.dumps(code) + "\n" if self.language == "python" else f"{code}\0"
        decoders = {
            name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")
        }

        def on_data(name: str, data: bytes) -> None:
            if text := decoders[name].decode(data):
                on_text(name, text)

        try:
            os.write(self._requests, message.encode())
        except BrokenPipeError:
            line = b""
        else:
            line = self._listen(on_data)
        if not line:
            return self._restart()
        if self.language == "python":
            return {**json.loads(line), "count": self._n_runs}
        failed = {"ename": "", "evalue": line.decode().strip(), "traceback": list[str]()}
        error = failed if failed["evalue"] != "0" else None
        return {"count": self._n_runs, "result": None, "error": error}

    def interrupt(self) -> None:
        """Interrupt the code that runs."""
        signal_group(self._process.pid, signal.SIGINT)

    def _start(self) -> None:
        fd_in, self._requests = os.pipe()
        self._outcomes, fd_out = os.pipe()
        if self.language == "python":
            fds = {"fd_in": fd_in, "fd_out": fd_out, "library": sys.path[0]}
            argv = [sys.executable, "-c", _START_KERNEL.format(**fds)]
        else:
            argv = ["bash", "-c", _BASH_LOOP.format(fd_in=fd_in, fd_out=fd_out)]
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        self._streams = {out: "stdout", err: "stderr"}
        self._process = subprocess.Popen(
            argv,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=out_end,
            # The shell's runtime has a terminal, where the two are one.
            stderr=err_end if self.language == "python" else out_end,
            pass_fds=(fd_in, fd_out),
            process_group=0,
        )
        for fd in (fd_in, fd_out, out_end, err_end):
            os.close(fd)
        for fd in (self._outcomes, out, err):
            os.set_blocking(fd, False)

    def _listen(self, on_data: Callable[[str, bytes], None]) -> bytes:
        """Hand over output until the outcome is there; empty when the process ended instead."""
        poller = select.poll()
        for fd in (self._outcomes, *self._streams):
            poller.register(fd, select.POLLIN)
        outcome = b""
        while not outcome.endswith(b"\n"):
            for fd, _ in poller.poll():
                data = _read(fd)
                if not data:
                    poller.unregister(fd)
                    if fd == self._outcomes:
                        return b""
                elif fd == self._outcomes:
                    outcome += data
                else:
                    on_data(self._streams[fd], data)
        for fd, name in self._streams.items():
            while data := _read(fd):
                on_data(name, data)
        return outcome

    def _restart(self) -> dict[str, Any]:
        text = exit_reason(self._process.wait())
        signal_group(self._process.pid, signal.SIGKILL)
        for fd in (self._requests, self._outcomes, *self._streams):
            os.close(fd)
        self._start()
        error = {"ename": "DeadKernelError", "evalue": "Kernel died", "traceback": [text]}
        return {"count": self._n_runs, "result": None, "error": error}


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, PIECE)
    except BlockingIOError:
        return b""


def _failure(text: str) -> RefusedError:
    return RefusedError(500, "RUNTIME_ERROR", text)
