"""The upper directory of an overlay tells all that was changed, as a full look would."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings

from rath._core.blobs import Blob
from rath.backend import (
    BackendSandboxSpec,
    BackendToolCommandRun,
    BackendToolFilesWrite,
    FileEffect,
    observe_effects,
)
from rath.backend.frozen import Seed
from rath.backend.host.compare import Difference, compare
from rath.backend.host.layer_directory import LayerDirectory
from rath.backend.host.overlay import OverlayLayer, overlay_tools
from rath.backend.host.scan import MAX_DEPTH, scan
from rath.backend.host.upper import NotPlain, OverlaySource, effects_from_upper
from rath.backend.local import LocalBackend
from rath.backend.manifest import EffectPolicy, FileState, Manifest
from tests.support.shell_scripts import changed, read_tree, scripts, told, undone

POLICY = EffectPolicy()


@contextmanager
def mounted(line: str) -> Generator[tuple[LayerDirectory, OverlayLayer]]:
    """An overlay over what a script made."""
    below, above = LayerDirectory(), LayerDirectory()
    tools = overlay_tools(above)
    if tools is None:
        pytest.skip("no overlay can be mounted here")
    try:
        os.mkdir(below.files)
        shell(line, below.files)
        layer = OverlayLayer(above, below, None, tools)
        try:
            yield below, layer
        finally:
            layer.close()
    finally:
        above.remove()
        below.remove()


def shell(line: str, cwd: str) -> None:
    subprocess.run(["/bin/sh", "-c", line], cwd=cwd, check=True)


def effects(below: LayerDirectory, layer: OverlayLayer) -> list[FileEffect]:
    namespace = layer.changes().namespace
    found = effects_from_upper(layer.upper, below.files, namespace=namespace)
    assert found.gaps == []
    return found.effects


@settings(max_examples=25, deadline=None)
@given(first=scripts(max_size=8), then=scripts(max_size=8))
def test_effects_from_the_upper_directory_undone_give_the_lower_one(first: str, then: str) -> None:
    with mounted(first) as (below, layer):
        before = read_tree(Path(below.files))
        shell(then, layer.door)
        after = read_tree(Path(layer.door))
        found = effects(below, layer)
    assert undone(after, found) == before
    assert told(found) == changed(before, after)


@settings(max_examples=25, deadline=None)
@given(first=scripts(max_size=8), then=scripts(max_size=8))
def test_looking_at_both_directories_gives_what_the_merged_one_holds(first: str, then: str) -> None:
    with mounted(first) as (_, layer):
        source = layer.changes()
        source(POLICY, known={}, keep=None)
        shell(then, layer.door)
        snapshot = source(POLICY, known={}, keep=None)
        source.read_all(POLICY, keep=None)
        assert snapshot.manifest() == whole(layer.door)


def whole(root: str) -> Manifest | None:
    return scan(root, EffectPolicy()).manifest()


@pytest.fixture
def lower(tmp_path: Path) -> Path:
    path = tmp_path / "lower"
    (path / "d").mkdir(parents=True)
    (path / "d" / "a").write_text("below")
    (path / "b").write_text("below")
    return path


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    path = tmp_path / "upper"
    (path / "d").mkdir(parents=True)
    return path


def mark(path: Path, name: str, value: bytes) -> None:
    """Put a mark on a file that the kernel would put there for a user's own overlay."""
    try:
        os.setxattr(path, f"user.overlay.{name}", value)
    except OSError:
        pytest.skip("this file system keeps no attributes of the user")


def kinds(difference: Difference) -> list[tuple[str, str]]:
    return [(effect.path, effect.kind) for effect in difference.effects]


def test_an_opaque_directory_hides_what_is_below(lower: Path, upper: Path) -> None:
    mark(upper / "d", "opaque", b"y")
    (upper / "d" / "new").write_text("above")
    found = effects_from_upper(str(upper), str(lower), namespace="user")
    assert kinds(found) == [("d/a", "deleted"), ("d/new", "created")]


def test_marks_of_the_other_namespace_are_not_believed(lower: Path, upper: Path) -> None:
    mark(upper / "d", "opaque", b"y")
    assert kinds(effects_from_upper(str(upper), str(lower), namespace="trusted")) == []


def test_a_directory_in_the_place_of_a_file_removes_it(lower: Path, upper: Path) -> None:
    (upper / "b").mkdir()
    assert kinds(effects_from_upper(str(upper), str(lower))) == [("b", "deleted")]


