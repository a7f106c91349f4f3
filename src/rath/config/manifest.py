"""`manifest.json`: which layout of files a home directory has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from rath._core.files import atomic_write_json, read_small_file
from rath.errors import ManifestVersionError

__all__ = [
    "LAYOUT_VERSION",
    "MANIFEST_FILENAME",
    "ManifestVersionError",
    "check_manifest",
    "ensure_manifest",
    "plane_schema_versions",
    "read_manifest",
]

LAYOUT_VERSION = 1
MANIFEST_FILENAME = "manifest.json"
_MAX_BYTES = 1_000_000
"""A manifest has about 100 bytes; a project may bring a file of any size under its name."""

_PLANES = {"config": 1, "backend": 1, "memory": 1}


def plane_schema_versions() -> dict[str, int]:
    """Return the version of the files that each plane writes."""
    return dict(_PLANES)


def read_manifest(root: Path) -> dict[str, Any] | None:
    """Return the manifest of a home directory, or None when it is absent or damaged."""
    try:
        payload: object = json.loads(
            read_small_file(root / MANIFEST_FILENAME, max_bytes=_MAX_BYTES)
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", payload) if isinstance(payload, dict) else None


def check_manifest(root: Path) -> None:
    """Refuse a home directory that a newer version of rath has laid out.

    Raises:
        ManifestVersionError: Its `layout_version` is above `LAYOUT_VERSION`.
    """
    version = (read_manifest(root) or {}).get("layout_version")
    if isinstance(version, int) and version > LAYOUT_VERSION:
        raise ManifestVersionError(
            f"{root / MANIFEST_FILENAME} has layout version {version}, this rath knows up to "
            f"{LAYOUT_VERSION}; upgrade openrath or name another directory in OPENRATH_HOME"
        )


def ensure_manifest(root: Path) -> dict[str, Any]:
    """Write the manifest of `root` where it is absent, damaged or older, and return it.

    Keys and planes that this version does not know are kept.

    Raises:
        ManifestVersionError: A newer version of rath has laid out `root`.
    """
    check_manifest(root)
    found = read_manifest(root) or {}
    planes = found.get("planes")
    others = cast("dict[str, Any]", planes) if isinstance(planes, dict) else {}
    manifest = {**found, "layout_version": LAYOUT_VERSION, "planes": {**others, **_PLANES}}
    if manifest != found:
        root.mkdir(parents=True, exist_ok=True)
        atomic_write_json(root / MANIFEST_FILENAME, manifest)
    return manifest
