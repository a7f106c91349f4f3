"""A home of its own for each test, and a server of PostgreSQL for those of its store."""

from __future__ import annotations

from tests.session.persistence.conftest import home
from tests.support.postgres_server import postgres

__all__ = ["home", "postgres"]
