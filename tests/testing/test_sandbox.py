"""The workspaces of the sandbox in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from rath._async.runtime import runtime
from rath.backend import (
    BackendSandbox,
    BackendToolFilesEdit,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    FileContent,
    ToolExecutionFailure,
)
from rath.backend.changes import manifest_digest
from rath.backend.effects import FileEffect, observe_effects
from rath.backend.results import FileEditResult
from rath.backend.snapshots import FrozenWorkspace, NewFile, Seed
from rath.testing import FakeBackend

T = TypeVar("T")


def wait(make: Callable[[], Awaitable[T]]) -> T:
    async def done() -> T:
        return await make()

    return runtime().run(done, label="a test")


def put(sandbox: BackendSandbox, path: str, data: str) -> None:
    sandbox.dispatch(BackendToolFilesWrite(path, data))


def copy_of(seed: Seed) -> BackendSandbox:
    async def origin() -> Seed:
        return seed

    return FakeBackend().lazy(origin=origin).ensure_open()


def test_frozen_files_stay_as_they_are() -> None:
    with FakeBackend().open() as sandbox:
        put(sandbox, "a", "1")
        frozen = sandbox.freeze()
        put(sandbox, "a", "2")
        sandbox.native.remove("a")
    assert wait(lambda: frozen.aread("a")) == b"1"
    assert list(wait(frozen.amanifest)) == ["a"]
    with pytest.raises(FileNotFoundError, match="no file at 'b'"):
        wait(lambda: frozen.aread("b"))


def test_a_copy_begins_with_frozen_files_and_changes() -> None:
    with FakeBackend().open() as sandbox:
        for path in ("a", "b", "c"):
            put(sandbox, path, "1")
        frozen = sandbox.freeze()
    changes = {"a": NewFile(b"2", 0o100755), "b": None, "none": None}
    copy = copy_of(Seed(frozen, changes))
    assert copy.native.files == {"a": b"2", "c": b"1"}
    assert copy.native.mode("a") == 0o100755


def test_the_base_of_two_copies_is_what_both_began_with() -> None:
    with FakeBackend().open() as sandbox:
        first = sandbox.freeze()
        put(sandbox, "a", "1")
        second = sandbox.freeze()
    one, other = copy_of(Seed(first)), copy_of(Seed(second))
    assert one.freeze().base_with(other.freeze()) is first
    assert other.freeze().base_with(second) is second
    assert FakeBackend().lazy().freeze().base_with(first) is None


def test_a_copy_that_was_never_opened_can_be_frozen() -> None:
    with FakeBackend().open() as sandbox:
        put(sandbox, "a", "1")
        frozen = sandbox.freeze()

    async def origin() -> Seed:
        return Seed(frozen)

    unopened = FakeBackend().lazy(origin=origin)
    twice = unopened.freeze(), unopened.freeze()
    assert [wait(lambda each=each: each.aread("a")) for each in twice] == [b"1", b"1"]  # type: ignore[misc]  # bound at once
    assert twice[1].base_with(frozen) is frozen
    assert twice[0].base_with(frozen) is frozen


def test_equal_files_have_equal_digests() -> None:
    def digest(sandbox: BackendSandbox) -> str | None:
        return wait(sandbox.aworkspace_digest)

    one, other = FakeBackend().open(), FakeBackend().open()
    put(one, "a", "1")
    before = digest(other)
    put(other, "a", "1")
    assert digest(one) == digest(other) == manifest_digest(wait(one.freeze().amanifest))
    assert digest(one) != before


def test_files_of_another_backend_are_no_beginning() -> None:
    class Other(FrozenWorkspace):
        async def amanifest(self) -> dict[str, object]:  # type: ignore[override]  # never asked
            return {}

        async def aread(self, path: str) -> bytes:
            return b""

        def base_with(self, other: FrozenWorkspace) -> None:
            return None

    with pytest.raises(TypeError, match="begins with files that a FakeBackend froze"):
        copy_of(Seed(Other()))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (BackendToolFilesRead("a"), FileContent("1\n2\n3")),
        (BackendToolFilesRead("a", offset=1), FileContent("2\n3", None, 3)),
        (BackendToolFilesRead("a", offset=1, limit=1), FileContent("2\n", 2, 3)),
        (BackendToolFilesRead("a", limit=9), FileContent("1\n2\n3", None, 3)),
        (BackendToolFilesRead("a", "no such"), "decode_error"),
        (BackendToolFilesRead("a", offset=-1), "bad_range"),
        (BackendToolFilesRead("a", None), FileContent(b"1\n2\n3")),
        (BackendToolFilesRead("a", None, 2, 2), FileContent(b"2\n", 4, 5)),
    ],
)
def test_a_part_of_a_file_can_be_read(op: BackendToolFilesRead, expected: object) -> None:
    with FakeBackend().open() as sandbox:
        put(sandbox, "a", "1\n2\n3")
        result = sandbox.dispatch(op)
    assert expected == (result.kind if isinstance(result, ToolExecutionFailure) else result)


def test_an_edit_replaces_a_text_and_tells_its_effect() -> None:
    with FakeBackend().open() as sandbox, observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("a", "one two one\n", 0o755))
        effects.clear()
        result = sandbox.dispatch(BackendToolFilesEdit("a", "one", "1", replace_all=True))
        assert sandbox.native.mode("a") == 0o100755
    assert result == FileEditResult(2, "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one two one\n+1 two 1\n")
    (effect,) = effects
    assert isinstance(effect, FileEffect)
    assert (effect.kind, effect.before_mode, effect.after_mode) == ("changed", 0o100755, 0o100755)


@pytest.mark.parametrize("old", ["none", "one", ""])
def test_an_edit_that_does_not_fit_is_a_failure(old: str) -> None:
    with FakeBackend().open() as sandbox:
        put(sandbox, "a", "one one")
        result = sandbox.dispatch(BackendToolFilesEdit("a", old, "x"))
        assert isinstance(result, ToolExecutionFailure)
        assert sandbox.native.files == {"a": b"one one"}
