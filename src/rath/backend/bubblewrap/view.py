"""What of this host a sandbox sees, as arguments of `bwrap`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

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

_WHOLE = frozenset({"/", "/home", "/opt", "/root", "/srv", "/tmp", "/var"})
"""Directories that are no workspace: they hold what a sandbox hides."""

_KERNEL = ("/dev", "/etc", "/proc", "/run", "/sys", "/usr/bin", "/usr/lib", *_SYSTEM)


def reason_against(root: str) -> str | None:
    """Return why the directory `root` cannot be a workspace here, None if it can."""
    home = os.path.realpath(os.path.expanduser("~"))
    if root in _WHOLE or any(is_below(each, root) for each in (home, *_KERNEL)):
        return "it holds parts of the system or a home directory; use a directory further down"
    if any(is_below(root, each) for each in ("/proc", "/sys")):
        return "the kernel keeps no files there; use a directory on a disk"
    return None


def namespaces(*, network: bool) -> list[str]:
    """Return what is separate: everything, but the network where it was asked for."""
    return [
        *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup"),
        *(() if network else ("--unshare-net",)),
        *("--disable-userns", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
    ]


def system(etc: str, *, network: bool) -> list[str]:
    """Return the read-only system, /proc, /dev, and the places in memory.

    Args:
        etc: Directory of the host that is seen as /etc; see `Provided`.
        network: Whether the network of the host is reachable, and so its name service needed.
    """
    arguments: list[str] = []
    for path in filter(os.path.lexists, _SYSTEM):
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        else:
            arguments += _shown(path)
    arguments += ["--ro-bind", etc, "/etc"]
    for name in (*ETC_DIRECTORIES, *(ETC_OF_NETWORK if network else ())):
        if os.path.exists(f"/etc/{name}") and os.path.exists(os.path.join(etc, name)):
            arguments += _shown(f"/etc/{name}")
    return [*arguments, *_kernel(), *_memory()]


def interpreter() -> list[str]:
    """Return the Python that runs this program, with its packages, where the system lacks it."""
    wanted = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]
    shown: list[str] = [*_SYSTEM]
    arguments: list[str] = []
    for path in (*wanted, *map(os.path.realpath, wanted), *_hops()):
        if any(is_below(path, each) for each in shown) or _is_too_much(path):
            continue
        shown.append(path)
        arguments += _shown(path)
        # Its settings may hold a password for a package index.
        if os.path.exists(settings := os.path.join(path, "pip.conf")):
            arguments += ["--ro-bind", "/dev/null", settings]
    return arguments


def workspace(places: Sequence[str], visible: Iterable[str]) -> list[str]:
    """Return the writable directory under each of its paths, and what else is to be seen.

    Args:
        places: Absolute paths of the directory, the real one first.
        visible: Absolute paths outside of it, to read.
    """
    arguments: list[str] = []
    for place in dict.fromkeys(places):
        arguments += ["--bind", places[0], place]
    for path in visible:
        arguments += _shown(path)
    return [*arguments, "--remount-ro", "/"]


def is_below(path: str, directory: str) -> bool:
    """Tell whether `path` is `directory` or something in it; both absolute and normal."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _shown(path: str) -> list[str]:
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


def _is_too_much(path: str) -> bool:
    """Tell whether to show `path` would show a home directory, or the whole system."""
    return reason_against(path) is not None
