"""Where paths of the caller lead inside a sandbox."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.backend.opensandbox.paths import OutsideWorkspace, inside, is_in_workspace, relative


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".", "/workspace"),
        ("./", "/workspace"),
        ("", "/workspace"),
        ("./x", "/workspace/x"),
        ("x", "/workspace/x"),
        ("a/../b", "/workspace/b"),
        ("/etc/hosts", "/etc/hosts"),
        ("/workspace/../etc", "/workspace/../etc"),
    ],
)
def test_a_path_is_kept_or_starts_at_the_workspace(path: str, expected: str) -> None:
    assert inside(path) == expected


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x", "../workspace2/x"])
def test_a_relative_path_does_not_lead_out(path: str) -> None:
    with pytest.raises(OutsideWorkspace, match="leads out of the workspace"):
        inside(path)


@given(st.lists(st.sampled_from(["a", "b", "..", ".", ""])).map("/".join))
def test_whatever_a_relative_path_is_it_stays_inside(path: str) -> None:
    if path.startswith("/"):
        return
    try:
        found = inside(path)
    except OutsideWorkspace:
        assert ".." in path
    else:
        assert is_in_workspace(found)
        assert posixpath.join("/workspace", relative(found)) in (found, f"{found}/.")


def test_a_path_elsewhere_stays_absolute() -> None:
    assert relative("/etc/hosts") == "/etc/hosts"
    assert not is_in_workspace("/workspace2")
