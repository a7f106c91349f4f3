"""The servers that contracts are run against: of OpenSandbox, and of PostgreSQL."""

from __future__ import annotations

from tests.support.opensandbox_calls import opensandbox_server
from tests.support.postgres_server import postgres

__all__ = ["opensandbox_server", "postgres"]
