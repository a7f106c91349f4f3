"""A server of OpenSandbox for the contract of its backend."""

from __future__ import annotations

from tests.support.opensandbox_server.fixtures import opensandbox_server

__all__ = ["opensandbox_server"]
