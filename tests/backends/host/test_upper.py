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
from rath.backend.changes import EffectPolicy, FileState, Manifest, TreeDiff, diff
from rath.backend.host.layers import LayerDirectory
from rath.backend.host.overlay import (
    Namespace,
    OverlayLayer,
    OverlaySource,
    overlay_tools,
)
from rath.backend.host.scan import MAX_DEPTH, scan
from rath.backend.local import LocalBackend
from rath.backend.snapshots import Seed
from tests.support.scripts import changed, read_tree, scripts, told, undone

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
    found = upper_diff(layer.upper, below.files, layer.source().namespace)
    assert found.gaps == []
    return found.effects


def upper_diff(upper: str, lower: str, namespace: Namespace = "trusted") -> TreeDiff:
    """What the upper directory changes; the merged files are not looked at."""
    source = OverlaySource(lower, upper, "/nowhere", namespace)
    contents: dict[str, bytes] = {}
    before = source.below(POLICY)
    after = source(POLICY, known={}, keep=contents.__setitem__)

    def content(state: FileState) -> Blob:
        return Blob(state.digest, state.size, contents.get(state.digest))

    return diff(before, after, {}, to_blob=content, attribution="window")


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
        source = layer.source()
        source(POLICY, known={}, keep=None)
        shell(then, layer.door)
        state = source(POLICY, known={}, keep=None)
        source.read_all(POLICY, keep=None)
        assert state.manifest() == whole(layer.door)


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


def kinds(difference: TreeDiff) -> list[tuple[str, str]]:
    return [(effect.path, effect.kind) for effect in difference.effects]


def test_an_opaque_directory_hides_what_is_below(lower: Path, upper: Path) -> None:
    mark(upper / "d", "opaque", b"y")
    (upper / "d" / "new").write_text("above")
    found = upper_diff(str(upper), str(lower), "user")
    assert kinds(found) == [("d/a", "deleted"), ("d/new", "created")]


def test_marks_of_the_other_namespace_are_not_believed(lower: Path, upper: Path) -> None:
    mark(upper / "d", "opaque", b"y")
    assert kinds(upper_diff(str(upper), str(lower), "trusted")) == []


def test_a_directory_in_the_place_of_a_file_removes_it(lower: Path, upper: Path) -> None:
    (upper / "b").mkdir()
    assert kinds(upper_diff(str(upper), str(lower))) == [("b", "deleted")]


def test_a_file_in_the_place_of_a_directory_removes_it(lower: Path, upper: Path) -> None:
    (upper / "d").rmdir()
    (upper / "d").write_text("a file")
    found = upper_diff(str(upper), str(lower))
    assert kinds(found) == [("d", "created"), ("d/a", "deleted")]


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [("d", "redirect", b"/d"), ("d", "opaque", b"x"), ("b", "metacopy", b"")],
    ids=["redirect", "other whiteouts", "metadata only"],
)
def test_the_merged_files_are_looked_at_when_only_the_kernel_resolves_the_upper_ones(
    lower: Path, upper: Path, tmp_path: Path, path: str, name: str, value: bytes
) -> None:
    merged = tmp_path / "merged"
    shutil.copytree(lower, merged)
    source = OverlaySource(str(lower), str(upper), str(merged), "user")
    before = source(POLICY, known={}, keep=None)
    (upper / "b").write_text("")
    mark(upper / path, name, value)
    (merged / "b").write_text("above")
    after = source(POLICY, known={}, keep=None)
    found = diff(before, after, {}, to_blob=blob, attribution="window")
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
    assert kinds(upper_diff(str(tmp_path / "gone"), str(lower))) == []


def test_no_depth_ends_a_look(lower: Path, upper: Path) -> None:
    for tree in (lower, upper):
        deep(tree, 700)
    found = upper_diff(str(upper), str(lower))
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
