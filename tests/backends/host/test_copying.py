"""Copies of whole trees."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rath.backend.host.layers import MAX_DEPTH, CopyFailed, copy_tree
from rath.backend.host.paths import forget_temporary, new_temporary

NAMES = st.sampled_from(["a", "b.txt", "with space", "ümlaut", "-dash", ".hidden"])


@dataclass(frozen=True)
class File:
    data: bytes
    mode: int


@dataclass(frozen=True)
class Link:
    target: str


Tree = dict[str, "File | Link | Tree"]
FILES = st.builds(File, st.binary(max_size=100), st.sampled_from([0o600, 0o644, 0o755, 0o444]))
LINKS = st.builds(Link, st.sampled_from(["a", "../b.txt", "/etc/hostname", "nowhere"]))
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.dictionaries(NAMES, FILES | LINKS, max_size=4),
    lambda below: st.dictionaries(NAMES, FILES | LINKS | below, max_size=4),
    max_leaves=8,
)


def build(tree: Tree, at: Path) -> None:
    at.mkdir()
    for name, entry in tree.items():
        match entry:
            case File():
                (at / name).write_bytes(entry.data)
                (at / name).chmod(entry.mode)
            case Link():
                (at / name).symlink_to(entry.target)
            case _:
                build(entry, at / name)
    at.chmod(0o750)


def described(root: Path) -> dict[str, tuple[int, int, bytes]]:
    found: dict[str, tuple[int, int, bytes]] = {}
    for path in [root, *root.rglob("*")]:
        state = path.lstat()
        content = b""
        if stat.S_ISREG(state.st_mode):
            content = path.read_bytes()
        if stat.S_ISLNK(state.st_mode):
            content = os.fsencode(os.readlink(path))
        relative = str(path.relative_to(root))
        found[relative] = (state.st_mode, state.st_mtime_ns, content)
    return found


@given(tree=TREES)
@settings(max_examples=30)
def test_a_copy_has_the_same_files_modes_times_and_links(
    tmp_path_factory: pytest.TempPathFactory, tree: Tree
) -> None:
    above = tmp_path_factory.mktemp("copying")
    build(tree, above / "source")
    (above / "forks" / "one").mkdir(parents=True)
    before = described(above / "source")
    copy_tree(str(above / "source"), str(above / "forks" / "one" / "files"))
    assert described(above / "forks" / "one" / "files") == before == described(above / "source")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "forks" / "one").mkdir(parents=True)
    return tmp_path / "forks" / "one" / "files"


def test_a_write_to_the_copy_leaves_the_source(source: Path, target: Path) -> None:
    (source / "file").write_bytes(b"old")
    os.link(source / "file", source / "second name")
    copy_tree(str(source), str(target))
    (target / "file").write_bytes(b"new")
    assert (source / "file").read_bytes() == b"old"
    assert (target / "second name").read_bytes() == b"old"


def test_pipes_are_left_out(source: Path, target: Path) -> None:
    os.mkfifo(source / "pipe")
    (source / "file").write_bytes(b"")
    copy_tree(str(source), str(target))
    assert os.listdir(target) == ["file"]


def test_a_link_is_not_followed(source: Path, target: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"x")
    (source / "link").symlink_to(outside)
    copy_tree(str(source), str(target))
    assert (target / "link").is_symlink()


def test_a_large_file_is_copied_whole(source: Path, target: Path) -> None:
    data = os.urandom((2 << 20) + 17)
    (source / "large").write_bytes(data)
    copy_tree(str(source), str(target))
    assert (target / "large").read_bytes() == data


def test_holes_of_a_file_stay_holes(source: Path, target: Path) -> None:
    with open(source / "sparse", "wb") as file:
        file.seek(64 << 20)
        file.write(b"end")
        file.truncate(1 << 30)
    copy_tree(str(source), str(target))
    state = (target / "sparse").stat()
    assert state.st_size == 1 << 30
    assert state.st_blocks * 512 < 1 << 20
    with open(target / "sparse", "rb") as file:
        file.seek(64 << 20)
        assert file.read(4) == b"end\0"


def test_a_file_of_nothing_but_a_hole_is_copied(source: Path, target: Path) -> None:
    with open(source / "sparse", "wb") as file:
        file.truncate(1 << 30)
    copy_tree(str(source), str(target))
    assert (target / "sparse").stat().st_size == 1 << 30


def test_the_directory_of_the_copies_is_left_out(source: Path) -> None:
    forks = source / ".openrath" / "forks"
    (forks / "one").mkdir(parents=True)
    (source / "file").write_bytes(b"x")
    copy_tree(str(source), str(forks / "one" / "files"))
    assert sorted(os.listdir(forks / "one" / "files")) == [".openrath", "file"]
    assert os.listdir(forks / "one" / "files" / ".openrath") == []


def test_what_is_nested_too_deep_cannot_be_copied(source: Path, target: Path) -> None:
    deep = source.joinpath(*["d"] * (MAX_DEPTH + 1))
    deep.mkdir(parents=True)
    with pytest.raises(CopyFailed, match="nested over 256 deep"):
        copy_tree(str(source), str(target))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_cannot_be_read_is_named(source: Path, target: Path) -> None:
    (source / "below").mkdir()
    (source / "below" / "closed").write_bytes(b"x")
    (source / "below" / "closed").chmod(0)
    with pytest.raises(CopyFailed, match=r"'below/closed' cannot be copied: Permission denied"):
        copy_tree(str(source), str(target))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_owners_are_kept(source: Path, target: Path) -> None:
    (source / "file").write_bytes(b"x")
    (source / "link").symlink_to("file")
    for name in ("file", "link"):
        os.chown(source / name, 65534, 65534, follow_symlinks=False)
    copy_tree(str(source), str(target))
    assert {(target / name).lstat().st_uid for name in ("file", "link")} == {65534}
    assert target.stat().st_uid == 0


def test_a_missing_place_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(CopyFailed, match="No such file"):
        copy_tree(str(source), str(tmp_path / "missing" / "one" / "files"))


def test_what_a_file_tool_is_just_writing_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    temporary = new_temporary(".writing", ".tmp")
    (tmp_path / "source" / temporary).touch()
    copy_tree(str(tmp_path / "source"), str(tmp_path / "target"))
    forget_temporary(temporary)
    assert os.listdir(tmp_path / "target") == []
