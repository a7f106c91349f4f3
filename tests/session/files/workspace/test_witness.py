"""Whether a record tells of all that happened to the files of a session."""

from __future__ import annotations

import pytest

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.backend.effects import FileEffect
from rath.session import Session
from rath.session.files.workspace import atells_all
from rath.testing import FakeSandbox
from tests.support.session_files import FilesBackend, created, placed, worked, write, writing


def tells_all(session: Session, *changes: FileEffect) -> bool:
    """Return whether `changes` are all that happened to the files of a session."""
    return runtime().run(lambda: atells_all(session.placement, changes), label="a test")


def changed_copy() -> Session:
    """Return a session in a copy, in which a file was written."""
    copy = placed({"x": "0"}).fork(workspace="copy")
    write(copy, {"a": "1"})
    return copy


def test_changes_that_lead_to_the_files_of_now_are_all() -> None:
    assert tells_all(changed_copy(), created("a", b"1"))


@pytest.mark.parametrize(
    "told", [[], [created("a", b"2")], [created("a", b"1"), created("b", b"")]]
)
def test_other_changes_are_not_all(told: list[FileEffect]) -> None:
    assert not tells_all(changed_copy(), *told)


def test_a_deletion_is_a_change_too() -> None:
    copy = placed({"x": "0"}).fork(workspace="copy")
    gone = FileEffect("x", "deleted", Blob.from_bytes(b"0"), None)
    assert not tells_all(copy, gone)
    assert tells_all(worked(copy).synchronize())


def test_what_cannot_be_found_out_is_believed() -> None:
    unknown = FileEffect("a", "created", None, Blob.from_bytes(b"2"))
    ignored = created("venv/a", b"2")
    assert tells_all(changed_copy(), unknown)
    assert tells_all(changed_copy(), ignored)
    assert tells_all(placed({"x": "0"}), created("a", b"1"))
    assert tells_all(changed_copy().close_sandbox(), created("b", b"1"))


def test_a_backend_without_digests_is_believed() -> None:
    class Blind(FilesBackend):
        async def aworkspace_digest(self, native: FakeSandbox) -> None:
            return None

    session = Session.from_user_message("go").bind_sandbox(Blind().lazy())
    assert tells_all(session.fork(workspace="copy"), created("b", b"1"))


def test_the_first_of_several_workspaces_counts() -> None:
    base = placed({"x": "0"})
    one = worked(base.fork(workspace="copy"), writing("a", "1"))
    two = worked(base.fork(workspace="copy"), writing("b", "2"))
    both = one.merge(two, files="three-way")
    for session in (both, both.fork(workspace="copy")):
        assert tells_all(session, created("a", b"1"), created("b", b"2"))
        assert not tells_all(session, created("b", b"2"))
