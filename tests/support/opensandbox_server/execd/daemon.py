"""The daemon inside a sandbox: takes sockets from the server, and answers the request on each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping

from tests.support.opensandbox_server.execd import files
from tests.support.opensandbox_server.execd.codes import Codes
from tests.support.opensandbox_server.execd.commands import Commands
from tests.support.opensandbox_server.execd.wire import (
    Answering,
    DroppedError,
    RefusedError,
    Request,
)

RUNTIME_PORT = 44771
"""Where the language runtime listens; the code interpreter of the SDK looks for it."""

Handler = Callable[[Request, Answering], None]


def main(control_fd: int, *, has_runtime: bool) -> None:
    """Serve until the server closes its end of the control socket, then end at once."""
    routes = _routes(has_runtime=has_runtime)
    if has_runtime:
        threading.Thread(target=_listen, daemon=True).start()
    with socket.socket(fileno=control_fd) as control:
        while True:
            data, fds, _, _ = socket.recv_fds(control, 1, 1)
            if not data:
                os._exit(0)
            connection = socket.socket(fileno=fds[0])
            threading.Thread(target=_serve, args=(connection, routes), daemon=True).start()


def _serve(connection: socket.socket, routes: Mapping[tuple[str, str], Handler]) -> None:
    with connection:
        with connection.makefile("rb") as stream:
            head = json.loads(stream.readline())
            body = stream.read(head.pop("length"))
        request = Request(**head, body=body)
        answering = Answering(connection)
        try:
            handler = routes.get((request.method, request.path))
            if handler is None:
                raise RefusedError(404, "NOT_FOUND", f"404 page not found: {request.path}")
            handler(request, answering)
        except RefusedError as refused:
            answering.send_error(refused)
        except DroppedError:
            pass


def _routes(*, has_runtime: bool) -> dict[tuple[str, str], Handler]:
    commands, codes = Commands(), Codes(has_runtime=has_runtime)
    return {
        ("GET", "/ping"): lambda _, answering: answering.send(),
        # Orders of the server: every process but this one stops, or goes on.
        ("FREEZE", "/"): lambda _, answering: _signal_all(signal.SIGSTOP, answering),
        ("THAW", "/"): lambda _, answering: _signal_all(signal.SIGCONT, answering),
        ("POST", "/command"): commands.run,
        ("DELETE", "/command"): commands.interrupt,
        ("POST", "/code"): codes.run,
        ("DELETE", "/code"): codes.interrupt,
        ("GET", "/code/contexts"): codes.list,
        ("POST", "/files/upload"): files.upload,
        ("GET", "/files/download"): files.download,
        ("GET", "/files/info"): files.info,
        ("DELETE", "/files"): files.remove_files,
        ("POST", "/directories"): files.make_directories,
        ("GET", "/directories/list"): files.list_directory,
    }


def _signal_all(number: signal.Signals, answering: Answering) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)
    answering.send()


def _listen() -> None:
    """Accept connections on the port of the language runtime; nothing is said on them."""
    with socket.create_server(("127.0.0.1", RUNTIME_PORT)) as server:
        while True:
            connection, _ = server.accept()
            connection.close()
