"""Bringing home what a session did to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rath.backend.effects import note_gap
from rath.errors import BackendError
from rath.session import Session
from rath.testing import tool_call
from tests.support.session_files import files_of, placed, running, worked, write, writing
from tests.support.sessions import FunctionTool
from tests.support.trees import laid_out

LARGE = "x" * ((1 << 20) + 1)


def large() -> Session:
    """Return a session that wrote a file of which no content is kept."""
    return worked(placed().fork(workspace="copy"), writing("big", LARGE), writing("a", "1"))


def test_what_was_not_kept_comes_from_the_open_sandbox(tmp_path: Path) -> None:
    done = large()
    assert done.files.apply_to(tmp_path) == ["a", "big"]
    assert laid_out(tmp_path) == files_of(done)


def test_without_the_sandbox_the_error_says_what_is_lost(tmp_path: Path) -> None:
    done = large().synchronize()
    done.close_sandbox()
    with pytest.raises(ValueError, match=r"the content of 'big' was not kept, since .* not open"):
        done.files.apply_to(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_somebody_else_wrote_since_is_not_taken_for_it(tmp_path: Path) -> None:
    done = large().synchronize()
    write(done, {"big": "something else"})
    with pytest.raises(ValueError, match="content of 'big' was not kept and in the workspace it"):
        done.files.apply_to(tmp_path, gaps="ignore")
    assert list(tmp_path.iterdir()) == []


def test_what_the_sandbox_does_not_have_any_more_is_an_error(tmp_path: Path) -> None:
    done = large().synchronize()
    done.require_sandbox().native.remove("big")
    with pytest.raises(BackendError, match="'big' was not kept and cannot be read"):
        done.files.apply_to(tmp_path, gaps="ignore")
    assert list(tmp_path.iterdir()) == []


def test_what_may_be_missing_is_not_brought_home_unasked(tmp_path: Path) -> None:
    def unseen(_: Session, __: Any) -> str:
        note_gap("nobody looked")
        return "ok"

    tool = FunctionTool("odd", unseen)
    turns = writing("a", "1"), tool_call("odd", {}, id="strange"), running("mv a b")
    done = worked(placed().fork(workspace="copy"), *turns, tools=[tool])
    with pytest.raises(ValueError, match=r"not all is known .*: odd \(strange\): nobody looked\. "):
        done.files.apply_to(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert done.files.apply_to(tmp_path, gaps="ignore") == ["b"]
    assert laid_out(tmp_path) == {"b": b"1"}
