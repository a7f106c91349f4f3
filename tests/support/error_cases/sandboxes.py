"""Errors around sandboxes and workspaces."""

from __future__ import annotations

import shutil
from unittest import mock
from uuid import uuid4

from rath.backend import register
from rath.backend.persistence import PersistentSandboxRegistry
from rath.session import Session
from rath.session.content import ToolFeedback
from rath.testing import tool_call
from tests.support.error_cases import ErrorCase, Machine, odd, user


def _run(machine: Machine, session: Session) -> str:
    """Let a model call a command in the sandbox of a session, and return what it reads of that."""
    out = machine.scripted(tool_call("run_shell_command", {"cmd": "ls"}), "Done.")(session)
    return next(
        row.content.body for row in out.chunk_table if isinstance(row.content, ToolFeedback)
    )


def _in_a_file(machine: Machine) -> object:
    return _run(machine, user().to("local", spec=str(machine.file("a.txt"))))


def _in_a_file_below(machine: Machine) -> object:
    machine.file("a.txt")
    return _run(machine, user().to("local", spec="a.txt/below"))


def _without_bwrap(machine: Machine) -> object:
    with mock.patch.object(shutil, "which", return_value=None):
        return _run(machine, user().to("bubblewrap"))


CASES = [
    ErrorCase(
        cause="A sandbox that does not exist.",
        cure="Correct the name.",
        meet=lambda m: user().to("lokal"),
    ),
    ErrorCase(
        cause="A session was placed on something that is none.",
        cure='Give a name such as "bubblewrap", or a provider.',
        meet=lambda m: user().to(odd(7)),
    ),
    ErrorCase(
        cause="The workspace is a file.",
        cure="Name a directory.",
        meet=_in_a_file,
    ),
    ErrorCase(
        cause="The workspace lies below a file.",
        cure="Name a directory.",
        meet=_in_a_file_below,
    ),
    ErrorCase(
        cause="bubblewrap is not installed.",
        cure="Install it (`apt install bubblewrap`), or take another sandbox.",
        meet=_without_bwrap,
    ),
    ErrorCase(
        cause="OpenSandbox without the address of its server.",
        cure="Set `OPEN_SANDBOX_DOMAIN`, or store it: `rath config set`.",
        meet=lambda m: _run(m, user().to("opensandbox")),
    ),
    ErrorCase(
        cause="A sandbox of the registry that is not there.",
        cure="Take one that `list_remote()` tells.",
        meet=lambda m: PersistentSandboxRegistry().reattach_remote(uuid4()),
    ),
    ErrorCase(
        cause="Something that is no backend was registered.",
        cure="Give a subclass of `rath.backend.Backend`.",
        meet=lambda m: register("mine")(odd(int)),
    ),
]
