"""The command line that runs a command in a sandbox, and what of the host is seen there."""

from __future__ import annotations

import errno
import os
import platform
import re
import shlex
import shutil
import struct
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from rath._core.dataclasses import dataclass
from rath.backend.host.paths import is_below, new_directory
from rath.backend.host.process import STATUS_NUMBER, HostCommand, environment

HOME = "/home/sandbox"
"""The home of the only user inside: empty, in memory, gone with the command."""

SCRATCH_BYTES = 1 << 30
"""Size of each place in memory, in bytes; a guess. Control groups count it as memory, too."""

RUN_BYTES = 16 << 20
"""Size of /run, in bytes: room for locks and sockets."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")

ETC_FILES = (
    "gai.conf", "host.conf", "ld.so.cache", "ld.so.conf", "locale.alias", "locale.conf",
    "localtime", "magic", "mime.types", "nsswitch.conf", "os-release", "protocols", "services",
    "ssl/openssl.cnf", "timezone",
)  # fmt: skip
"""Files of /etc that are seen: no accounts, no keys, no mounts, no settings of services."""

ETC_DIRECTORIES = (
    "alternatives", "ca-certificates/extracted", "crypto-policies", "fonts", "ld.so.conf.d",
    "pki/ca-trust/extracted", "pki/tls/certs", "ssl/certs",
)  # fmt: skip
"""Directories of /etc that are seen. Of certificates the public ones alone: the directories
/etc/ssl/private and /etc/pki/tls/private hold keys."""

ETC_OF_NETWORK = ("resolv.conf", "hosts")
"""Files of /etc that are seen where the network of the host is reachable."""

_NO_WORKSPACE = frozenset({"/", "/home", "/opt", "/root", "/srv", "/tmp", "/var"})
"""Directories that are no workspace: they hold what a sandbox hides."""

_KERNEL = ("/dev", "/etc", "/proc", "/run", "/sys", "/usr/bin", "/usr/lib", *_SYSTEM)

PREFIX = "bwrap: "
"""How each line begins with which `bwrap`, or the shell before it, says why it cannot start."""

_ADAPTED = {"HOME": HOME, "USER": "sandbox", "LOGNAME": "sandbox", "SHELL": "/bin/sh"}
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_THE_SHELL = frozenset(
    {
        "DIRSTACK", "EPOCHREALTIME", "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS", "HISTCMD",
        "HISTSIZE", "IFS", "LINENO", "MAIL", "MAILPATH", "OLDPWD", "OPTIND", "PPID", "PWD",
        "RANDOM", "SECONDS", "SHELLOPTS", "SHLVL", "SRANDOM", "UID", "_",
    }
)  # fmt: skip
"""Variables that one shell or another sets or checks itself, with all `BASH*`."""

REFUSED = "refused"
"""What the shell inside reports where it cannot start the command."""

_REPORT = 7
"""The descriptor on which the shell inside reports: `bwrap` keeps its own to itself."""

_FIND = f"""\
case $1 in */*) [ -x "$1" ] ;; *) command -v -- "$1" >/dev/null ;; esac ||
{{ echo "{PREFIX}execvp $1: not a program" >&2; %s exit 1; }}
"""
"""Says what `bwrap` itself would say of a program that is not there."""

_OUTER = """\
ulimit -c 0
{ %(enter)s; } 2>/dev/null || { echo "%(prefix)scannot enter the control group" >&2; exit 1; }
%(start)s%(opened)s%(wait)s"""


_OWN = {
    "passwd": f"sandbox:x:1000:1000:sandbox:{HOME}:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "sandbox:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
}


def workspace_refusal(root: str) -> str | None:
    """Return why the directory `root` cannot be a workspace here, None if it can."""
    home = os.path.realpath(os.path.expanduser("~"))
    if root in _NO_WORKSPACE or any(is_below(each, root) for each in (home, *_KERNEL)):
        return "it holds parts of the system or a home directory; use a directory further down"
    if any(is_below(root, each) for each in ("/proc", "/sys")):
        return "the kernel keeps no files there; use a directory on a disk"
    return None


def confinement(etc: str, *, network: bool) -> list[str]:
    """Return what is separate and what is seen besides the workspace.

    That is everything separate, but the network where it was asked for; the read-only system, with
    the Python that runs this program where the system lacks it; /proc, /dev, and the places in
    memory.

    Args:
        etc: Directory of the host that is seen as /etc; see `SystemFiles`.
        network: Whether the network of the host is reachable, and so its name service needed.
    """
    arguments = [
        *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup"),
        *(() if network else ("--unshare-net",)),
        *("--disable-userns", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
    ]
    for path in filter(os.path.lexists, _SYSTEM):
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        else:
            arguments += _read_only(path)
    arguments += ["--ro-bind", etc, "/etc"]
    for name in (*ETC_DIRECTORIES, *(ETC_OF_NETWORK if network else ())):
        if os.path.exists(f"/etc/{name}") and os.path.exists(os.path.join(etc, name)):
            arguments += _read_only(f"/etc/{name}")
    return [*arguments, *_kernel(), *_memory(), *interpreter()]


def interpreter() -> list[str]:
    """Return the Python that runs this program, with its packages, where the system lacks it."""
    wanted = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]
    shown: list[str] = [*_SYSTEM]
    arguments: list[str] = []
    for path in (*wanted, *map(os.path.realpath, wanted), *_hops()):
        if any(is_below(path, each) for each in shown) or workspace_refusal(path) is not None:
            continue
        shown.append(path)
        arguments += _read_only(path)
        # Its settings may hold a password for a package index.
        if os.path.exists(settings := os.path.join(path, "pip.conf")):
            arguments += ["--ro-bind", "/dev/null", settings]
    return arguments


def workspace_arguments(places: Sequence[str], visible: Iterable[str]) -> list[str]:
    """Return the writable directory under each of its paths, and what else is to be seen.

    Args:
        places: Absolute paths of the directory, the real one first.
        visible: Absolute paths outside of it, to read.
    """
    arguments: list[str] = []
    for place in dict.fromkeys(places):
        arguments += ["--bind", places[0], place]
    for path in visible:
        arguments += _read_only(path)
    return [*arguments, "--remount-ro", "/"]


def _read_only(path: str) -> list[str]:
    return ["--ro-bind", path, path]


def _kernel() -> list[str]:
    """Return /proc and /dev, both read-only.

    Root keeps owning the files of /proc in a user namespace, without any capability: it could
    write /proc/sys/kernel/core_pattern, a program that the kernel starts outside. What only root
    may read there is hidden for the same reason.
    """
    hidden: list[str] = []
    if os.geteuid() == 0:
        for entry in sorted(os.scandir("/proc"), key=lambda entry: entry.name):
            if entry.is_file(follow_symlinks=False) and not entry.stat().st_mode & 0o004:
                hidden += ["--ro-bind", "/dev/null", entry.path]
    return ["--proc", "/proc", *hidden, "--remount-ro", "/proc", "--dev", "/dev"]


def _memory() -> list[str]:
    sizes = dict.fromkeys(("/dev/shm", "/tmp", "/var/tmp"), SCRATCH_BYTES) | {"/run": RUN_BYTES}
    arguments: list[str] = []
    for path, n_bytes in sizes.items():
        arguments += ["--perms", "1777", "--size", str(n_bytes), "--tmpfs", path]
    arguments += ["--perms", "0700", "--size", str(SCRATCH_BYTES), "--tmpfs", HOME]
    return [*arguments, "--remount-ro", "/dev"]


def _hops() -> list[str]:
    """Return the links that lead to the interpreter, and where they lead."""
    if not sys.executable:
        return []
    executable = os.path.abspath(sys.executable)
    hops: list[str] = []
    while os.path.islink(executable) and executable not in hops:
        hops.append(executable)
        target = os.path.join(os.path.dirname(executable), os.readlink(executable))
        executable = os.path.normpath(target)
    return [*hops, executable]


class SystemFiles:
    """A private directory with these files; it ends with this object or with the program.

    Raises:
        OSError: It cannot be written.
    """

    def __init__(self) -> None:
        directory = new_directory("bwrap")
        self.remove: Callable[[], object] = weakref.finalize(
            self, shutil.rmtree, directory, ignore_errors=True
        )
        self.etc: str = os.path.join(directory, "etc")
        """Directory that is /etc inside. Copied: each mount would cost every command 0.2 ms."""

        _fill(self.etc)
        self.filter: str | None = None
        """File with the filter of system calls, None on a machine that has none."""

        program = program_for(platform.machine())
        if program is not None:
            self.filter = os.path.join(directory, "seccomp")
            _write(self.filter, program)


def _fill(etc: str) -> None:
    for name in ETC_DIRECTORIES:
        # Only a place for the directory of the host.
        if os.path.isdir(f"/etc/{name}"):
            os.makedirs(os.path.join(etc, name))
    for name in (*ETC_OF_NETWORK, *ETC_FILES):
        path = os.path.join(etc, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if name in ETC_OF_NETWORK:
            _write(path, b"")
        elif os.path.isfile(f"/etc/{name}"):
            shutil.copyfile(f"/etc/{name}", path)
    for name, text in _OWN.items():
        _write(os.path.join(etc, name), text.encode())


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


def rlimit_script(memory_bytes: int, processes: int) -> str:
    """Return the lines of a shell that limit each process, where there are no control groups."""
    # Of writable memory alone: what a program reserves without using it would count too. And not
    # each shell knows each letter.
    n = processes
    return f"ulimit -d {memory_bytes // 1024}\nulimit -u {n} 2>/dev/null || ulimit -p {n}\n"


@dataclass(frozen=True, slots=True)
class Sandboxing:
    """How the commands of one sandbox are run."""

    bwrap: str
    """Path of the program."""

    arguments: Sequence[str]
    """What is separate and what is seen; the workspace is not among it."""

    filter: str | None
    """File with the filter of system calls."""

    entrances: Sequence[str] = ()
    """Files into which a process writes 0 to become a member of a control group."""

    rlimits: str = ""
    """Lines of a shell that limit each process, where there are no control groups."""

    parent: Literal["process", "thread"] = "process"
    """What starts the commands. `bwrap` ends with its parent, and a thread that started it counts
    as one: a shell stays between them then."""

    reports: bool = False
    """Whether who starts the commands gives them `STATUS_NUMBER`, for `bwrap` to report on."""

    def apply(
        self, command: HostCommand, workspace: Sequence[str], *, directory: str
    ) -> HostCommand:
        """Return the command of the host that runs `command` inside.

        Args:
            command: What to run.
            workspace: Arguments of `bwrap` that show the workspace.
            directory: Directory of the host to start in; `command.cwd` is the one inside.
        """
        if not command.argv or not command.argv[0]:
            raise ValueError("the command is empty; name a program to run")
        outer, hidden = _split(_adapted(command.env))
        inner = list(command.argv)
        if hidden or self.rlimits:
            script = self.rlimits + _revealing(hidden, reports=self.reports)
            inner = ["/bin/sh", "-c", script, "sh", *inner]
        passing = ["--seccomp", "9"] if self.filter else []
        passing += ["--json-status-fd", str(STATUS_NUMBER)] if self.reports else []
        bwrap = [self.bwrap, *self.arguments, *workspace, *passing, "--chdir", command.cwd, "--"]
        outside = self._outer(has_shell=len(inner) > len(command.argv))
        argv = ["/bin/sh", "-c", outside, "sh", *bwrap, *inner]
        outer |= {f"_rath_hidden_{i}": value for i, value in enumerate(hidden.values())}
        return replace(command, argv=argv, cwd=directory, env=outer, reports=self.reports)

    def _outer(self, *, has_shell: bool) -> str:
        enter = " && ".join(f"echo 0 > {shlex.quote(entrance)}" for entrance in self.entrances)
        opened = f" 9<{shlex.quote(self.filter)}" if self.filter else ""
        if has_shell and self.reports:
            opened += f" {_REPORT}>&{STATUS_NUMBER}"
        start, wait = ('exec "$@"', "") if self.parent == "process" else ('"$@"', "\nexit $?")
        return _OUTER % {
            "enter": enter or ":",
            "prefix": PREFIX,
            "start": start,
            "opened": opened,
            "wait": wait,
        }


def _adapted(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with those of the host's user turned into those of the user inside."""
    variables = dict(env)
    for name, value in _ADAPTED.items():
        if variables.get(name, os.environ.get(name)) == os.environ.get(name):
            variables[name] = value
    if variables.get("TMPDIR") == os.environ.get("TMPDIR"):
        variables.pop("TMPDIR", None)
    return variables


def _split(env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that `bwrap` itself may see, and those that only the command may.

    `bwrap` and the shell before it run outside: a variable that somebody chose for the command,
    such as LD_PRELOAD, would rule them. On the command line everybody could read it.
    """
    if any(not name or "=" in name for name in env):
        raise ValueError("a variable has no name, or one that holds '='; give it another name")
    trusted = environment() | _ADAPTED
    outer = {name: value for name, value in env.items() if trusted.get(name) == value}
    return outer, {name: value for name, value in env.items() if name not in outer}


def _revealing(hidden: Mapping[str, str], *, reports: bool) -> str:
    """Return the lines of a shell that give hidden variables their names, and run the command."""
    lines: list[str] = []
    unset: list[str] = []
    others: list[str] = []
    for i, name in enumerate(hidden):
        if _is_plain(name):
            lines.append(f'export {name}="$_rath_hidden_{i}"; unset _rath_hidden_{i}\n')
        else:
            unset.append(f"-u _rath_hidden_{i}")
            others.append(f'{shlex.quote(name)}="$_rath_hidden_{i}"')
    # What no shell sets as it is, another program sets; for a moment its command line shows it.
    start = f'exec /usr/bin/env {" ".join([*unset, "--", *others])} "$@"' if others else 'exec "$@"'
    # Closed before anything of the user's runs: only the shell itself may report.
    tell, close = (f"echo {REFUSED} >&{_REPORT};", f" {_REPORT}>&-") if reports else ("", "")
    return "".join([*lines, _FIND % tell, start, close])


def _is_plain(name: str) -> bool:
    """Tell whether any shell sets a variable of that name to any value, and does no more."""
    is_special = name in _OF_THE_SHELL or name.startswith("BASH")
    return not is_special and _IDENTIFIER.fullmatch(name) is not None


_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_IF_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_FAIL = 0x00050000

_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in what the kernel shows to the filter; both machines below are little-endian."""

_X32 = 0x40000000
"""Numbers from here on are a second set of the same calls on x86-64."""

_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: what a network namespace contains. AF_VSOCK, for one,
reaches the host of a virtual machine from every namespace."""

_CREATES = os.O_CREAT | 0x400000  # the second is the bit of O_TMPFILE that means it alone
_SET_ID = 0o6000

_Program = list[tuple[int, int, int, int]]


@dataclass(frozen=True, slots=True)
class _Machine:
    """Numbers of system calls."""

    architecture: int
    socket: int
    denied: tuple[int, ...]
    """Keys of the kernel belong to the user, whatever the namespace: add_key, request_key, keyctl.
    Its log: syslog. Large interfaces that seldom serve a command and often had faults: bpf,
    perf_event_open, userfaultfd, io_uring_setup, io_uring_enter, io_uring_register. And openat2,
    whose mode no filter sees."""

    modes: dict[int, int]
    """Which argument of a call is the mode of a file: chmod, fchmod, fchmodat, fchmodat2, creat,
    mknod, mknodat."""

    openings: dict[int, int]
    """The same for open and openat, which have one where the argument before says so."""


_MACHINES = {
    "x86_64": _Machine(
        architecture=0xC000003E,
        socket=41,
        denied=(248, 249, 250, 103, 321, 298, 323, 425, 426, 427, 437),
        modes={90: 1, 91: 1, 268: 2, 452: 2, 85: 1, 133: 1, 259: 2},
        openings={2: 2, 257: 3},
    ),
    "aarch64": _Machine(
        architecture=0xC00000B7,
        socket=198,
        denied=(217, 218, 219, 116, 280, 241, 282, 425, 426, 427, 437),
        modes={52: 1, 53: 2, 452: 2, 33: 2},
        openings={56: 3},
    ),
}


def program_for(machine: str) -> bytes | None:
    """Return the filter for a machine as `platform.machine()` names it, None where none is known.

    A denied call fails as if the kernel did not know it, and a socket of another family as if it
    did not know the family. No file gets a set-user-id or set-group-id bit: inside it would mean
    nothing, outside it would be a program that runs as this user. A process in another
    instruction set of the same machine, such as 32-bit x86, is ended: its calls have other numbers.
    """
    known = _MACHINES.get(machine)
    if known is None:
        return None
    program: _Program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, known.architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_IF_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
    ]
    for number in known.denied:
        program += _on_call(number, [(_RETURN, 0, 0, _FAIL | errno.ENOSYS)])
    program += _on_call(known.socket, _checked_family())
    for number, mode in known.modes.items():
        program += _on_call(number, _checked_mode(mode))
    for number, mode in known.openings.items():
        skipped = [(_LOAD, 0, 0, _argument(mode - 1)), (_IF_ANY_BIT, 1, 0, _CREATES)]
        program += _on_call(number, [*skipped, (_RETURN, 0, 0, _ALLOW), *_checked_mode(mode)])
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def _on_call(number: int, body: _Program) -> _Program:
    """Run `body`, which returns, for one system call; its number is loaded and stays so."""
    return [(_IF_EQUAL, 0, len(body), number), *body]


def _checked_family() -> _Program:
    n = len(_FAMILIES)
    checks = [(_IF_EQUAL, n - i, 0, family) for i, family in enumerate(_FAMILIES)]
    return [
        (_LOAD, 0, 0, _argument(0)),
        *checks,
        (_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _checked_mode(index: int) -> _Program:
    return [
        (_LOAD, 0, 0, _argument(index)),
        (_IF_ANY_BIT, 0, 1, _SET_ID),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _argument(index: int) -> int:
    """Return the offset of the lower half of an argument."""
    return _ARGUMENTS + 8 * index
