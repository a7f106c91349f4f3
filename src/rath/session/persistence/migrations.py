"""Older session files are brought to the current form while they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rath.errors import PersistenceError

__all__ = [
    "CURRENT_SCHEMA_VERSION",
    "ChunkMigration",
    "HeaderMigration",
    "register_chunk_migration",
    "register_header_migration",
    "upgrade_chunk",
    "upgrade_header",
]

CURRENT_SCHEMA_VERSION = 2
"""Version 1: header, rows and trailer. Version 2: also what happened, and checksums."""

HeaderMigration = Callable[[dict[str, Any]], dict[str, Any]]
"""Turns a header of one version into one of the next."""

ChunkMigration = Callable[[dict[str, Any]], dict[str, Any]]
"""Turns a chunk line of one version into one of the next."""

_NEW_IN_2 = frozenset({"rows", "entries", "given", "lineage", "provider", "sum"})


def _header_from_1(record: dict[str, Any]) -> dict[str, Any]:
    """Return a header of version 1, in which these members meant nothing."""
    return {name: value for name, value in record.items() if name not in _NEW_IN_2}


def _chunk_from_1(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "born"}


_headers: dict[int, HeaderMigration] = {1: _header_from_1}
_chunks: dict[int, ChunkMigration] = {1: _chunk_from_1}


def register_header_migration(from_version: int, fn: HeaderMigration) -> None:
    """Say how a header of `from_version` becomes one of the next version.

    Raises:
        ValueError: `from_version` is not below the current version.
    """
    _require_older(from_version)
    _headers[from_version] = fn


def register_chunk_migration(from_version: int, fn: ChunkMigration) -> None:
    """Say how a chunk line of `from_version` becomes one of the next version.

    Versions whose chunk lines did not change need none.

    Raises:
        ValueError: `from_version` is not below the current version.
    """
    _require_older(from_version)
    _chunks[from_version] = fn


def upgrade_header(record: dict[str, Any]) -> dict[str, Any]:
    """Return a header record in the current form.

    Raises:
        PersistenceError: It is newer than the current version, or a step on the way is missing.
    """
    version = record["schema_version"]
    if version > CURRENT_SCHEMA_VERSION:
        raise PersistenceError(
            f"schema version {version} is newer than CURRENT_SCHEMA_VERSION "
            f"({CURRENT_SCHEMA_VERSION}); upgrade openrath to read this file"
        )
    for step in range(version, CURRENT_SCHEMA_VERSION):
        if step not in _headers:
            raise PersistenceError(
                f"no header migration from schema version {step}; register one with "
                "register_header_migration"
            )
        record = {**_headers[step](record), "schema_version": step + 1}
    return record


def upgrade_chunk(record: dict[str, Any], *, header_version: int) -> dict[str, Any]:
    """Return a chunk record of a file whose header has `header_version` in the current form."""
    for step in range(header_version, CURRENT_SCHEMA_VERSION):
        if step in _chunks:
            record = _chunks[step](record)
    return record


def _require_older(from_version: int) -> None:
    if from_version >= CURRENT_SCHEMA_VERSION:
        raise ValueError(
            f"refusing to register a migration from schema version {from_version}: files of "
            f"version {CURRENT_SCHEMA_VERSION} are current, so only older ones are migrated"
        )
