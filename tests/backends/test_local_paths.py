"""Nothing outside the workspace is ever read or written by a file operation."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.backend import (
    BackendToolFilesList,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    FileContent,
    FileEntries,
    FileWriteResult,
    ToolExecutionFailure,
)
from rath.backend.file_tools import OutsideWorkspace
from rath.backend.host.files import run_host_tool
from rath.backend.host.paths import Workspace

SECRET = "outside"
NAMES = ["", ".", "..", "a", "c", "f", "l", "m", "n", "secret", "ws", "outside", "new"]

PLACES = ["l", "m", "a/l", "a/c/n"]
OUTSIDE = ["..", "../..", "../secret", "../outside", "ABOVE", "ABOVE/outside/f", "ABOVE/secret"]
INSIDE = ["f", "c", "m", "../f", "ROOT/a", "new", "ROOT/a/c/f"]
ENDS = ["", "/", "/f", "/secret", "/new", "/../secret", "/outside/f", "/a/f"]


def joined(start: str, names: list[str]) -> str:
    return start + "/".join(names)


# ROOT and ABOVE stand for directories that only the running test knows.
wild: st.SearchStrategy[str] = st.builds(
    joined,
    st.sampled_from(["", "ROOT/", "ABOVE/", "ABOVE/outside/"]),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=6),
)
targets: st.SearchStrategy[str] = st.sampled_from(OUTSIDE + INSIDE) | wild
links: st.SearchStrategy[dict[str, str]] = st.dictionaries(
    st.sampled_from(PLACES), targets, min_size=2, max_size=4
)
paths: st.SearchStrategy[str] = (
    st.sampled_from([*PLACES, "f", "a/../f", "ROOT/a/f"])
    | st.builds(str.__add__, st.sampled_from(PLACES), st.sampled_from(ENDS))
    | wild
)


def filled(target: str, above: str) -> str:
    return target.replace("ROOT", f"{above}/ws").replace("ABOVE", above)


@contextmanager
def world(links: dict[str, str]) -> Generator[str]:
    """A directory with a workspace `ws` and a place `outside` beside it, and links in `ws`."""
    with tempfile.TemporaryDirectory() as made:
        above = os.path.realpath(made)
        for directory in ("ws/a/c", "outside/a"):
            Path(above, directory).mkdir(parents=True)
        for path in ("secret", "outside/secret", "outside/f", "outside/a/f"):
            Path(above, path).write_text(SECRET)
        for path in ("ws/f", "ws/a/f", "ws/a/c/f"):
            Path(above, path).write_text("inside " + path)
        for path, target in links.items():
            Path(above, "ws", path).symlink_to(filled(target, above) or ".")
        yield above


def everything_outside(above: str) -> dict[str, str]:
    found = {path: path.read_text() for path in Path(above, "outside").rglob("*") if path.is_file()}
    found[Path(above, "secret")] = Path(above, "secret").read_text()
    names = [str(path) for path in Path(above).rglob("*") if not path.is_relative_to(f"{above}/ws")]
    return {**{str(path): text for path, text in found.items()}, "names": "\n".join(sorted(names))}


def is_inside(above: str, path: str) -> bool:
    real = os.path.realpath(os.path.join(above, "ws", path))
    return f"{real}/".startswith(f"{above}/ws/")


@given(links=links, path=paths)
def test_a_read_gives_a_file_inside_or_nothing(links: dict[str, str], path: str) -> None:
    with world(links) as above:
        asked = filled(path, above)
        result = run_host_tool(Workspace.at(f"{above}/ws"), BackendToolFilesRead(asked))
        read = result.data if isinstance(result, FileContent) else None
        assert read is None or (is_inside(above, asked) and read != SECRET)
        place = Path(above, "ws", asked)
        if is_inside(above, asked) and place.is_file():
            assert read == place.read_text()


@given(links=links, path=paths)
def test_a_write_changes_a_file_where_the_kernel_looks_and_nothing_outside(
    links: dict[str, str], path: str
) -> None:
    with world(links) as above:
        before, asked = everything_outside(above), filled(path, above)
        result = run_host_tool(Workspace.at(f"{above}/ws"), BackendToolFilesWrite(asked, "new"))
        assert everything_outside(above) == before
        # A slash behind a file, in the path or in a link, is overlooked.
        found = Path(os.path.realpath(Path(above, "ws", asked.rstrip("/."))))
        assert not isinstance(result, FileWriteResult) or found.read_text() == "new"


@given(links=links, path=paths)
def test_a_listing_and_a_cwd_stay_inside(links: dict[str, str], path: str) -> None:
    with world(links) as above:
        asked = filled(path, above)
        workspace = Workspace.at(f"{above}/ws")
        listed = run_host_tool(workspace, BackendToolFilesList(asked))
        assert not isinstance(listed, FileEntries) or is_inside(above, asked)
        try:
            cwd = workspace.directory(asked)
        except (OSError, OutsideWorkspace):
            return
        assert cwd == os.path.realpath(os.path.join(above, "ws", asked))
        assert is_inside(above, asked)


@pytest.fixture
def above(tmp_path: Path) -> Path:
    (tmp_path / "ws" / "sub").mkdir(parents=True)
    (tmp_path / "ws" / "sub" / "in.txt").write_text("inside")
    (tmp_path / "out.txt").write_text(SECRET)
    return tmp_path


def read(above: Path, path: str) -> object:
    return run_host_tool(Workspace.at(f"{above}/ws"), BackendToolFilesRead(path))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("../out.txt", id="parent"),
        pytest.param("sub/../../out.txt", id="parent of a child"),
        pytest.param("/etc/passwd", id="absolute"),
        pytest.param("/", id="root of the host"),
        pytest.param("//etc//passwd", id="doubled separators"),
        pytest.param("/proc/self/root/etc/passwd", id="proc"),
    ],
)
def test_a_path_that_leads_out_is_refused_by_name(above: Path, path: str) -> None:
    result = read(above, path)
    assert isinstance(result, ToolExecutionFailure)
    assert result.kind == "path_outside_workspace"
    assert repr(path) in result.message
    assert str(above / "ws") in result.message


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("sub/in.txt", id="relative"),
        pytest.param("./sub/./in.txt", id="dots"),
        pytest.param("sub/../sub/in.txt", id="parent inside"),
        pytest.param("../ws/sub/in.txt", id="out and in again"),
        pytest.param("{ws}/sub/in.txt", id="absolute inside"),
        pytest.param("{ws}/../ws/sub/in.txt", id="absolute, out and in again"),
        pytest.param("link/in.txt", id="relative link"),
        pytest.param("far/in.txt", id="absolute link"),
    ],
)
def test_a_path_that_ends_inside_is_fine(above: Path, path: str) -> None:
    (above / "ws" / "link").symlink_to("sub")
    (above / "ws" / "far").symlink_to(above / "ws" / "sub")
    assert read(above, path.format(ws=above / "ws")) == FileContent("inside")


def test_a_workspace_behind_a_link_takes_absolute_paths_in_both_forms(above: Path) -> None:
    (above / "alias").symlink_to("ws")
    workspace = Workspace.at(f"{above}/alias")
    for path in (f"{above}/alias/sub/in.txt", f"{above}/ws/sub/in.txt"):
        assert run_host_tool(workspace, BackendToolFilesRead(path)) == FileContent("inside")


def test_a_zero_character_in_a_path_is_a_failure(above: Path) -> None:
    result = read(above, "sub/\0.txt")
    assert isinstance(result, ToolExecutionFailure)
    assert result.kind == "os_error"


def test_no_descriptor_is_left_open(above: Path) -> None:
    for path in ("sub/in.txt", "../out.txt", "sub/missing/x", "sub"):
        read(above, path)
    before = set(os.listdir("/dev/fd"))
    for path in ("sub/in.txt", "../out.txt", "sub/missing/x", "sub"):
        read(above, path)
    assert set(os.listdir("/dev/fd")) == before
