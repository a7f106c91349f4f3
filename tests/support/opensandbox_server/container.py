"""A sandbox of the test server: a tree of its own, and processes that see nothing but it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import py_compile
import select
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from tests.support.opensandbox_server.http import CapturedRequest

_LIBRARY = "/opt/opensandbox/lib"
_PACKAGE = Path("tests/support/opensandbox_server/execd")
_START = (
    "import sys; sys.path.insert(0, {library!r});"
    "from tests.support.opensandbox_server.execd.daemon import main;"
    "main({fd}, has_runtime={has_runtime})"
)
_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
_DIRECTORIES = ("etc", "home", "opt/opensandbox", "root", "run", "srv", "tmp", "var/tmp")
_MOUNTED = ("dev", "proc", "usr", _LIBRARY.lstrip("/"))
_USERS = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
_GROUPS = "root:x:0:\nnogroup:x:65534:\n"
_SYSTEM_FILES = ("/etc/alternatives", "/etc/ld.so.cache")
_CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETFCAP")
"""What root can do in a sandbox, to its own files and processes; the last lets it be another."""
_NAMESPACES = (
    *("--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
    *("--uid", "0", "--gid", "0", "--hostname", "sandbox", "--cap-drop", "ALL"),
    *(word for name in _CAPABILITIES for word in ("--cap-add", name)),
)
_STOP_TIMEOUT = 5.0


class BrokenExchangeError(Exception):
    """The daemon of a sandbox ended, or broke off, before its answer was complete."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the host that a sandbox sees."""

    source: Path
    target: str
    """Absolute path in the sandbox."""
    is_read_only: bool


@dataclass(frozen=True, slots=True)
class Exchange:
    """The answer of a daemon: what it begins with, then its blocks."""

    status: int
    headers: Mapping[str, str]
    is_stream: bool
    blocks: AsyncGenerator[bytes, None]
    """Each fails with BrokenExchangeError when the daemon breaks off."""


@cache
def why_not() -> str | None:
    """Why no sandbox can run here; None if one can. Looked at once in a process."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return "bubblewrap (`bwrap`) is not installed; sandboxes run in nothing else"
    probe = [bwrap, *_NAMESPACES, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    ran = subprocess.run(
        [*probe, "/usr/bin/env", "true"], capture_output=True, text=True, check=False
    )
    return None if ran.returncode == 0 else f"bubblewrap does not run here: {ran.stderr.strip()}"


def install_daemon(library: Path) -> None:
    """Put the daemon's code where sandboxes see it, compiled."""
    target = library / _PACKAGE
    (target / "__pycache__").mkdir(parents=True)
    for name, source, compiled in _daemon():
        (target / name).write_bytes(source)
        Path(cache_from_source(target / name)).write_bytes(compiled)


@cache
def _daemon() -> tuple[tuple[str, bytes, bytes], ...]:
    """The files of the daemon: name, source, and what Python makes of it without a second look."""
    sources = sorted((Path(__file__).parent / "execd").glob("*.py"))
    with tempfile.TemporaryDirectory(prefix="execd-") as scratch:
        return tuple((path.name, path.read_bytes(), _compiled(path, scratch)) for path in sources)


def _compiled(source: Path, scratch: str) -> bytes:
    made = py_compile.compile(
        str(source),
        cfile=os.path.join(scratch, source.name),
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    assert made is not None
    return Path(made).read_bytes()


def make_root(root: Path) -> None:
    """Make the tree that a sandbox begins with."""
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True)
    for name, target in _LINKS.items():
        (root / name).symlink_to(target)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    (root / "root").chmod(0o700)
    (root / "etc/passwd").write_text(_USERS)
    (root / "etc/group").write_text(_GROUPS)


def copy_root(source: Path, target: Path) -> None:
    """Copy a tree that no process changes; links stay links, and what is mounted stays out."""

    def left_out(directory: str, names: list[str]) -> list[str]:
        where = Path(directory)
        paths = [name for name in names if str((where / name).relative_to(source)) in _MOUNTED]
        return paths + [name for name in names if _is_special(where / name)]

    shutil.copytree(source, target, symlinks=True, ignore=left_out)


def _is_special(path: Path) -> bool:
    mode = path.lstat().st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))


def remove_tree(root: Path) -> None:
    """Delete a tree whose processes ended, whatever modes its directories have."""
    for directory, names, _ in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            if not os.path.islink(path):
                with contextlib.suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(root, ignore_errors=True)


