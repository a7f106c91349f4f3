"""Migrations of session files, under their documented names."""

from __future__ import annotations

from rath.session.log.migrations import (
    CURRENT_SCHEMA_VERSION,
    register_chunk_migration,
    register_header_migration,
)

__all__ = ["CURRENT_SCHEMA_VERSION", "register_chunk_migration", "register_header_migration"]
