"""The server of tests that store in PostgreSQL."""

from __future__ import annotations

from tests.support.postgres_server import postgres

__all__ = ["postgres"]