class Container:
    """The processes of one sandbox, in namespaces of their own: no network, no host.

    All methods belong to the thread of the server: the processes end with it.

    Args:
        root: Tree that is `/` in the sandbox.
        library: Where `install_daemon` put the code.
        has_runtime: Whether code of languages runs.
    """

    def __init__(
        self,
        root: Path,
        library: Path,
        *,
        env: Mapping[str, str],
        mounts: Sequence[Mount],
        has_runtime: bool,
    ) -> None:
        self.root = root
        self.log = root.with_name(f"{root.name}.log")
        """What the daemon wrote to its standard error."""
        self._library = library
        self._env = env
        self._mounts = mounts
        self._has_runtime = has_runtime
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._init_fd: int | None = None

    def start(self) -> None:
        """Start the processes, without waiting for them."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        info_fd, info_end = os.pipe()
        with theirs, self.log.open("ab") as log, os.fdopen(info_fd, "rb") as info:
            self._process = subprocess.Popen(
                self._argv(theirs.fileno(), info_end),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={},
                pass_fds=[theirs.fileno(), info_end],
                cwd="/",
            )
            os.close(info_end)
            told = info.read()
        if told:
            with contextlib.suppress(ProcessLookupError):  # it may have ended already
                self._init_fd = os.pidfd_open(json.loads(told)["child-pid"])
        self._control = ours

    @property
    def is_running(self) -> bool:
        """Whether the processes are there."""
        return self._process is not None and self._process.poll() is None

    async def stop(self) -> None:
        """End all processes; none is left when this returns."""
        if self._control is not None:
            self._control.close()
            self._control = None
        # Kept until it has ended: who is cancelled here may never have begun to wait.
        process = self._process
        if process is not None:
            await asyncio.to_thread(_end, process)
            self._process = None
        init_fd, self._init_fd = self._init_fd, None
        if init_fd is not None:
            await asyncio.to_thread(_wait_for_init, init_fd)

    async def exchange(self, request: CapturedRequest) -> Exchange:
        """Let the daemon answer a request.

        Raises:
            BrokenExchangeError: It ended before it began to answer.
        """
        if self._control is None:
            raise BrokenExchangeError("the sandbox has no processes")
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"r"], [theirs.fileno()])
            except OSError as exc:
                ours.close()
                raise BrokenExchangeError("the sandbox has ended") from exc
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            writer.write(_encode(request))
            await writer.drain()
            head: dict[str, Any] = json.loads(await _block(reader))
        except (ConnectionError, asyncio.IncompleteReadError) as exc:
            writer.close()
            raise BrokenExchangeError("the daemon broke off") from exc
        return Exchange(head["status"], head["headers"], head["is_stream"], _blocks(reader, writer))

    def _argv(self, fd: int, info_fd: int) -> list[str]:
        bwrap = shutil.which("bwrap")
        assert bwrap is not None, "the server does not start without it"
        start = _START.format(library=_LIBRARY, fd=fd, has_runtime=self._has_runtime)
        python = os.path.realpath(sys.executable)
        argv = [bwrap, *_NAMESPACES, "--info-fd", str(info_fd)]
        for name, value in self._env.items():
            argv += ["--setenv", name, value]
        argv += ["--bind", str(self.root), "/", "--ro-bind", "/usr", "/usr"]
        for path in _SYSTEM_FILES:
            argv += ["--ro-bind-try", path, path]
        if not Path(python).is_relative_to("/usr"):
            argv += ["--ro-bind", sys.base_prefix, sys.base_prefix]
        argv += ["--ro-bind", str(self._library), _LIBRARY, "--proc", "/proc", "--dev", "/dev"]
        for mount in self._mounts:
            how = "--ro-bind" if mount.is_read_only else "--bind"
            argv += [how, str(mount.source), mount.target]
        return [*argv, "--chdir", "/", "--", python, "-I", "-S", "-c", start]


def base_environment(sandbox_id: str) -> dict[str, str]:
    """The environment of a sandbox before its creator adds to it."""
    places = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    python = Path(os.path.realpath(sys.executable)).parent
    return {
        "PATH": ":".join([*places, str(python)]),
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "EXECD_ENVS": "/opt/opensandbox/.env",
        "OPENSANDBOX_ID": sandbox_id,
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for an end that was asked for, and force it if it does not come."""
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for_init(fd: int) -> None:
    """Wait for the first process of the namespace, which ends after all others there did.

    Bubblewrap itself ends a little earlier.
    """
    poller = select.poll()  # a descriptor may be above what `select` takes
    poller.register(fd, select.POLLIN)
    poller.poll(_STOP_TIMEOUT * 1000)
    os.close(fd)


def _encode(request: CapturedRequest) -> bytes:
    head = {
        "method": request.method,
        "path": request.path,
        "query": list(request.query),
        "headers": dict(request.headers),
        "length": len(request.body),
    }
    return json.dumps(head).encode() + b"\n" + request.body


async def _block(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">I", await reader.readexactly(4))
    return await reader.readexactly(length)


async def _blocks(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> AsyncGenerator[bytes, None]:
    try:
        while data := await _block(reader):
            yield data
    except (ConnectionError, asyncio.IncompleteReadError) as exc:
        raise BrokenExchangeError("the daemon broke off") from exc
    finally:
        writer.close()
