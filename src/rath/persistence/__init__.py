"""Housekeeping across planes: whole files, the layout of a home, and what may be deleted."""

from __future__ import annotations

from rath.persistence.atomic import atomic_write_json, atomic_write_text
from rath.persistence.gc import GCReport, gc
from rath.persistence.manifest import (
    LAYOUT_VERSION,
    ManifestVersionError,
    check_manifest,
    ensure_manifest,
)

__all__ = [
    "LAYOUT_VERSION",
    "GCReport",
    "ManifestVersionError",
    "atomic_write_json",
    "atomic_write_text",
    "check_manifest",
    "ensure_manifest",
    "gc",
]
