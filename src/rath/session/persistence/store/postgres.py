"""Sessions in PostgreSQL; needs the extra `postgres`, which is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rath.errors import MissingExtra

if TYPE_CHECKING:
    from rath.session.log.postgres import PostgresStore

__all__ = ["postgres_store"]


def postgres_store(url: str) -> PostgresStore:
    """Return the store of a database; connects to it when it is used first.

    Args:
        url: As libpq takes it, such as `postgres://user@host:5432/database?sslmode=require`, and
            besides `schema=NAME`, the schema of the tables; by default `openrath`.

    Raises:
        MissingExtra: The driver is not installed.
        ValueError: It is no such URL.
    """
    try:
        from rath.session.log.postgres import PostgresStore
    except ImportError as exc:
        raise MissingExtra("postgres", "keeping sessions in PostgreSQL") from exc
    return PostgresStore(url)
