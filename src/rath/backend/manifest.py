"""What a workspace holds at one moment: its files by path, with digests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

IGNORED_NAMES = frozenset(
    {
        ".git", ".hg", ".mypy_cache", ".nox", ".openrath", ".pytest_cache", ".ruff_cache", ".svn",
        ".tox", ".venv", "__pycache__", "node_modules", "venv",
    }
)  # fmt: skip
"""Directories that are not looked at: what tools keep there is theirs, and large."""


@dataclass(frozen=True, slots=True)
class EffectPolicy:
    """What is looked at around commands and code to tell what they changed."""

    is_on: bool = True
    """False: effects of commands and code are not looked for; file tools still tell theirs."""

    ignore: frozenset[str] = IGNORED_NAMES
    """Names of directories, at any depth, that are passed over."""

    max_files: int = 100_000
    """Above so many files nothing is looked for, and the record says so."""

    keep_contents: bool = True
    """Whether contents before and after are kept; digests and sizes are in any case."""


@dataclass(frozen=True, slots=True)
class FileState:
    """One file or symbolic link at one moment."""

    digest: str
    """sha256 of the content, of the target's text for a link; in hex."""

    size: int
    """Length of the content in bytes."""

    mode: int
    """Type and permission bits, `st_mode`."""


Manifest = Mapping[str, FileState]
"""Files and links by path relative to the root, `/` between names."""


def manifest_digest(manifest: Manifest) -> str:
    """Return the sha256 over paths, modes and digests, in hex: equal trees, equal digests."""
    whole = sha256()
    for path in sorted(manifest):
        state = manifest[path]
        whole.update(f"{path}\0{state.mode:o}\0{state.digest}\n".encode(errors="surrogateescape"))
    return whole.hexdigest()


def changed_paths(before: Manifest, after: Manifest) -> Iterable[str]:
    """Return the paths that differ, sorted."""
    return sorted(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )
