"""A server of our own on loopback, shared by all processes that open its directory.

<path>/                 what the server keeps
<path>/.rath/ov.conf    its config, which names keys: for this user only
<path>/.rath/server.json  its address and key, while it runs
<path>/.rath/server.log   what it said
<path>/.rath/users.lock   held shared by each user, exclusive by the keeper that ends it
<path>/.rath/start.lock   held while somebody starts it
<path>/.rath/keeper.lock  held by its keeper
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from rath._async.runtime import runtime
from rath._core.files import FileLock, LockKind, atomic_write_json, make_private_directory
from rath.config.env import env_value
from rath.errors import MemoryBackendError
from rath.memory.adapters.openviking.defaults import (
    END_SECONDS,
    SERVER,
    SERVER_VARIABLE,
    START_SECONDS,
)
from rath.memory.adapters.openviking.options import Options
from rath.memory.adapters.openviking.records import server_config

__all__ = ["HOME_NAME", "Embedded", "join"]

HOME_NAME = ".rath"
_CONFIG = "ov.conf"
_STATE = "server.json"
_LOG = "server.log"
_USERS = "users.lock"
_START = "start.lock"
_KEEPER = "keeper.lock"

_LOOK_SECONDS = 0.05
_LOG_LINES = 12
_LOOPBACK = "127.0.0.1"

# Keys of other services are none of the server's business: its own stand in its config.
_PASSED_ON = (
    "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SSL_CERT_DIR",
    "SSL_CERT_FILE", "TMPDIR", "TZ", "USER", "XDG_CACHE_HOME",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip


@dataclass(slots=True)
class Embedded:
    """Our share in a running server."""

    url: str
    key: str = field(repr=False)
    _home: Path
    _users: FileLock

    async def aleave(self) -> None:
        """Give the share back; the last one ends the server, which is waited for."""
        await runtime().call_in_worker(self.leave)

    def leave(self) -> None:
        """Do the same, blocking."""
        if not self._users.held:
            return
        self._users.release()
        deadline = time.monotonic() + END_SECONDS
        while _is_kept(self._home) and time.monotonic() < deadline:
            if _has_users(self._home):
                return
            time.sleep(_LOOK_SECONDS)


async def join(options: Options) -> Embedded:
    """Return a share in the server of a directory, which is started if nobody has.

    Raises:
        MemoryBackendError: It cannot be started.
    """
    stop = threading.Event()
    joining = runtime().start_in_worker(partial(_join, options, stop))
    try:
        return await asyncio.wrap_future(joining)
    except asyncio.CancelledError:
        stop.set()
        joining.add_done_callback(_leave_unused)
        raise


def _leave_unused(joined: Future[Embedded]) -> None:
    # Called on the runtime thread where the start has just ended: leaving would block it.
    if not joined.cancelled() and joined.exception() is None:
        runtime().start_in_worker(joined.result().leave)


def _join(options: Options, stop: threading.Event) -> Embedded:
    if sys.platform == "win32":
        raise MemoryBackendError("start the OpenViking server yourself here, and give its url")
    assert options.path is not None
    deadline = time.monotonic() + START_SECONDS
    path = options.path.absolute()
    home = path / HOME_NAME
    try:
        path.mkdir(parents=True, exist_ok=True)
        make_private_directory(home)
        users = FileLock(home / _USERS, kind="shared")
        starting = FileLock(home / _START)
        # Who ends the last server has it until that has ended.
        if not users.acquire(timeout=2 * END_SECONDS):
            raise MemoryBackendError(f"the last OpenViking server in {str(path)!r} does not end")
        try:
            if not starting.acquire(timeout=START_SECONDS):
                raise MemoryBackendError(f"another process starts a server in {str(path)!r}")
            try:
                url, key = _running(home, deadline, stop) or _start(home, options, deadline, stop)
            finally:
                starting.release()
        except BaseException:
            users.release()
            raise
    except OSError as exc:
        raise MemoryBackendError(f"no server can be started in {str(path)!r}: {exc}") from exc
    return Embedded(url, key, home, users)


def _running(home: Path, deadline: float, stop: threading.Event) -> tuple[str, str] | None:
    """Return where the server of a directory is reached, and its key.

    One that is not ready is waited for: who began to start it may have gone. So is the end of one
    that ends.
    """
    while _is_kept(home):
        with suppress(FileNotFoundError, ValueError, KeyError):
            server: Mapping[str, Any] = json.loads((home / _CONFIG).read_bytes())["server"]
            if _answers(server["port"]):
                return _published(home, server["port"], server["root_api_key"])
        if stop.is_set() or time.monotonic() > deadline:
            raise MemoryBackendError(_failure(home, "the server that somebody started"))
        time.sleep(_LOOK_SECONDS)
    return None


def _published(home: Path, port: int, key: str) -> tuple[str, str]:
    url = f"http://{_LOOPBACK}:{port}"
    if not (home / _STATE).exists():
        atomic_write_json(home / _STATE, {"url": url, "key": key}, mode=0o600)
    return url, key


def _start(home: Path, options: Options, deadline: float, stop: threading.Event) -> tuple[str, str]:
    command = options.server or _found_server()
    port, key = _free_port(), secrets.token_hex(16)
    config = server_config(options, workspace=home.parent, port=port, key=key)
    (home / _STATE).unlink(missing_ok=True)
    (home / _LOG).unlink(missing_ok=True)
    atomic_write_json(home / _CONFIG, config, mode=0o600)
    keeper = Path(__file__).with_name("keeper.py")
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    try:
        subprocess.run(
            [sys.executable, "-I", "-S", str(keeper), str(home), *command,
             "--config", str(home / _CONFIG)],
            cwd=home,
            env=passed,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=True,
            timeout=START_SECONDS,
        )  # fmt: skip
    except subprocess.SubprocessError as exc:
        raise MemoryBackendError(f"the keeper of the server did not start: {exc}") from exc
    while not _answers(port):
        if stop.is_set() or not _is_kept(home) or time.monotonic() > deadline:
            raise MemoryBackendError(_failure(home, f"the server {command[0]!r}"))
        time.sleep(_LOOK_SECONDS)
    return _published(home, port, key)


def _found_server() -> tuple[str, ...]:
    program, *rest = shlex.split(env_value(SERVER_VARIABLE) or "") or [SERVER]
    found = shutil.which(program)
    if found is None:
        raise MemoryBackendError(
            f"{program!r} was not found; install OpenViking (AGPL-3.0) into an environment of its "
            f"own, `pip install openviking`, and name its program in {SERVER_VARIABLE}, or put "
            "it on PATH"
        )
    return (found, *rest)


def _free_port() -> int:
    with socket.create_server((_LOOPBACK, 0)) as free:
        port: int = free.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    connection = HTTPConnection(_LOOPBACK, port, timeout=1.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _is_kept(home: Path) -> bool:
    """Tell whether a server is there, or the keeper of one."""
    # Shared: two who look do not take each other for the keeper.
    return not _is_free(home / _KEEPER, "shared")


def _has_users(home: Path) -> bool:
    """Tell whether others hold a share; a keeper that has begun to end the server is none."""
    users = home / _USERS
    is_shared = _is_free(users, "shared") and not _is_free(users, "exclusive")
    # The keeper may have come in between, and does not let go any more.
    return is_shared and _is_free(users, "shared")


def _is_free(path: Path, kind: LockKind) -> bool:
    lock = FileLock(path, kind=kind)
    try:
        is_free = lock.acquire()
    except FileNotFoundError:
        return True  # the whole directory was removed
    lock.release()
    return is_free


def _failure(home: Path, server: str) -> str:
    try:
        lines = (home / _LOG).read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    except OSError:
        lines = []
    said = "\n".join(lines) or "it said nothing"
    how = "ended before it answered" if not _is_kept(home) else "does not answer"
    return f"{server} {how}; the end of {str(home / _LOG)!r}:\n{said}"
