"""A session that a server does not know any more."""

from __future__ import annotations

from rath.errors import MCPConnectionError

__all__ = ["SessionForgotten"]


class SessionForgotten(MCPConnectionError):
    """A server at an address has forgotten the session, so it did nothing: ask in a new one."""
