"""Overlays of frozen files, mounted where only the commands of one sandbox see them.

    this process --pipe--> holder: a mount namespace of its own (and a user namespace, unless root)
         |                   overlay(lower = frozen files, upper) on <fork>/files, bound on <root>
         |-- <root> below /proc/<holder>/root: opened once, the door of the file tools
         `-- nsenter <holder> command: sees its own layer at the path of its parent's workspace

The holder ends when the pipe does, however this process ends, and the mounts go with it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, replace

from rath._core.files import forget, keep_from_children
from rath.backend.host.layer import Layer, LayerKind
from rath.backend.host.layer_directory import LayerDirectory
from rath.backend.host.process import Command
from rath.backend.host.upper import Namespace, OverlaySource

READY_SECONDS = 5.0
"""How long a mount may take before it is given up; it takes 10 ms."""

END_SECONDS = 1.0
"""How long the holder may take to end before it is killed."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_HOLD = """
mount -n -t overlay -o "lowerdir=$1,upperdir=upper,workdir=work$2" overlay files || exit 1
if [ -n "$3" ]; then mount -n --bind files "$3" || exit 1; fi
echo ready
exec cat
"""


_CHANGE = "rm -r replaced && : > replaced && cat written"


class OverlayFailed(Exception):
    """An overlay cannot be mounted here; says why."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The programs of util-linux that mount and enter, with the options that work here."""

    unshare: tuple[str, ...]
    nsenter: tuple[str, ...]
    options: str = ""
    """Options of the mount, each after a comma."""


class OverlayLayer(Layer):
    """An overlay over frozen files.

    Args:
        directory: Directory of the sandbox: changed files, and where the overlay is mounted.
        lower: Directory of the frozen files, kept as long as the overlay; has the same parent.
        root: Path of the workspace for commands, where it exists; else `directory.files`.
        tools: How to mount.

    Raises:
        OverlayFailed: It cannot be mounted; nothing is left of it.
    """

    kind: LayerKind = "overlay"

    def __init__(
        self, directory: LayerDirectory, lower: LayerDirectory, root: str | None, tools: Tools
    ) -> None:
        self._directory = directory
        self._lower = lower
        self._tools = tools
        for name in ("upper", "work", "files"):
            os.makedirs(os.path.join(directory.path, name), mode=0o700, exist_ok=True)
        self._bound = root if root is not None and os.path.isdir(root) else None
        self._holder = _held(tools, directory, lower, self._bound)
        try:
            self._fd = self._opened()
        except OSError as exc:
            _end(self._holder)
            raise OverlayFailed(f"the overlay cannot be reached: {exc.strerror}") from exc

    @property
    def root(self) -> str:
        # A directory that is removed outside is no mount point any more.
        if self._bound is not None and self._is_mounted_on(self._bound):
            return self._bound
        return self._directory.files

    @property
    def door(self) -> str:
        # The dot makes it a directory and no link to one.
        return f"/proc/self/fd/{self._fd}/."

    @property
    def upper(self) -> str:
        return os.path.join(self._directory.path, "upper")

    def changes(self) -> OverlaySource:
        namespace: Namespace = "user" if "--user" in self._tools.unshare else "trusted"
        return OverlaySource(self._lower.files, self.upper, self.door, namespace)

    def entering(self, command: Command) -> Command:
        argv = [*self._tools.nsenter, "--target", str(self._holder.pid), f"--wdns={command.cwd}"]
        return replace(command, argv=[*argv, "--", *command.argv], cwd="/")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            _end(self._holder)

    def _opened(self) -> int:
        fd = os.open(self._inside(self._bound or self._directory.files), _OPEN)
        if os.fstat(fd).st_dev == os.stat(self._directory.path).st_dev:
            os.close(fd)
            raise OSError(errno.ENODEV, "nothing is mounted there")
        return fd

    def _inside(self, path: str) -> str:
        return f"/proc/{self._holder.pid}/root{path}"

    def _is_mounted_on(self, path: str) -> bool:
        try:
            return os.path.samestat(os.stat(self._inside(path)), os.fstat(self._fd))
        except OSError:
            return False


