"""Keep what is private private: permissions, version control, and what may be shown."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

from rath._core.files import atomic_write_bytes, atomic_write_text

__all__ = [
    "HIDDEN",
    "chmod_user_only",
    "ensure_config_dir_gitignore",
    "ensure_project_gitignore_entry",
    "looks_secret",
    "shown",
    "warn_if_world_readable",
]

HIDDEN = "***"
"""What stands in the place of a secret."""

_logger = logging.getLogger(__name__)
_GITIGNORE = "*\n!.gitignore\n!config.json.example\n"
_READABLE_BY_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_warned: set[str] = set()

_SECRET_NAME = re.compile("key|token|secret|passw|pwd|credential|auth|bearer|cookie", re.IGNORECASE)
_COUNT_NAME = re.compile(r"(^|_)(max|min|n|total|budget|prompt|completion)_.*tokens$")
_WHOLLY_SECRET = frozenset({"env", "environ", "environment", "headers"})
"""Tables whose every value may be a secret, whatever it is called."""

# Greedy, since passwords are also written with the characters that end a host.
_USER_OF_URL = re.compile(r"(?<=://)\S*(?=@)")
_QUERY_OF_URL = re.compile(r"(?<=[?#])\S*=\S*")


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


def looks_secret(name: str) -> bool:
    """Return whether what bears this name is probably a secret; numbers of tokens are not."""
    folded = name.strip("-").replace("-", "_").casefold()
    is_secret = _SECRET_NAME.search(folded) is not None or folded in _WHOLLY_SECRET
    return is_secret and _COUNT_NAME.search(folded) is None


def shown(name: str, value: object) -> object:
    """Return `value`, which stands under `name`, as it may be shown: its secrets are hidden.

    Hidden are values with a telling name at any depth, what follows an option with such a name
    in a command, and of an address user, password and query.
    """
    is_secret = looks_secret(name)
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {key: HIDDEN if is_secret else shown(str(key), it) for key, it in table.items()}
    if isinstance(value, str | int | float | list | tuple) and value != "" and is_secret:
        return HIDDEN
    if isinstance(value, list | tuple):
        return list(_shown_words(name, cast("Iterable[object]", value)))
    return _shown_text(value) if isinstance(value, str) else value


def _shown_words(name: str, words: Iterable[object]) -> Iterator[object]:
    is_next_secret = False
    for word in words:
        option, equals, _ = str(word).partition("=")
        is_option = option.startswith("-") and looks_secret(option)
        if is_next_secret and not is_option:
            yield HIDDEN
        elif is_option and equals:
            yield f"{option}={HIDDEN}"
        else:
            yield shown(name, word)
        is_next_secret = is_option and not equals


def _shown_text(text: str) -> str:
    """Hide what an address may hold beside host and path."""
    if "://" not in text:
        return text
    return _QUERY_OF_URL.sub(HIDDEN, _USER_OF_URL.sub(HIDDEN, text))
