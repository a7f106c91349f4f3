"""The manifest of a home directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rath.config.manifest import (
    ManifestVersionError,
    check_manifest,
    ensure_manifest,
    plane_schema_versions,
    read_manifest,
)

WRITTEN = {"layout_version": 1, "planes": {"config": 1, "backend": 1, "memory": 1}}


def test_new_directory_gets_the_documented_manifest(tmp_path: Path) -> None:
    root = tmp_path / "new"
    assert ensure_manifest(root) == WRITTEN
    assert json.loads((root / "manifest.json").read_text()) == WRITTEN
    assert plane_schema_versions() == WRITTEN["planes"]


def test_current_manifest_is_not_written_again(tmp_path: Path) -> None:
    ensure_manifest(tmp_path)
    before = (tmp_path / "manifest.json").stat()
    ensure_manifest(tmp_path)
    after = (tmp_path / "manifest.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_unknown_keys_and_planes_are_kept(tmp_path: Path) -> None:
    found = {"layout_version": 0, "planes": {"config": 0, "extra": 4}, "note": "x"}
    (tmp_path / "manifest.json").write_text(json.dumps(found))
    planes = {"config": 1, "backend": 1, "memory": 1, "extra": 4}
    assert ensure_manifest(tmp_path) == {"layout_version": 1, "planes": planes, "note": "x"}


@pytest.mark.parametrize("content", [None, "", "{", "[1]", b"\xff"], ids=repr)
def test_absent_or_damaged_manifest_reads_as_none_and_is_no_obstacle(
    tmp_path: Path, content: str | bytes | None
) -> None:
    if content is not None:
        data = content.encode() if isinstance(content, str) else content
        (tmp_path / "manifest.json").write_bytes(data)
    assert read_manifest(tmp_path) is None
    check_manifest(tmp_path)
    assert ensure_manifest(tmp_path) == WRITTEN


def test_newer_layout_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"layout_version": 2}')
    with pytest.raises(ManifestVersionError, match="layout version 2"):
        check_manifest(tmp_path)
    with pytest.raises(ManifestVersionError):
        ensure_manifest(tmp_path)
    assert read_manifest(tmp_path) == {"layout_version": 2}