def _held(
    tools: Tools, directory: LayerDirectory, lower: LayerDirectory, bound: str | None
) -> subprocess.Popen[bytes]:
    """Start the process in whose namespace the overlay is mounted, and wait until it is."""
    above, name = os.path.split(lower.path)
    if above != os.path.dirname(directory.path):
        raise OverlayFailed("the frozen files lie in another home")
    # Relative, so that no character of the home means something to mount.
    relative = os.path.join("..", name, "files")
    try:
        holder = subprocess.Popen(
            [*tools.unshare, "/bin/sh", "-c", _HOLD, "sh", relative, tools.options, bound or ""],
            cwd=directory.path,
            env={"PATH": _PATH},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
        )
    except OSError as exc:
        raise OverlayFailed(f"{tools.unshare[0]} cannot be started: {exc.strerror}") from exc
    assert holder.stdin is not None
    # A forked child that lives on would keep the holder, and the mounts with it.
    keep_from_children(holder.stdin.fileno())
    said = _first_words(holder)
    if said.endswith(b"ready\n"):
        return holder
    _end(holder)
    raise OverlayFailed(said.decode(errors="replace").strip() or "the overlay was not mounted")


def _first_words(holder: subprocess.Popen[bytes]) -> bytes:
    assert holder.stdout is not None
    said = b""
    with holder.stdout as stdout, select.epoll() as ready:
        ready.register(stdout, select.EPOLLIN)
        while not said.endswith(b"ready\n"):
            data = os.read(stdout.fileno(), 4096) if ready.poll(READY_SECONDS) else b""
            if not data:
                break
            said += data
    return said


def _end(holder: subprocess.Popen[bytes]) -> None:
    if holder.stdin is not None and not holder.stdin.closed:
        forget(holder.stdin.fileno())
        with contextlib.suppress(OSError):
            holder.stdin.close()
    try:
        holder.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        holder.kill()
        holder.wait()


class _Probe:
    """What was found out about overlays, once for each file system."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[int, Tools | None] = {}

    def tools(self, directory: LayerDirectory) -> Tools | None:
        with self._lock:
            device = os.stat(directory.path).st_dev
            if device not in self._found:
                self._found[device] = next(filter(_works, tools_to_try()), None)
            return self._found[device]


_probe = _Probe()


def overlay_tools(directory: LayerDirectory) -> Tools | None:
    """Return how to mount an overlay in `directory`, None where that is impossible.

    The first call mounts one for a moment, in at most a few times `READY_SECONDS`; blocks.
    """
    return _probe.tools(directory) if sys.platform == "linux" else None


def tools_to_try() -> list[Tools]:
    """Return ways to mount an overlay that may work for this user, the best first."""
    unshare, nsenter = shutil.which("unshare", path=_PATH), shutil.which("nsenter", path=_PATH)
    if unshare is None or nsenter is None:
        return []
    private = (unshare, "--mount", "--propagation", "private")
    own_user = ("--user", "--map-current-user", "--keep-caps")
    plain = Tools(private, (nsenter, "--mount"))
    enter = (nsenter, "--user", "--preserve-credentials", "--mount")
    # Who is not root may set no attributes but these, and an overlay needs some.
    mapped = Tools((*private, *own_user), enter, ",userxattr")
    return [plain, mapped] if os.geteuid() == 0 else [mapped]


def _works(tools: Tools) -> bool:
    """Mount an overlay, change it from here and in its namespace, and see the same in both."""
    lower, upper = LayerDirectory(), LayerDirectory()
    try:
        os.makedirs(os.path.join(lower.files, "replaced", "below"))
        layer = OverlayLayer(upper, lower, None, tools)
        try:
            written = os.path.join(layer.door, "written")
            with open(written, "x", encoding="utf-8") as file:
                file.write("here")
            shown = Command(["/bin/sh", "-c", _CHANGE], layer.root, {})
            seen = subprocess.run(
                layer.entering(shown).argv,
                cwd="/",
                env={"PATH": _PATH},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=READY_SECONDS,
                check=False,
            )
            return seen.stdout == b"here" and os.path.isfile(os.path.join(layer.door, "replaced"))
        finally:
            layer.close()
    except (OverlayFailed, OSError, subprocess.TimeoutExpired):
        return False
    finally:
        lower.remove()
        upper.remove()
