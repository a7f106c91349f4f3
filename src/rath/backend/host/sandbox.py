"""An open sandbox of this host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rath.backend.abc import BackendSandboxSpec
from rath.backend.host.guard import Guard
from rath.backend.host.keeper import Leftovers
from rath.backend.host.paths import Workspace
from rath.backend.host.tree import Watch


@dataclass(frozen=True, slots=True)
class HostSandbox:
    """An open sandbox: its workspace, and what it was opened with."""

    guard: Guard
    """Lets operations at the files of the workspace."""
    spec: BackendSandboxSpec = field(default_factory=BackendSandboxSpec)
    leftovers: Leftovers = field(default_factory=Leftovers, compare=False, repr=False)
    """What its commands left running in sessions of their own."""
    watch: Watch = field(default_factory=Watch, repr=False, compare=False)
    """What is known of the files, to tell what operations change."""

    @property
    def workspace(self) -> Workspace:
        """Where its files are; a workspace of its own may move when it is changed first."""
        return self.guard.workspace

    @property
    def handle(self) -> str:
        """The directory as it was given."""
        return self.workspace.handle

    @property
    def env(self) -> Mapping[str, str]:
        """The variables of its spec."""
        return self.spec.env or {}
