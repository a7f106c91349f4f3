"""Directories with files in them."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path


def lay_out(root: Path, files: Mapping[str, bytes]) -> None:
    """Write files below `root`."""
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


def laid_out(root: Path) -> dict[str, bytes]:
    """Return the files below `root`, without links."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


@contextmanager
def temporary_tree(files: Mapping[str, bytes]) -> Generator[Path]:
    """Give a directory with files that is gone afterwards."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        lay_out(root, files)
        yield root
