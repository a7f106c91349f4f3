"""Random shell scripts on a small tree, and what its effects must tell about it."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from rath._core.blobs import Blob
from rath.backend.effects import FileEffect

Tree = dict[str, tuple[int, bytes]]
"""Mode and content by path."""

_PATHS = ["a", "b", "d/a", "d/b", "d/e/a", "x y", "ü"]
_VERBS = ["write", "append", "remove", "move", "copy", "chmod", "touch", "link", "hard", "mkdir"]


@dataclass(frozen=True)
class Step:
    """One line of a script that never fails."""

    verb: str
    one: str
    other: str

    def line(self) -> str:
        one, other = shlex.quote(self.one), shlex.quote(self.other)
        return {
            "write": f"printf %s {other} > {one}",
            "append": f"printf %s {other} >> {one}",
            "remove": f"rm -rf {one}",
            "move": f"mv -f -T {one} {other}",
            "copy": f"cp -r -T {one} {other}",
            "chmod": f"chmod 600 {one}",
            "touch": f"touch {one}",
            "link": f"ln -s -f -T {other} {one}",
            "hard": f"ln -f -T {one} {other}",
            "mkdir": f"mkdir -p {one}",
        }[self.verb]


_steps = st.builds(
    Step,
    st.sampled_from(_VERBS),
    st.sampled_from([*_PATHS, "d", "d/e"]),
    st.sampled_from([*_PATHS, "d", "f"]),
)


def scripts(*, max_size: int = 6) -> st.SearchStrategy[str]:
    """Scripts that write, remove, move, copy, link and so on; they succeed whatever happens."""
    return st.lists(_steps, min_size=1, max_size=max_size).map(_script)


def _script(steps: list[Step]) -> str:
    return "".join(f"{{ {step.line()}; }} 2> /dev/null; " for step in steps) + "true"


def read_tree(root: Path) -> Tree:
    """Read everything."""
    found: Tree = {}
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            found[path.relative_to(root).as_posix()] = (mode, os.fsencode(path.readlink()))
        elif stat.S_ISREG(mode):
            found[path.relative_to(root).as_posix()] = (mode, path.read_bytes())
    return found


def undone(tree: Tree, effects: Sequence[FileEffect]) -> Tree:
    """The tree as it was before the effects, from what they tell alone."""
    before = dict(tree)
    for effect in effects:
        assert before.pop(effect.path, (None, None)) == _told(effect.after, effect.after_mode)
    for effect in effects:
        mode, content = _told(effect.before, effect.before_mode)
        if mode is not None and content is not None:
            before[effect.renamed_from or effect.path] = (mode, content)
    return before


def changed(before: Tree, after: Tree) -> set[str]:
    """The paths that differ."""
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def told(effects: Sequence[FileEffect]) -> set[str]:
    """The paths of which effects tell something."""
    return {path for each in effects for path in (each.path, each.renamed_from or each.path)}


def _told(blob: Blob | None, mode: int | None) -> tuple[int | None, bytes | None]:
    return (None, None) if blob is None else (mode, blob.data)
