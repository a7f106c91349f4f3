"""Control groups: found where they are mounted, made with limits, removed when nobody is left."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rath.backend.host.cgroups import ControlGroup, ControlGroups, Hierarchy, find_hierarchies
from rath.backend.host.paths import new_name


def fake(tmp_path: Path, mounts: list[tuple[str, str, str, str]], own: str) -> list[Hierarchy]:
    """Return what is found for mounts of (root, directory below `tmp_path`, type, options)."""
    lines = [
        f"30 23 0:26 {root} {tmp_path}/{point} rw,nosuid - {kind} {kind} rw,{options}\n"
        for root, point, kind, options in mounts
    ]
    (tmp_path / "mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/sda rw\n" + "".join(lines))
    (tmp_path / "own").write_text(own)
    return list(find_hierarchies(str(tmp_path / "mountinfo"), str(tmp_path / "own")))


def make_group(path: Path, subtree: str | None = None) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.procs").touch()
    if subtree is not None:
        (path / "cgroup.subtree_control").write_text(subtree)


def test_each_controller_of_version_1_has_a_hierarchy(tmp_path: Path) -> None:
    make_group(tmp_path / "memory/mine")
    make_group(tmp_path / "pids")
    mounts = [
        ("/", "memory", "cgroup", "memory"),
        ("/", "pids", "cgroup", "pids"),
        ("/", "cpu", "cgroup", "cpu,cpuacct"),
    ]
    found = fake(tmp_path, mounts, "4:memory:/mine\n3:pids:/\n2:cpu,cpuacct:/\n0::/\n")
    assert found == [
        Hierarchy(f"{tmp_path}/memory/mine", ("memory",), 1),
        Hierarchy(f"{tmp_path}/pids", ("pids",), 1),
    ]


def test_a_mount_may_show_a_part_of_the_hierarchy(tmp_path: Path) -> None:
    make_group(tmp_path / "memory/inner")
    mounts = [("/box", "memory", "cgroup", "memory")]
    assert fake(tmp_path, mounts, "4:memory:/box/inner\n") == [
        Hierarchy(f"{tmp_path}/memory/inner", ("memory",), 1)
    ]


def test_in_version_2_the_nearest_group_with_limits_below_is_taken(tmp_path: Path) -> None:
    make_group(tmp_path / "all", "memory pids cpu")
    make_group(tmp_path / "all/user", "memory pids")
    make_group(tmp_path / "all/user/session", "")
    found = fake(tmp_path, [("/", "all", "cgroup2", "nsdelegate")], "0::/user/session\n")
    assert found == [Hierarchy(f"{tmp_path}/all/user", ("memory", "pids"), 2)]


def test_in_version_2_no_limits_anywhere_is_no_hierarchy(tmp_path: Path) -> None:
    make_group(tmp_path / "all", "cpu")
    make_group(tmp_path / "all/mine")
    assert fake(tmp_path, [("/", "all", "cgroup2", "rw")], "0::/mine\n") == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_hierarchy_that_is_closed_to_us_is_left_out(tmp_path: Path) -> None:
    make_group(tmp_path / "pids")
    (tmp_path / "pids").chmod(0o500)
    assert fake(tmp_path, [("/", "pids", "cgroup", "pids")], "3:pids:/\n") == []


def test_limits_of_version_1_count_swap_where_the_kernel_does(tmp_path: Path) -> None:
    groups = ControlGroups([Hierarchy(str(tmp_path), ("memory", "pids"), 1)])
    group = groups.make(1000, 7)
    (directory,) = map(Path, group.directories)
    assert {path.name: path.read_text() for path in directory.iterdir()} == {
        "memory.limit_in_bytes": "1000",
        "pids.max": "7",
    }


def test_limits_of_version_2_have_files_of_their_own(tmp_path: Path) -> None:
    group = ControlGroups([Hierarchy(str(tmp_path), ("memory", "pids"), 2)]).make(1000, 7)
    (directory,) = map(Path, group.directories)
    assert {path.name: path.read_text() for path in directory.iterdir()} == {
        "memory.max": "1000",
        "pids.max": "7",
    }


def test_a_group_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    hierarchies = [
        Hierarchy(f"{tmp_path}/one", (), 1),
        Hierarchy(f"{tmp_path}/missing", ("pids",), 1),
    ]
    with pytest.raises(FileNotFoundError):
        ControlGroups(hierarchies).make(1000, 7)
    assert os.listdir(tmp_path / "one") == []


def test_members_are_killed_when_the_group_is_removed(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as member:
        (tmp_path / "cgroup.procs").write_text(f"0\n{member.pid}\n")
        ControlGroup((str(tmp_path),)).remove()
        assert member.wait(50) == -9


def test_only_groups_of_dead_processes_are_pruned(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as dead:
        pass
    mine = new_name("bwrap")
    namespace = mine.split("-")[2]
    stale = f"rath-bwrap-{namespace}-{dead.pid}-1-abc"
    foreign = f"rath-bwrap-{int(namespace) + 1}-{dead.pid}-1-abc"
    for name in (mine, stale, foreign, "rath-bwrap-else", "other"):
        (tmp_path / name).mkdir()
    ControlGroups([Hierarchy(str(tmp_path), (), 1)]).prune()
    assert sorted(os.listdir(tmp_path)) == sorted([mine, foreign, "rath-bwrap-else", "other"])
