"""Copies of workspaces on a server: what they begin with, and that they are apart."""

from __future__ import annotations

import gc
import stat

import pytest

from rath.backend import (
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolFilesRead,
    FileContent,
    NewFile,
)
from rath.backend.changes import manifest_digest
from rath.backend.opensandbox import OpenSandboxBackend
from tests.support.opensandbox_copies import (
    FILE,
    content,
    lazy_copy,
    opened_copy,
    printed,
    read,
    settle,
    waited,
    write,
)
from tests.support.opensandbox_server import OpenSandboxServer

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_neither_side_sees_what_the_other_does_later(
    backend: OpenSandboxBackend, sandbox: BackendSandbox
) -> None:
    write(sandbox, "a.txt", "shared")
    with opened_copy(sandbox) as copy:
        printed(sandbox, "echo source > a.txt; echo x > of_source")
        assert printed(copy, "cat a.txt; ls") == "shareda.txt\n"
        printed(copy, "rm a.txt")
        assert read(sandbox, "a.txt") == "source\n"


def test_a_copy_says_what_it_began_with(sandbox: BackendSandbox) -> None:
    with opened_copy(sandbox) as copy:
        assert copy.describe().layer == "snapshot"
        assert copy.describe().sandbox_id != sandbox.handle
    assert sandbox.describe().layer is None


def test_a_copy_begins_with_the_changes_that_are_asked_for(sandbox: BackendSandbox) -> None:
    printed(sandbox, "mkdir -p gone-d there; echo x > gone-d/f; echo x > -gone; ln -s /etc out")
    changes = {
        "gone-d/f": None, "gone-d": NewFile(b"a file now", FILE), "-gone": None, "missing": None,
        "deep/it's new": NewFile(b"new\xff", stat.S_IFREG | 0o755),
        "deep/link": NewFile(b"it's new", stat.S_IFLNK | 0o777),
        "out": NewFile(b"no link any more", FILE), "empty": NewFile(b"", FILE),
    }  # fmt: skip
    with opened_copy(sandbox, changes) as copy:
        assert printed(copy, "ls -A; readlink deep/link; cat gone-d out") == (
            "deep\nempty\ngone-d\nout\nthere\nit's new\na file nowno link any more"
        )
        assert printed(copy, 'stat -c %a deep/link "deep/it\'s new" out') == "777\n755\n644\n"
        assert copy.dispatch(BackendToolFilesRead("deep/link", encoding=None)) == FileContent(
            b"new\xff"
        )
    assert printed(sandbox, "ls -A; cat ./-gone") == "-gone\ngone-d\nout\nthere\nx\n"


def test_a_copy_of_a_copy_of_a_copy(
    backend: OpenSandboxBackend, sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    write(sandbox, "a.txt", "1")
    with opened_copy(sandbox) as second:
        write(second, "a.txt", "2")
        with opened_copy(second) as third:
            write(third, "b.txt", "3")
            base = sandbox.freeze().base_with(third.freeze())
            assert base is not None
            assert content(base, "a.txt") == b"1"
            assert (read(second, "a.txt"), read(third, "a.txt")) == ("2", "2")
            base = second.freeze().base_with(third.freeze())
            assert base is not None
            assert content(base, "a.txt") == b"2"
            del base
    assert opensandbox_server.sandbox_ids == [sandbox.handle]


def test_a_copy_may_be_frozen_before_it_is_opened(
    backend: OpenSandboxBackend, sandbox: BackendSandbox
) -> None:
    printed(sandbox, "printf x > stays; printf x > goes")
    changes = {"goes": None, "new": NewFile(b"new", FILE)}
    unopened = lazy_copy(backend, sandbox.freeze(), changes)
    frozen = unopened.freeze()
    assert unopened.freeze() is frozen
    copy = lazy_copy(backend, frozen, {"more": NewFile(b"more", FILE)}).ensure_open()
    assert printed(copy, "ls") == "more\nnew\nstays\n"
    assert [content(frozen, path) for path in ("stays", "new")] == [b"x", b"new"]
    with pytest.raises(FileNotFoundError):
        content(frozen, "goes")
    assert sorted(waited(frozen.amanifest)) == ["new", "stays"]
    write(unopened, "new", "changed")
    now = unopened.freeze()
    assert now.base_with(copy.freeze()) is frozen
    assert manifest_digest(waited(frozen.amanifest)) != unopened.workspace_digest()
    for each in (copy, unopened):
        backend.close(each)


def test_what_was_never_opened_begins_as_its_image(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    source = backend.lazy(BackendSandboxSpec(image="python:3.11", entrypoint=["sleep", "inf"]))
    frozen = source.freeze()
    copy = lazy_copy(backend, frozen).ensure_open()
    assert (waited(frozen.amanifest), copy.describe().layer) == ({}, None)
    write(source, "a.txt", "x")
    write(copy, "b.txt", "x")
    assert source.freeze().base_with(copy.freeze()) is frozen
    assert {each.json()["image"]["uri"] for each in opensandbox_server.matching(
        "POST", "/v1/sandboxes")} == {"python:3.11"}  # fmt: skip
    for each in (copy, source):
        backend.close(each)


def test_nothing_is_left_on_the_server(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    source = backend.open()
    frozen = source.freeze()
    copy = lazy_copy(backend, frozen).ensure_open()
    write(source, "a.txt", "x")
    assert waited(frozen.amanifest) == {}
    assert len(opensandbox_server.sandbox_ids) == 3
    assert backend.sandbox_count() == 2
    backend.close(source)
    backend.close(copy)
    assert len(opensandbox_server.sandbox_ids) == 1
    del source, copy, frozen
    settle(opensandbox_server, 1)
    paths = [each.path for each in opensandbox_server.matching("DELETE", "/v1/*")]
    assert [path.split("/")[2] for path in paths] == ["sandboxes"] * 3 + ["snapshots"]


def test_a_snapshot_is_there_as_long_as_a_copy_of_it(
    backend: OpenSandboxBackend, sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    copy = lazy_copy(backend, sandbox.freeze()).ensure_open()
    gc.collect()
    backend.close(backend.open())
    assert opensandbox_server.matching("DELETE", "/v1/snapshots/*") == []
    backend.close(copy)
    del copy
    settle(opensandbox_server, 1)


def test_closing_the_source_keeps_what_somebody_holds(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    source = backend.open()
    write(source, "a.txt", "kept")
    frozen = source.freeze()
    backend.close(source)
    assert opensandbox_server.sandbox_ids == []
    assert content(frozen, "a.txt") == b"kept"
    copy = lazy_copy(backend, frozen).ensure_open()
    assert read(copy, "a.txt") == "kept"
    backend.close(copy)


def test_letting_go_of_the_source_keeps_what_somebody_holds(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    source = backend.open()
    write(source, "a.txt", "kept")
    frozen = source.freeze()
    again = backend.attach(backend.detach(source))
    write(again, "a.txt", "later")
    assert content(frozen, "a.txt") == b"kept"
    backend.close(again)


def test_two_handles_on_one_sandbox_have_the_same_files(
    backend: OpenSandboxBackend, sandbox: BackendSandbox
) -> None:
    write(sandbox, "a.txt", "before")
    other = backend.attach(sandbox.handle)
    frozen = sandbox.freeze()
    assert other.freeze() is frozen
    write(other, "a.txt", "after")
    assert content(frozen, "a.txt") == b"before"
    backend.detach(other)
