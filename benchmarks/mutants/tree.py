"""The files of the project: their list, their digest, a copy of them to work in."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path


def project_root() -> Path:
    """The root of the working tree that the current folder belongs to."""
    return Path(_git(Path.cwd(), "rev-parse", "--show-toplevel").strip())


def project_files(root: Path) -> list[str]:
    """The files that are or could be committed, relative to the root."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return sorted(path for path in listed.split("\0") if path and (root / path).exists())


def digest(root: Path, package: str, tests: Sequence[str]) -> str:
    """A name for a package, what else lies beside it, and tests with all that supports them."""
    source = package.partition("/")[0] + "/"
    state = hashlib.sha256("\0".join((sys.version, package, *tests)).encode())
    for path in project_files(root):
        supports = path.startswith("tests/") and not Path(path).name.startswith("test_")
        if path == "pyproject.toml" or supports or path.startswith((source, *tests)):
            content = hashlib.sha256((root / path).read_bytes()).hexdigest()
            state.update(f"\0{path}\0{content}".encode())
    return state.hexdigest()[:16]


@contextmanager
def temporary_copy(root: Path) -> Generator[Path]:
    """Lend a copy of the project in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="rath-mutants-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder).resolve() / "tree"
        for path in project_files(root):
            target = copy / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, target, follow_symlinks=False)
        (copy.parent / "tmp").mkdir()
        yield copy


def environment(copy: Path) -> dict[str, str]:
    """The environment of tests in a copy: its sources are found first, by their processes too."""
    own = Path(__file__).parents[2]
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "PYTHONPATH": os.pathsep.join(map(str, (copy / "src", copy, own))),
        "TMPDIR": str(copy.parent / "tmp"),
        # Hypothesis draws the same examples each time.
        "CI": "1",
    }


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout
