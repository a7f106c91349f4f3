"""The system calls that nothing in a sandbox may make, as a program for the kernel.

A filter is a list of instructions of 8 bytes (code, steps to jump over if true, if false, operand)
that runs on every system call: https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass

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
