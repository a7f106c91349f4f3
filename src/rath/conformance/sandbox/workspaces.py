"""Workspaces of one's own: frozen, copied, independent."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rath._async.runtime import runtime
from rath.backend.abc import BackendSandbox
from rath.backend.snapshots import FrozenWorkspace, NewFile, Seed
from rath.backend.tool_types import BackendToolFilesExists
from rath.conformance.report import Unlike, expect
from rath.conformance.sandbox.subject import FILES, Check, exists, read, write

__all__ = ["CHECKS"]


def neither_sees_what_the_other_writes_later(sandbox: BackendSandbox) -> None:
    write(sandbox, "a.txt", "shared")
    with _copy(sandbox.freeze(), sandbox) as copy:
        expect(read(copy, "a.txt") == "shared", "the copy to begin with the files of the source")
        write(sandbox, "a.txt", "source")
        expect(read(copy, "a.txt") == "shared", "the copy not to see a write to the source")
        write(copy, "a.txt", "copy")
        write(copy, "new.txt", "x")
        expect(read(sandbox, "a.txt") == "source", "the source not to see a write to the copy")
        expect(not exists(sandbox, "new.txt"), "the source not to see a file of the copy")


def two_copies_are_independent(sandbox: BackendSandbox) -> None:
    write(sandbox, "a.txt", "shared")
    frozen = sandbox.freeze()
    with _copy(frozen, sandbox) as one, _copy(frozen, sandbox) as two:
        write(one, "a.txt", "one")
        expect(read(two, "a.txt") == "shared", "one copy not to see the other's write")
        write(two, "a.txt", "two")
        expect(read(one, "a.txt") == "one", "one copy not to see the other's write")


def a_copy_begins_with_the_changes_that_are_asked_for(sandbox: BackendSandbox) -> None:
    write(sandbox, "stays.txt", "x")
    write(sandbox, "goes.txt", "x")
    changes = {"goes.txt": None, "deep/new.txt": NewFile(b"new", 0o100644)}
    with _copy(sandbox.freeze(), sandbox, changes) as copy:
        expect(read(copy, "stays.txt") == "x", "what is not changed to be there")
        expect(read(copy, "deep/new.txt") == "new", "the new file to be there")
        expect(not exists(copy, "goes.txt"), "the removed file to be gone")
    expect(exists(sandbox, "goes.txt"), "the file to be there in the source")
    expect(not exists(sandbox, "deep/new.txt"), "the new file not to be in the source")


def a_copy_of_a_copy_knows_where_it_came_from(sandbox: BackendSandbox) -> None:
    write(sandbox, "a.txt", "x")
    with _copy(sandbox.freeze(), sandbox) as copy:
        write(copy, "a.txt", "copy")
        base = sandbox.freeze().base_with(copy.freeze())
        if base is None:
            raise Unlike("expected the files that both came from, got None")
        data = runtime().run(lambda: base.aread("a.txt"), label="reading what both came from")
        expect(data == b"x", f"the content that both came from, got {data!r}")


@contextmanager
def _copy(
    frozen: FrozenWorkspace,
    source: BackendSandbox,
    changes: dict[str, NewFile | None] | None = None,
) -> Generator[BackendSandbox]:
    async def origin() -> Seed:
        return Seed(frozen, changes or {})

    copy = source.backend.lazy(origin=origin)
    try:
        yield copy.ensure_open()
    finally:
        source.backend.close(copy)


_COPY = "Workspace copies"
_NEEDS = (*FILES, BackendToolFilesExists)

CHECKS = (
    Check(_COPY, neither_sees_what_the_other_writes_later, _NEEDS, "supports_workspace_copy"),
    Check(_COPY, two_copies_are_independent, _NEEDS, "supports_workspace_copy"),
    Check(
        _COPY, a_copy_begins_with_the_changes_that_are_asked_for, _NEEDS, "supports_workspace_copy"
    ),
    Check(_COPY, a_copy_of_a_copy_knows_where_it_came_from, _NEEDS, "supports_workspace_copy"),
)
