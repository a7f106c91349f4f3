"""The `local` backend: tools run as processes of this host, in a directory of it."""

from __future__ import annotations

import os

from rath.backend.capabilities import IsolationLevel
from rath.backend.host.backend import HostBackend
from rath.backend.host.process import INHERITED, HostCommand
from rath.backend.host.sandbox import HostSandbox

__all__ = ["INHERITED", "LocalBackend"]


class LocalBackend(HostBackend):
    """Runs tools on this host, as the user that runs this program.

    File operations and the `cwd` of commands stay inside the workspace, whatever `..` and links
    say. **A command or a piece of code is not confined**: it can read, write and reach whatever
    this user can. Use a backend with stronger isolation for code that you do not trust.

    - The workspace is `spec.working_dir`, made if missing and never removed, or a new directory
      `rath-local-*` that is removed on closing.
    - Commands see a few variables of this process (`INHERITED`), then `spec.env`, then their own
      `env`. Their input is empty unless given. They end after 120 s unless they say otherwise.
    - A command is over when its process has ended; what it left running in its process group is
      killed then, after 0.2 s at most. A server that is started with `setsid server &` lives on,
      until the sandbox is closed or this process ends, by whatever means.
    - On timeout and on cancellation everything that a command started is ended, on Linux also
      what left its process group.
    - A result holds the first and the last 512 KiB of stdout and stderr; the rest can be read.
    - One read returns at most 8 MiB; longer files are read in parts.
    - Code may be Python, and Bash and JavaScript where they are installed.
    """

    name = "local"
    isolation = IsolationLevel.PROCESS

    @classmethod
    def is_available(cls) -> bool:
        """Tell whether this is a POSIX system: elsewhere its promises cannot be kept."""
        return os.name == "posix"

    def confined(self, sandbox: HostSandbox, command: HostCommand) -> HostCommand:
        return command
