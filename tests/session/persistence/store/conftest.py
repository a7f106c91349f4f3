"""A server of PostgreSQL for the tests of its store."""

from __future__ import annotations

from tests.support.postgres_server import postgres

__all__ = ["postgres"]
