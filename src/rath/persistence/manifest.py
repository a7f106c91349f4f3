"""The manifest of a home directory, under its documented names."""

from __future__ import annotations

from rath.config.manifest import (
    LAYOUT_VERSION,
    MANIFEST_FILENAME,
    ManifestVersionError,
    check_manifest,
    ensure_manifest,
    plane_schema_versions,
    read_manifest,
)

__all__ = [
    "LAYOUT_VERSION",
    "MANIFEST_FILENAME",
    "ManifestVersionError",
    "check_manifest",
    "ensure_manifest",
    "plane_schema_versions",
    "read_manifest",
]
