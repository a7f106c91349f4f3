"""The daemon itself: takes sockets from the server, and answers the request on each."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from tests.support.opensandbox_server.execd import files
from tests.support.opensandbox_server.execd.codes import Codes
from tests.support.opensandbox_server.execd.commands import Commands
from tests.support.opensandbox_server.execd.uploads import upload
from tests.support.opensandbox_server.execd.wire import (
    Answering,
    DroppedError,
    RefusedError,
    Request,
    read_request,
)

RUNTIME_PORT = 44771
"""Where the language runtime listens; the code interpreter of the SDK looks for it."""

Handler = Callable[[Request, Answering], None]


def main(control_fd: int, *, has_runtime: bool) -> None:
    """Serve until the server closes its end of the control socket, then end at once."""
    routes = _routes(Commands(), Codes(has_runtime=has_runtime))
    if has_runtime:
        threading.Thread(target=_listen, daemon=True).start()
    with socket.socket(fileno=control_fd) as control:
        while True:
            data, fds, _, _ = socket.recv_fds(control, 1, 1)
            if not data:
                os._exit(0)
            connection = socket.socket(fileno=fds[0])
            threading.Thread(target=_serve, args=(connection, routes), daemon=True).start()


def _serve(connection: socket.socket, routes: dict[tuple[str, str], Handler]) -> None:
    with connection:
        request = read_request(connection)
        answering = Answering(connection)
        try:
            handler, names = _route(routes, request)
            handler(replace(request, names=names), answering)
        except RefusedError as refused:
            answering.send_error(refused)
        except DroppedError:
            pass


def _route(
    routes: dict[tuple[str, str], Handler], request: Request
) -> tuple[Handler, tuple[str, ...]]:
    """The handler of a request, and the parts of its path that stand at open places."""
    parts = request.path.strip("/").split("/")
    for (method, template), handler in routes.items():
        wanted = template.strip("/").split("/")
        pairs = list(zip(wanted, parts, strict=False))
        if (
            method == request.method
            and len(wanted) == len(parts)
            and all(want in ("*", part) for want, part in pairs)
        ):
            return handler, tuple(part for want, part in pairs if want == "*")
    raise RefusedError(404, "NOT_FOUND", f"404 page not found: {request.path}")


def _routes(commands: Commands, codes: Codes) -> dict[tuple[str, str], Handler]:
    return {
        ("GET", "/ping"): lambda _, answering: answering.send(),
        ("GET", "/metrics"): _metrics,
        ("FREEZE", "/"): _freeze,
        ("THAW", "/"): _thaw,
        ("POST", "/command"): commands.run,
        ("DELETE", "/command"): commands.interrupt,
        ("GET", "/command/status/*"): commands.status,
        ("GET", "/command/*/logs"): commands.logs,
        ("POST", "/session"): commands.open_session,
        ("POST", "/session/*/run"): commands.run_in_session,
        ("DELETE", "/session/*"): commands.close_session,
        ("POST", "/code"): codes.run,
        ("DELETE", "/code"): codes.interrupt,
        ("POST", "/code/context"): codes.create,
        ("GET", "/code/contexts"): codes.list,
        ("DELETE", "/code/contexts"): codes.delete_language,
        ("GET", "/code/contexts/*"): codes.get,
        ("DELETE", "/code/contexts/*"): codes.delete,
        ("POST", "/files/upload"): upload,
        ("GET", "/files/download"): files.download,
        ("GET", "/files/info"): files.info,
        ("GET", "/files/search"): files.search,
        ("POST", "/files/mv"): files.move,
        ("POST", "/files/permissions"): files.permissions,
        ("POST", "/files/replace"): files.replace,
        ("DELETE", "/files"): files.remove_files,
        ("POST", "/directories"): files.make_directories,
        ("DELETE", "/directories"): files.remove_directories,
        ("GET", "/directories/list"): files.list_directory,
    }


def _metrics(_: Request, answering: Answering) -> None:
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = (line.split() for line in file)
        sizes = {words[0].rstrip(":"): int(words[1]) / 1024 for words in lines}
    answering.send_json(
        {
            "cpu_count": os.cpu_count(),
            "cpu_used_pct": min(100.0, os.getloadavg()[0] * 100 / (os.cpu_count() or 1)),
            "mem_total_mib": sizes["MemTotal"],
            "mem_used_mib": sizes["MemTotal"] - sizes["MemAvailable"],
            "timestamp": time.time_ns() // 1_000_000,
        }
    )


def _freeze(_: Request, answering: Answering) -> None:
    """Stop every process of the sandbox but this one."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGSTOP)
    answering.send()


def _thaw(_: Request, answering: Answering) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGCONT)
    answering.send()


def _listen() -> None:
    """Accept connections on the port of the language runtime; nothing is said on them."""
    with socket.create_server(("127.0.0.1", RUNTIME_PORT)) as server:
        while True:
            connection, _ = server.accept()
            connection.close()
