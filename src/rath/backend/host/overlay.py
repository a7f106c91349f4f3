"""Overlays of frozen files, mounted where only the commands of one sandbox see them.

    this process --pipe--> holder: a mount namespace of its own (and a user namespace, unless root)
         |                   overlay(lower = frozen files, upper) on <fork>/files, bound on <root>
         |-- <root> below /proc/<holder>/root: opened once, the door of the file tools
         `-- nsenter <holder> command: sees its own layer at the path of its parent's workspace

The holder ends when the pipe does, however this process ends, and the mounts go with it.
What was changed is read from the upper directory alone, whose format is described in
https://docs.kernel.org/filesystems/overlayfs.html (whiteouts, opaque directories).
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from rath._core.dataclasses import dataclass
from rath._core.files import forget, keep_from_children
from rath.backend.changes import EffectPolicy, ScanCache, TreeState
from rath.backend.host.layers import Layer, LayerDirectory, LayerKind
from rath.backend.host.paths import MAX_DEPTH, OPEN_DIRECTORY, descriptor
from rath.backend.host.process import HostCommand
from rath.backend.host.scan import Keep, fill, scan, stat_scan

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


Namespace = Literal["trusted", "user"]
"""Where the kernel puts its marks: "user" for an overlay that was mounted in a user namespace. A
command could forge those of the other one."""


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
        self._holder = _start_holder(tools, directory, lower, self._bound)
        try:
            self._fd = self._open_mount()
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
        """Directory that holds what was changed."""
        return os.path.join(self._directory.path, "upper")

    def source(self) -> OverlaySource:
        namespace: Namespace = "user" if "--user" in self._tools.unshare else "trusted"
        return OverlaySource(self._lower.files, self.upper, self.door, namespace)

    def entering(self, command: HostCommand) -> HostCommand:
        argv = [*self._tools.nsenter, "--target", str(self._holder.pid), f"--wdns={command.cwd}"]
        return replace(command, argv=[*argv, "--", *command.argv], cwd="/")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            _end(self._holder)

    def _open_mount(self) -> int:
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


def _start_holder(
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
    output = _first_output(holder)
    if output.endswith(b"ready\n"):
        return holder
    _end(holder)
    raise OverlayFailed(output.decode(errors="replace").strip() or "the overlay was not mounted")


def _first_output(holder: subprocess.Popen[bytes]) -> bytes:
    assert holder.stdout is not None
    output = b""
    with holder.stdout as stdout, select.epoll() as ready:
        ready.register(stdout, select.EPOLLIN)
        while not output.endswith(b"ready\n"):
            data = os.read(stdout.fileno(), 4096) if ready.poll(READY_SECONDS) else b""
            if not data:
                break
            output += data
    return output


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


_tools_by_device: dict[int, Tools | None] = {}
_probing = threading.Lock()


def overlay_tools(directory: LayerDirectory) -> Tools | None:
    """Return how to mount an overlay in `directory`, None where that is impossible.

    The first call on a file system mounts one for a moment, in at most a few times
    `READY_SECONDS`; blocks.
    """
    if sys.platform != "linux":
        return None
    with _probing:
        device = os.stat(directory.path).st_dev
        if device not in _tools_by_device:
            _tools_by_device[device] = next(filter(_works, tools_to_try()), None)
        return _tools_by_device[device]


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
            shown = HostCommand(["/bin/sh", "-c", _CHANGE], layer.root, {})
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


class NotPlain(Exception):
    """The upper directory says something that only the kernel resolves, as redirects do."""


class OverlaySource:
    """Looks at an overlay by its two directories; O(what was changed) after the first look.

    Args:
        lower: The files below, which nobody changes any more.
        upper: What was changed.
        door: The merged files, looked at instead if the upper directory cannot be understood.
        namespace: Where the marks of the kernel are.
    """

    def __init__(self, lower: str, upper: str, door: str, namespace: Namespace) -> None:
        self._lower = lower
        self._upper = upper
        self._door = door
        self.namespace: Namespace = namespace
        self._below: dict[EffectPolicy, TreeState] = {}
        self._directories_below: dict[EffectPolicy, set[str]] = {}
        self._is_plain = True

    def __call__(self, policy: EffectPolicy, *, known: ScanCache, keep: Keep | None) -> TreeState:
        lower = self.below(policy)
        if lower.is_too_large or not self._is_plain:
            return scan(self._door, policy, known=known, keep=keep)
        try:
            marks = _UpperMarks(self._upper, policy, self.namespace)
        except NotPlain:
            self._is_plain = False
            fill(self._lower, lower, lower.files, keep=keep)
            return scan(self._door, policy, known=known, keep=keep)
        found = scan(self._upper, policy, known=known, keep=keep)
        if found.is_too_large:
            return found
        gone = _hidden_paths(lower, self._directories(policy), marks)
        fill(self._lower, lower, gone & lower.files.keys(), keep=keep)
        files = {path: seen for path, seen in lower.files.items() if path not in gone}
        files.update(found.files)
        if len(files) > policy.max_files:
            return TreeState(is_too_large=True)
        others = {path: kind for path, kind in lower.others.items() if path not in gone}
        others.update(
            (path, kind) for path, kind in found.others.items() if path not in marks.whiteouts
        )
        return TreeState(files, others, {**lower.unseen, **found.unseen})

    def below(self, policy: EffectPolicy) -> TreeState:
        """Return the files below as they were in the beginning; most of them are not read."""
        if policy not in self._below:
            self._below[policy] = stat_scan(self._lower, policy)
        return self._below[policy]

    def _directories(self, policy: EffectPolicy) -> set[str]:
        if policy not in self._directories_below:
            lower = self.below(policy)
            found: set[str] = set()
            for path in (*lower.files, *lower.others):
                found.update(_above(path))
            self._directories_below[policy] = found
        return self._directories_below[policy]

    def read_all(self, policy: EffectPolicy, *, keep: Keep | None) -> None:
        """Read all files below, for who needs their digests."""
        lower = self.below(policy)
        fill(self._lower, lower, lower.files, keep=keep)


def _hidden_paths(lower: TreeState, directories: set[str], marks: _UpperMarks) -> set[str]:
    """Return what the upper directory hides; O(files below) only if it hides a directory.

    Args:
        lower: The files below.
        directories: The directories below that hold any of them.
        marks: What the upper directory says.
    """
    entries = lower.files.keys() | lower.others.keys()
    gone = {path for path in (*marks.hidden, *marks.replaced) if path in entries}
    hidden = directories.intersection(marks.hidden)
    if hidden:
        gone.update(path for path in entries if not hidden.isdisjoint(_above(path)))
    return gone


def _above(path: str) -> Iterator[str]:
    """Yield the directories in which a path lies."""
    while end := path.rpartition("/")[0]:
        yield end
        path = end


class _UpperMarks:
    """What an upper directory says of the one below, besides its files; raises `NotPlain`."""

    def __init__(self, upper: str, policy: EffectPolicy, namespace: Namespace) -> None:
        self.hidden: list[str] = []
        """Paths at which nothing of the lower directory is seen, nor below them."""
        self.replaced: list[str] = []
        """Directories, which merge with one below and hide a file."""
        self.whiteouts: set[str] = set()
        """Entries that only say that something was removed."""
        self._ignore = policy.ignore
        self._namespace = namespace
        with (
            contextlib.suppress(FileNotFoundError),
            descriptor(os.open(upper, OPEN_DIRECTORY)) as fd,
        ):
            self._walk(fd, "")

    def _walk(self, fd: int, prefix: str) -> None:
        directories: list[str] = []
        with os.scandir(fd) as entries:
            for entry in entries:
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    self.replaced.append(path)
                    if entry.name not in self._ignore:
                        directories.append(entry.name)
                    continue
                self.hidden.append(path)
                if entry.is_file(follow_symlinks=False):
                    if self._mark(fd, entry.name, "metacopy") is not None:
                        raise NotPlain(f"{path!r} holds metadata only")
                elif _is_whiteout(entry):
                    self.whiteouts.add(path)
        for name in directories:
            self._enter(fd, prefix, name)

    def _enter(self, above: int, prefix: str, name: str) -> None:
        path = prefix + name
        if path.count("/") >= MAX_DEPTH:
            return  # no scan goes there, and each tells so
        if self._mark(above, name, "redirect") is not None:
            raise NotPlain(f"{path!r} is redirected")
        opaque = self._mark(above, name, "opaque")
        if opaque == b"y":
            self.hidden.append(path)
        elif opaque is not None:
            raise NotPlain(f"{path!r} is marked as {opaque!r}")
        try:
            fd = os.open(name, OPEN_DIRECTORY, dir_fd=above)
        except OSError:
            return  # gone, or closed to us: then the scan of the upper directory tells so
        with descriptor(fd):
            self._walk(fd, f"{path}/")

    def _mark(self, directory: int, name: str, kind: str) -> bytes | None:
        """Return an attribute that the kernel put on an entry, None where there is none."""
        path = f"/proc/self/fd/{directory}/{name}"
        try:
            return os.getxattr(path, f"{self._namespace}.overlay.{kind}", follow_symlinks=False)
        except OSError as exc:
            if exc.errno in (errno.ENODATA, errno.ENOTSUP, errno.ENOENT):
                return None
            raise NotPlain(f"the marks of {name!r} cannot be read: {exc.strerror}") from exc


def _is_whiteout(entry: os.DirEntry[str]) -> bool:
    try:
        state = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISCHR(state.st_mode) and state.st_rdev == 0
