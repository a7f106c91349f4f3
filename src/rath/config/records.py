"""Small files of the user's own: read whole, changed under a lock, readable by nobody else."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from rath._core.files import FileLock, atomic_write_json, make_private_directory
from rath.errors import ConfigError

__all__ = ["change_file", "exclusive", "read_file"]

VERSION = 1

_LOCK_SECONDS = 10.0
"""How long a change waits for another one; a guess, since a change takes milliseconds."""


def read_file(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, an empty one where there is no file.

    Raises:
        ConfigError: It cannot be read, or is damaged or written by a newer version.
    """
    try:
        payload: object = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as exc:
        raise ConfigError(
            f"{path} cannot be read ({type(exc).__name__}); correct it, or remove it to begin anew"
        ) from exc
    table = cast("dict[str, Any]", payload) if isinstance(payload, dict) else None
    if table is None or table.get("version") != VERSION:
        raise ConfigError(
            f"{path} is not what this version of rath writes; upgrade openrath, or remove the file "
            "to begin anew"
        )
    return table


@contextmanager
def exclusive(path: Path, lock_file: str) -> Generator[None]:
    """Keep other processes from writing a file, or into a directory, meanwhile.

    Args:
        path: What is written.
        lock_file: The name of the lock, beside the file or in the directory.

    Raises:
        ConfigError: Another process holds it.
    """
    lock = FileLock((path if path.is_dir() else path.parent) / lock_file)
    if not lock.acquire(timeout=_LOCK_SECONDS):
        raise ConfigError(
            f"{path} is being written by another process for more than {_LOCK_SECONDS:g} s; "
            "nothing is written. Try again when it has ended"
        )
    try:
        yield
    finally:
        lock.release()


def change_file(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the JSON object in a file in place; no other process changes it meanwhile.

    Args:
        path: The file; it and its directory may be new.
        change: Changes the object; what leaves it equal leaves the file alone.

    Raises:
        ConfigError: As for `read_file`, or another process holds the file.
        OSError: It cannot be written.
    """
    make_private_directory(path.parent)
    with exclusive(path, f".{path.stem}.lock"):
        payload = read_file(path)
        before = json.dumps(payload)
        change(payload)
        if json.dumps(payload) != before:
            payload["version"] = VERSION
            # In ASCII: names of directories may be no Unicode.
            atomic_write_json(path, payload, ensure_ascii=True, mode=0o600)
