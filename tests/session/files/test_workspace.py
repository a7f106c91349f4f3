"""With which files a workspace begins."""

from __future__ import annotations

import stat
import threading

import pytest

from rath._async.lazy import Deferred
from rath._async.runtime import runtime
from rath.backend import BackendSandbox
from rath.backend.frozen import FrozenWorkspace, NewFile, Seed
from rath.errors import BackendError
from rath.session import Session
from rath.session.files.workspace import CopyOrigin, UndoOrigin
from rath.testing import tool_call
from tests.support.session_files import FilesBackend, changed, created, removed, tool_run
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import PATIENCE


class Tree(FrozenWorkspace):
    """One file."""

    async def amanifest(self) -> dict[str, object]:  # type: ignore[override]  # never asked
        return {}

    async def aread(self, path: str) -> bytes:
        if path != "a":
            raise FileNotFoundError(path)
        return b"1"

    def base_with(self, other: FrozenWorkspace) -> None:
        return None


TREE = Tree()
ORIGIN = CopyOrigin(Deferred.of(TREE), tool_run().id)


def seed(*changes: object) -> Seed:
    return runtime().run(UndoOrigin(ORIGIN, changes), label="an origin")  # type: ignore[arg-type]  # effects


def test_an_undo_seeds_what_was_there_before() -> None:
    gone = removed({"a/b": b"0"}, "a/b")
    assert seed(changed("a", b"0", b"1"), gone) == Seed(
        TREE, {"a": NewFile(b"0", stat.S_IFREG | 0o644), "a/b": NewFile(b"0", stat.S_IFREG | 0o644)}
    )
    assert seed(created("a", b"1")).changes == {"a": None}


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
