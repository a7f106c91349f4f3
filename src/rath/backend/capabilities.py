"""Capabilities of a backend, and its isolation from the host."""

from __future__ import annotations

from enum import Enum

from rath._core.dataclasses import dataclass


class IsolationLevel(str, Enum):
    """Kind of boundary between a sandbox and the host."""

    PROCESS = "process"
    """Nothing but a process of its own: code can do whatever the user can."""

    CONTAINER = "container"
    MICROVM = "microvm"
    VM = "vm"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a backend."""

    isolation: IsolationLevel
    supports_command: bool
    supports_filesystem: bool
    supports_code_interpreter: bool
    cold_start_ms_p50: int | None = None
    """Median time to open a sandbox, in milliseconds, where it is known."""

    max_sandboxes: int | None = None
    """How many may be open at once; None means no limit of the backend's own."""

    supports_workspace_copy: bool = False
    """Whether a workspace can be frozen and copied, as `fork(workspace="copy")` needs."""

    observes_effects: bool = False
    """Whether it tells which files an operation created, changed, deleted or renamed."""

    confines_commands: bool = False
    """Whether commands and code are kept inside: from files, processes and network outside."""
