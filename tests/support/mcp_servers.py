"""MCP servers that are not ours: how they are found, started, counted and ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from rath.mcp.spec import HttpServer, ServerSpec, StdioServer, Transport

__all__ = [
    "SERVERS",
    "CountedServer",
    "HttpEverything",
    "everything_server",
    "filesystem_server",
    "git_server",
    "has_ended",
    "own_repository",
    "running_everything",
    "time_server",
    "wait_until",
]

SERVERS = "RATH_MCP_SERVERS"
"""Names a directory with the servers: `python/bin` and `node/node_modules` in it."""

HttpKind = Literal["http", "sse"]

_LOOPBACK = Path(__file__).with_name("mcp_loopback.cjs")
_MODES: dict[HttpKind, tuple[str, str]] = {
    "http": ("streamableHttp", "mcp"),
    "sse": ("sse", "sse"),
}
"""For each transport what the server calls it, and the path that it answers on."""

_SECONDS = 50.0
_NOTE_PID = 'echo $$ >> "$0"; exec "$@"'
"""The process that notes its id becomes the server, so that the id is the server's."""


def _home() -> tuple[Path, bool]:
    """Return where servers may be, and whether somebody named the place."""
    named = os.environ.get(SERVERS)
    if named:
        return Path(named), True
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "openrath" / "mcp-servers-2026-11-20", False


# Tests have homes of their own: this is about the one of who runs them.
_HOME, _IS_NAMED = _home()


def _program(part: Literal["python", "node"], path: str) -> str:
    """Return a program of a server; skip the test where it is not there."""
    found = _HOME / part / path
    # While it is being made there is no such file.
    is_whole = _IS_NAMED or (_HOME / f"{part}.complete").is_file()
    if not is_whole or not found.is_file():
        pytest.skip(
            f"no {found.name}: bash .ci/test installs it, or {SERVERS} names the directory of one"
        )
    if part == "node" and shutil.which("node") is None:
        pytest.skip(f"there is no node, which runs {found.name}")
    return str(found)


def time_server() -> StdioServer:
    """Tells the time."""
    return StdioServer(_program("python", "bin/mcp-server-time"), ("--local-timezone", "Etc/UTC"))


def git_server(repository: Path) -> StdioServer:
    """Works on one repository, and knows no settings of who runs it."""
    env = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(repository)}
    program = _program("python", "bin/mcp-server-git")
    return StdioServer(program, ("--repository", str(repository)), env)


def everything_server() -> StdioServer:
    """Has one of everything that the protocol knows."""
    return StdioServer(_program("node", "node_modules/.bin/mcp-server-everything"), ("stdio",))


def filesystem_server(folder: Path) -> StdioServer:
    """Works on the files in one folder."""
    return StdioServer(_program("node", "node_modules/.bin/mcp-server-filesystem"), (str(folder),))


def own_repository(path: Path) -> Path:
    """Make a repository with one commit."""
    path.mkdir()
    (path / "plan.txt").write_text("sow, water, wait\n")
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    for words in (["init", "-q", "-b", "main"], ["add", "plan.txt"], ["commit", "-qm", "Plan"]):
        subprocess.run(["git", *who, *words], cwd=path, check=True, env=_plain_git())
    return path


def _plain_git() -> dict[str, str]:
    return {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


class CountedServer:
    """A server whose processes are counted: each notes its id in a file when it starts."""

    def __init__(self, server: StdioServer, noted: Path) -> None:
        noted.touch()
        self._noted = noted
        argv = (str(noted), server.command, *server.args)
        self.spec = StdioServer("sh", ("-c", _NOTE_PID, *argv), server.env, server.cwd)

    @property
    def argv(self) -> list[str]:
        """The command line that starts it."""
        return [self.spec.command, *self.spec.args]

    @property
    def pids(self) -> list[int]:
        """The ids of all processes so far, the oldest first."""
        return [int(line) for line in self._noted.read_text().split()]

    def kill(self) -> None:
        """Kill the process that was started last, without a word."""
        os.kill(self.pids[-1], signal.SIGKILL)

    def wait_until_ended(self) -> None:
        """Wait until none of its processes runs."""
        wait_until(lambda: all(has_ended(pid) for pid in self.pids))


def has_ended(pid: int) -> bool:
    """Whether a process runs no more, also where nobody has asked for its exit status."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False  # no such files on this system


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + _SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"it does not hold after {_SECONDS:.0f} s"
        time.sleep(0.01)


class HttpEverything:
    """The server with everything at an address of loopback; it can be killed and started again."""

    def __init__(self, kind: HttpKind, log: Path) -> None:
        program = _program("node", "node_modules/.bin/mcp-server-everything")
        self._argv: Sequence[str] = ("node", "--require", str(_LOOPBACK), program, _MODES[kind][0])
        self.log = log
        """What it prints."""
        self._port = 0
        self._process = self._started()
        self.url = f"http://127.0.0.1:{self._port}/{_MODES[kind][1]}"
        self.spec = HttpServer(self.url, transport=kind)

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    def kill(self) -> None:
        """Kill it without a word."""
        self._process.kill()
        self._process.wait()

    def start_again(self) -> None:
        """Start it at the same address."""
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        told, tells = os.pipe()
        env = {**os.environ, "PORT": str(self._port), "RATH_PORT_FD": str(tells)}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self._argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[tells],
            )
        os.close(tells)
        with open(told) as lines:
            line = lines.readline()
        if not line:
            process.wait()
            pytest.fail(f"the server did not start: {self.log.read_text()}")
        self._port = int(line)
        return process


@contextmanager
def everything_on(transport: Transport, directory: Path) -> Generator[ServerSpec]:
    """The server with everything on a transport."""
    if transport == "stdio":
        yield everything_server()
        return
    with running_everything(transport, directory) as server:
        yield server.spec


@contextmanager
def running_everything(kind: HttpKind, directory: Path) -> Generator[HttpEverything]:
    """Start the server with everything on a free port of loopback, and end it."""
    server = HttpEverything(kind, directory / f"everything-{kind}.log")
    try:
        yield server
    finally:
        server.kill()
