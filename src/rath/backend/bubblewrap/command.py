"""The command that runs a command in a sandbox: a shell, `bwrap`, perhaps a shell inside."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rath.backend.bubblewrap.view import HOME
from rath.backend.host.environment import environment
from rath.backend.host.process import STATUS_NUMBER, Command

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


@dataclass(frozen=True, slots=True)
class Rlimits:
    """Limits of each process, where there are no control groups."""

    memory_bytes: int
    processes: int

    def script(self) -> str:
        """Return the lines of a shell that set them; not each shell knows each letter."""
        # Of writable memory alone: what a program reserves without using it would count too.
        memory, n = self.memory_bytes // 1024, self.processes
        return f"ulimit -d {memory}\nulimit -u {n} 2>/dev/null || ulimit -p {n}\n"


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

    rlimits: Rlimits | None = None
    parent: Literal["process", "thread"] = "process"
    """What starts the commands. `bwrap` ends with its parent, and a thread that started it counts
    as one: a shell stays between them then."""

    reports: bool = False
    """Whether who starts the commands gives them `STATUS_NUMBER`, for `bwrap` to report on."""

    def apply(self, command: Command, workspace: Sequence[str], *, directory: str) -> Command:
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
        if hidden or self.rlimits is not None:
            script = self.rlimits.script() if self.rlimits else ""
            script += _revealing(hidden, reports=self.reports)
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
