"""File tools stay inside the workspace, whatever path they are given."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rath.backend import (
    BackendTool,
    BackendToolCommandRun,
    BackendToolFilesEdit,
    BackendToolFilesExists,
    BackendToolFilesList,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    FileContent,
    FileEntries,
    FileWriteResult,
    ToolExecutionFailure,
)
from tests.support.attacked import CANARY, HOST_BACKENDS, Target, attacked, said


@pytest.fixture(params=HOST_BACKENDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    with attacked(request.param, tmp_path) as opened:
        yield opened


LEADING_OUT: dict[str, Callable[[Target], str]] = {
    "parent": lambda at: "../outside/secret.txt",
    "parent-below-a-directory": lambda at: "a/../../outside/secret.txt",
    "parent-of-the-root": lambda at: "../" * 40 + str(at.secret)[1:],
    "absolute": lambda at: str(at.secret),
    "absolute-through-the-root": lambda at: f"{at.workspace}/../outside/secret.txt",
    "double-slash": lambda at: f"/{at.secret}",
    "sibling-with-the-same-beginning": lambda at: f"{at.workspace}-sibling/secret.txt",
    "link-to-a-file": lambda at: linked(at, at.secret),
    "link-to-a-directory": lambda at: linked(at, at.outside) + "/secret.txt",
    "relative-link": lambda at: linked(at, Path("../outside")) + "/secret.txt",
    "link-to-the-root-of-all": lambda at: linked(at, Path("/")) + str(at.secret),
    "chain-of-links": lambda at: linked(at, Path(linked(at, at.secret))),
    "link-above-and-back-down": lambda at: linked(at, Path("..")) + "/outside/secret.txt",
    "link-and-parent": lambda at: linked(at, at.outside) + "/../outside/secret.txt",
    "proc-self-root": lambda at: f"/proc/self/root{at.secret}",
    "proc-self-cwd": lambda at: f"/proc/self/cwd/../../../../../../..{at.secret}",
    "link-to-proc-self-root": lambda at: linked(at, Path("/proc/self/root")) + str(at.secret),
    "proc-of-init": lambda at: f"/proc/1/root{at.secret}",
}


def linked(at: Target, to: Path) -> str:
    """Put a link into the workspace and return its name."""
    name = f"link{len(os.listdir(at.workspace))}"
    (at.workspace / name).symlink_to(to)
    return name


def outside_calls(path: str) -> list[BackendTool]:
    return [
        BackendToolFilesRead(path),
        BackendToolFilesRead(path, None, 0, 5),
        BackendToolFilesWrite(path, "overwritten"),
        BackendToolFilesWrite(path + ".new", "made"),
        BackendToolFilesEdit(path, CANARY, "edited"),
        BackendToolFilesList(os.path.dirname(path) or "."),
        BackendToolCommandRun("cat secret.txt", cwd=os.path.dirname(path)),
    ]


@pytest.mark.parametrize("path_of", LEADING_OUT.values(), ids=LEADING_OUT.keys())
def test_a_path_that_leads_out_is_refused(target: Target, path_of: Callable[[Target], str]) -> None:
    path = path_of(target)
    for call in outside_calls(path):
        assert CANARY not in said(target.run(call))
    assert isinstance(target.run(BackendToolFilesRead(path)), ToolExecutionFailure)
    assert target.run(BackendToolFilesExists(path)) is not True


OUTSIDE_LISTS = ["..", "/", "/proc", "/proc/self/fd", "~", "../outside"]


@pytest.mark.parametrize("path", OUTSIDE_LISTS)
def test_a_directory_outside_is_not_listed(target: Target, path: str) -> None:
    assert isinstance(target.run(BackendToolFilesList(path)), ToolExecutionFailure)


OUTSIDE_READS = [
    "/proc/self/environ", "/proc/self/mem", "/proc/self/maps", "/etc/shadow", "/etc/passwd",
    "/dev/zero", "/dev/stdin", "/dev/fd/0", "~/.bashrc", "$HOME/.bashrc", "file:///etc/passwd",
]  # fmt: skip


@pytest.mark.parametrize("path", OUTSIDE_READS)
def test_a_file_of_the_system_is_not_read(target: Target, path: str) -> None:
    assert isinstance(target.run(BackendToolFilesRead(path)), ToolExecutionFailure)


def test_a_dangling_link_makes_no_file_outside(target: Target) -> None:
    (target.workspace / "link").symlink_to(target.outside / "made.txt")
    target.run(BackendToolFilesWrite("link", "x"))
    assert not (target.outside / "made.txt").exists()


def test_a_link_to_a_directory_is_no_way_to_make_directories_outside(target: Target) -> None:
    (target.workspace / "link").symlink_to(target.outside)
    target.run(BackendToolFilesWrite("link/deep/er/a.txt", "x"))
    assert not (target.outside / "deep").exists()


def test_links_in_a_circle_end(target: Target) -> None:
    (target.workspace / "one").symlink_to("two")
    (target.workspace / "two").symlink_to("one")
    for call in outside_calls("one/a.txt"):
        assert isinstance(target.run(call), ToolExecutionFailure)


def test_a_long_chain_of_links_ends(target: Target) -> None:
    for number in range(60):
        (target.workspace / f"l{number}").symlink_to(f"l{number + 1}")
    assert isinstance(target.run(BackendToolFilesRead("l0")), ToolExecutionFailure)


def test_a_hard_link_is_never_written_through(target: Target) -> None:
    os.link(target.secret, target.workspace / "hard.txt")
    target.run(BackendToolFilesWrite("hard.txt", "overwritten"))
    target.run(BackendToolFilesEdit("hard.txt", "overwritten", "edited"))
    assert target.secret.read_text() == CANARY


@pytest.mark.parametrize(
    "name", ["a" * 300, "d/" * 3000 + "a", "a\0b", "", "\ud800", "a/" * 50 + "../" * 51],
    ids=["long-name", "long-path", "zero", "empty", "surrogate", "one-too-many"],
)  # fmt: skip
def test_a_name_that_cannot_be_is_a_failure_to_read(target: Target, name: str) -> None:
    for call in (BackendToolFilesWrite(name, "x"), BackendToolFilesRead(name)):
        assert isinstance(target.run(call), ToolExecutionFailure)


def test_a_name_with_odd_characters_is_a_name(target: Target) -> None:
    for name in ("a\nb", "-rf", "$(id)", "a;b", "*", "~", "ä €", " "):
        assert isinstance(target.run(BackendToolFilesWrite(name, name)), FileWriteResult)
        assert target.run(BackendToolFilesRead(name)) == FileContent(name)


def test_a_pipe_does_not_hang_a_reader_or_a_writer(target: Target) -> None:
    os.mkfifo(target.workspace / "pipe")
    assert isinstance(target.run(BackendToolFilesRead("pipe")), ToolExecutionFailure)
    target.run(BackendToolFilesWrite("pipe", "x"))
    assert stat.S_ISFIFO(os.lstat(target.workspace / "pipe").st_mode) or (
        target.run(BackendToolFilesRead("pipe")) == FileContent("x")
    )


def test_a_socket_is_not_read(target: Target) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(target.workspace)  # the address may be 107 characters long
        try:
            server.bind("socket")
        finally:
            os.chdir(here)
        assert isinstance(target.run(BackendToolFilesRead("socket")), ToolExecutionFailure)


def test_a_device_is_not_read(target: Target) -> None:
    try:
        os.mknod(target.workspace / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root may make a device")
    assert isinstance(target.run(BackendToolFilesRead("zero")), ToolExecutionFailure)


def test_no_file_gets_more_rights_than_permissions(target: Target) -> None:
    target.run(BackendToolFilesWrite("a.sh", "x", mode=0o6777))
    assert stat.S_IMODE(os.lstat(target.workspace / "a.sh").st_mode) & 0o7000 == 0


def test_a_huge_file_is_read_in_bounded_memory(target: Target) -> None:
    with (target.workspace / "huge").open("wb") as file:
        file.truncate(1 << 34)
    assert isinstance(target.run(BackendToolFilesRead("huge", None)), ToolExecutionFailure)
    part = target.run(BackendToolFilesRead("huge", None, 1 << 33, 4))
    assert isinstance(part, FileContent)
    assert part.data == bytes(4)


def test_a_listing_tells_nothing_of_where_its_links_lead(target: Target) -> None:
    (target.workspace / "link").symlink_to(target.outside)
    found = target.run(BackendToolFilesList("."))
    assert isinstance(found, FileEntries)
    assert [(entry.name, entry.is_dir) for entry in found.entries] == [("link", False)]


@pytest.mark.parametrize(
    "call",
    [BackendToolFilesRead("swap/secret.txt"), BackendToolFilesWrite("swap/made.txt", "x"),
     BackendToolFilesList("swap"), BackendToolFilesEdit("swap/secret.txt", CANARY, "edited")],
    ids=["read", "write", "list", "edit"],
)  # fmt: skip
def test_a_directory_swapped_for_a_link_in_the_middle_leads_nowhere(
    target: Target, call: BackendTool
) -> None:
    real, link, swap = (target.workspace / name for name in ("real", "link", "swap"))
    real.mkdir()
    (real / "secret.txt").write_text("inside")
    link.symlink_to(target.outside)
    real.rename(swap)
    is_over = threading.Event()

    def swap_on() -> None:
        while not is_over.is_set():
            swap.rename(real)
            put(link, swap)
            swap.rename(link)
            put(real, swap)

    def put(what: Path, at: Path) -> None:
        while True:
            try:
                what.rename(at)
            except OSError:
                # A writer has made the directory that was away.
                shutil.rmtree(at, ignore_errors=True)
            else:
                return

    swapping = threading.Thread(target=swap_on)
    swapping.start()
    try:
        shown = [said(target.run(call)) for _ in range(150)]
    finally:
        is_over.set()
        swapping.join()
    assert not any(CANARY in each for each in shown)
