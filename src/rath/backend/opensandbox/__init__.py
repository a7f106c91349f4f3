"""The OpenSandbox backend: containers of a server, reached through its SDK."""

from __future__ import annotations

from rath.backend.opensandbox.backend import OpenSandboxBackend
from rath.backend.opensandbox.connection import resolve_opensandbox_domain, strict_workspace_bind
from rath.backend.opensandbox.sandbox import bind_workspace_volumes_from_spec

__all__ = [
    "OpenSandboxBackend",
    "bind_workspace_volumes_from_spec",
    "resolve_opensandbox_domain",
    "strict_workspace_bind",
]
