"""Permissions of files with secrets, and their place outside of version control."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from rath._core.files import atomic_write_bytes, atomic_write_text

__all__ = [
    "chmod_user_only",
    "ensure_config_dir_gitignore",
    "ensure_project_gitignore_entry",
    "warn_if_world_readable",
]

_logger = logging.getLogger(__name__)
_GITIGNORE = "*\n!.gitignore\n!config.json.example\n"
_READABLE_BY_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_warned: set[str] = set()


def ensure_config_dir_gitignore(config_dir: Path) -> None:
    """Write a `.gitignore` into `config_dir` that keeps all of it out of a repository.

    A directory that is not there is made. An existing `.gitignore` stays as it is. The top of a
    repository gets none: there it would hide the whole project.
    """
    path = config_dir / ".gitignore"
    if not path.exists() and not (config_dir / ".git").exists():
        config_dir.mkdir(parents=True, exist_ok=True)
        atomic_write_text(path, _GITIGNORE)


def ensure_project_gitignore_entry(project_root: Path, marker: str = ".openrath/") -> None:
    """Add `marker` to the project's `.gitignore` where that file exists and lacks it.

    Leading and trailing slashes make no difference to whether it is there.
    """
    path = project_root / ".gitignore"
    if not path.is_file():
        return
    content = path.read_bytes()
    wanted = marker.strip("/").encode()
    if any(line.strip().strip(b"/") == wanted for line in content.splitlines()):
        return
    gap = b"" if content.endswith(b"\n") or not content else b"\n"
    atomic_write_bytes(path, content + gap + marker.encode() + b"\n")


def warn_if_world_readable(path: Path) -> None:
    """Log one warning per path and process when other users may read or write `path`."""
    if os.name != "posix" or str(path) in _warned:
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _READABLE_BY_OTHERS:
        _warned.add(str(path))
        _logger.warning(
            "%s has permissions %o, so other users can reach the keys in it; run: chmod 600 %s",
            path,
            mode,
            path,
        )


def chmod_user_only(path: Path) -> None:
    """Take all rights on `path` from everyone but its owner (mode 0600)."""
    path.chmod(0o600)
