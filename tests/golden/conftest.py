"""A server of PostgreSQL for the part of the corpus that one has stored."""

from __future__ import annotations

from tests.support.postgres_server import postgres

__all__ = ["postgres"]
