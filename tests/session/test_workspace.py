"""With which files a workspace begins."""

from __future__ import annotations

import stat

from rath._async.lazy import Deferred
from rath._async.runtime import runtime
from rath.backend.frozen import FrozenWorkspace, NewFile, Seed
from rath.session.workspace import CopyOrigin, UndoOrigin
from tests.support.session_files import changed, created, removed, tool_run


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
