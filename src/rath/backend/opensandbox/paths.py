"""Where a path of the caller is inside a sandbox."""

from __future__ import annotations

import posixpath

from rath.backend.opensandbox.defaults import ROOT


class OutsideWorkspace(Exception):
    """A relative path leads out of the workspace."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path!r} leads out of the workspace {ROOT}; stay in it, or give an absolute path of "
            "the sandbox"
        )


def inside(path: str) -> str:
    """Return the absolute path of the sandbox that `path` means.

    An absolute path is kept as it is; another one starts at the workspace.

    Raises:
        OutsideWorkspace: A relative path leads out by `..`; links are not looked at.
    """
    if path.startswith("/"):
        return path
    joined = posixpath.normpath(posixpath.join(ROOT, path or "."))
    if not is_in_workspace(joined):
        raise OutsideWorkspace(path)
    return joined


def is_in_workspace(path: str) -> bool:
    """Tell whether an absolute path is the workspace or in it, by its names alone."""
    return f"{posixpath.normpath(path)}/".startswith(f"{ROOT}/")


def relative(path: str) -> str:
    """Return an absolute path of the workspace relative to it, any other one as it is."""
    if not is_in_workspace(path):
        return path
    return posixpath.relpath(path, ROOT)