def test_a_file_in_the_place_of_a_directory_removes_it(lower: Path, upper: Path) -> None:
    (upper / "d").rmdir()
    (upper / "d").write_text("a file")
    found = effects_from_upper(str(upper), str(lower))
    assert kinds(found) == [("d", "created"), ("d/a", "deleted")]


@pytest.mark.parametrize(
    ("name", "value"), [("redirect", b"/d"), ("opaque", b"x")], ids=["redirect", "other-whiteouts"]
)
def test_what_only_the_kernel_resolves_is_refused(
    lower: Path, upper: Path, name: str, value: bytes
) -> None:
    mark(upper / "d", name, value)
    with pytest.raises(NotPlain):
        effects_from_upper(str(upper), str(lower), namespace="user")


def test_a_file_of_metadata_only_is_refused(lower: Path, upper: Path) -> None:
    (upper / "b").write_text("")
    mark(upper / "b", "metacopy", b"")
    with pytest.raises(NotPlain):
        effects_from_upper(str(upper), str(lower), namespace="user")


def test_the_merged_files_are_looked_at_when_the_upper_ones_are_not_plain(
    lower: Path, upper: Path, tmp_path: Path
) -> None:
    merged = tmp_path / "merged"
    shutil.copytree(lower, merged)
    source = OverlaySource(str(lower), str(upper), str(merged), "user")
    before = source(POLICY, known={}, keep=None)
    mark(upper / "d", "redirect", b"/d")
    (merged / "b").write_text("above")
    after = source(POLICY, known={}, keep=None)
    found = compare(before, after, {}, to_blob=blob, attribution="window")
    assert (kinds(found), found.gaps) == ([("b", "changed")], [])


def blob(state: FileState) -> Blob:
    return Blob(state.digest, state.size)


def test_what_nobody_changed_is_not_read(lower: Path, upper: Path) -> None:
    (upper / "b").write_text("above")
    read: list[bytes] = []
    source = OverlaySource(str(lower), str(upper), str(lower), "trusted")
    source(POLICY, known={}, keep=lambda _, content: read.append(content))
    assert sorted(read) == [b"above", b"below"]


@pytest.mark.parametrize("max_files", [0, 1, 2])
def test_too_many_files_are_given_up(lower: Path, upper: Path, max_files: int) -> None:
    (upper / "c").write_text("above")
    source = OverlaySource(str(lower), str(upper), str(lower), "trusted")
    assert source(EffectPolicy(max_files=max_files), known={}, keep=None).is_too_large


def test_an_upper_directory_that_is_gone_changes_nothing(lower: Path, tmp_path: Path) -> None:
    assert kinds(effects_from_upper(str(tmp_path / "gone"), str(lower))) == []


def test_no_depth_ends_a_look(lower: Path, upper: Path) -> None:
    for tree in (lower, upper):
        deep(tree, 700)
    found = effects_from_upper(str(upper), str(lower))
    assert found.effects == []
    assert len(found.gaps) == 1
    assert f"more than {MAX_DEPTH} directories deep" in found.gaps[0]


def deep(directory: Path, n_levels: int) -> None:
    """Make directories in each other, with a file in the last one."""
    fd = os.open(directory, os.O_RDONLY)
    for _ in range(n_levels):
        os.mkdir("x", dir_fd=fd)
        below = os.open("x", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


def test_pipes_of_both_directories_are_seen(lower: Path, upper: Path) -> None:
    os.mkfifo(lower / "one")
    os.mkfifo(upper / "two")
    source = OverlaySource(str(lower), str(upper), str(lower), "trusted")
    assert set(source(POLICY, known={}, keep=None).others) == {"one", "two"}


def test_commands_in_a_fork_tell_their_effects(workspace: Path) -> None:
    (workspace / "a").write_text("before")
    backend = LocalBackend()
    parent = backend.open(BackendSandboxSpec(working_dir=str(workspace)))

    async def origin() -> Seed:
        return Seed(parent.freeze())

    with parent, backend.lazy(origin=origin) as child:
        first = child.workspace_digest()
        with observe_effects() as effects:
            child.dispatch(BackendToolCommandRun("echo after > a; echo new > b"))
            child.dispatch(BackendToolFilesWrite("b", "newer"))
        assert parent.workspace_digest() == first
        assert child.workspace_digest() != first
    assert [(each.path, each.kind, each.attribution) for each in effects] == [
        ("a", "changed", "window"),
        ("b", "created", "window"),
        ("b", "changed", "exact"),
    ]
    before = effects[0].before
    assert before is not None
    assert before.data == b"before"
