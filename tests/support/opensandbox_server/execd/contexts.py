"""Code contexts: a Python or a shell process each, which keeps its state between runs."""

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

from tests.support.opensandbox_server.execd import processes

_PIECE = 1 << 16
_BASH_LOOP = (
    'trap : INT; while IFS= read -r -d "" -u {fd_in} __code; do eval "$__code" </dev/null; '
    'printf "%s\\n" "$?" >&{fd_out}; done'
)
_START_KERNEL = (
    "import sys; sys.path.insert(0, {library!r});"
    "from tests.support.opensandbox_server.execd.kernel import main;"
    "sys.path.pop(0); main({fd_in}, {fd_out})"
)

OnText = Callable[[str, str], None]
"""Called with `stdout` or `stderr` and a text."""


class Context:
    """One process that runs code of one language.

    Args:
        cwd: Its working directory; it is made when there is none.
    """

    def __init__(self, language: str, cwd: str = "/") -> None:
        self.id = str(uuid.uuid4())
        self.language = language
        self.busy = threading.Lock()
        """Held while code runs."""
        os.makedirs(cwd, exist_ok=True)
        self._cwd = cwd
        self._n_runs = 0
        self._start()

    def run(self, code: str, on_text: OnText) -> dict[str, Any]:
        """Run code; gives `count`, `result` (a text or None) and `error` (or None).

        A process that ended (by `exit`, or killed) is an error, and a new one without state takes
        its place.
        """
        self._n_runs += 1
        message = json.dumps(code) + "\n" if self.language == "python" else f"{code}\0"
        decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in _NAMES}

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
        processes.signal_group(self._process.pid, signal.SIGINT)

    def close(self) -> None:
        """End the process and what it started."""
        processes.signal_group(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for fd in (self._requests, self._outcomes, *self._streams):
            os.close(fd)

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
            cwd=self._cwd,
            env=processes.environment({}),
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
        code = self._process.wait()
        self.close()
        self._start()
        text = processes.exit_reason(code)
        error = {"ename": "DeadKernelError", "evalue": "Kernel died", "traceback": [text]}
        return {"count": self._n_runs, "result": None, "error": error}


_NAMES = ("stdout", "stderr")


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _PIECE)
    except BlockingIOError:
        return b""


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
