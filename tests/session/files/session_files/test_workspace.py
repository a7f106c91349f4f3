"""With which files a workspace begins, and whether a record tells of all that happened there."""

from __future__ import annotations

import threading

import pytest

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.backend import BackendSandbox
from rath.backend.effects import FileEffect
from rath.backend.snapshots import FrozenWorkspace
from rath.errors import BackendError
from rath.session import Session
from rath.session.files.session_files import atells_all
from rath.testing import tool_call
from tests.support.session_files import FilesBackend, created, placed, write
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import PATIENCE


class Broken(FilesBackend):
    """Raises when files are to be frozen."""

    error: BaseException

    def freeze(self, sandbox: BackendSandbox) -> FrozenWorkspace:
        raise self.error


@pytest.mark.parametrize("error", [KeyError("oh"), SystemExit(3)], ids=["error", "exit"])
def test_files_that_cannot_be_frozen_are_the_forks_failure(error: BaseException) -> None:
    backend, go_on = Broken(), threading.Event()
    backend.error = error
    parent = run(
        [tool_call("hold"), "done"],
        FunctionTool("hold", lambda *_: go_on.wait(PATIENCE)),
        user=Session.from_user_message("go").bind_sandbox(backend.lazy()),
    )
    fork = parent.fork(workspace="copy")
    go_on.set()
    with pytest.raises(BackendError, match=f"raised {type(error).__name__}"):
        fork.require_sandbox()
    with pytest.raises(BackendError, match="were not copied"):
        fork.text()
    assert parent.text() == "done"
    assert parent.require_sandbox().is_open


def tells_all(session: Session, *changes: FileEffect) -> bool:
    """Return whether `changes` are all that happened to the files of a session."""
    return runtime().run(lambda: atells_all(session.core.placement, changes), label="a test")


def changed_copy() -> Session:
    """Return a session in a copy, in which a file was written."""
    copy = placed({"x": "0"}).fork(workspace="copy")
    write(copy, {"a": "1"})
    return copy


def test_what_cannot_be_found_out_is_believed() -> None:
    unknown = FileEffect("a", "created", None, Blob.from_bytes(b"2"))
    ignored = created("venv/a", b"2")
    assert tells_all(changed_copy(), unknown)
    assert tells_all(changed_copy(), ignored)
    assert tells_all(placed({"x": "0"}), created("a", b"1"))
    assert tells_all(changed_copy().close_sandbox(), created("b", b"1"))
