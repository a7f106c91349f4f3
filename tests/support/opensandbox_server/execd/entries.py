"""What the daemon says of a file."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from typing import Any

from tests.support.opensandbox_server.execd.wire import stamp


def entry(path: str) -> dict[str, Any]:
    """Describe a path itself; a link is not followed.

    Raises:
        OSError: There is none.
    """
    found = os.lstat(path)
    return {
        "path": path,
        "type": _kind(found.st_mode),
        "size": found.st_size,
        "modified_at": stamp(found.st_mtime_ns),
        "created_at": stamp(found.st_ctime_ns),
        "owner": _owner(found.st_uid),
        "group": _group(found.st_gid),
        "mode": to_digits(found.st_mode),
    }


def to_digits(mode: int) -> int:
    """Permissions as a number that reads in decimal as they read in octal."""
    return int(f"{mode & 0o777:o}")


def from_digits(digits: int) -> int:
    """Permissions out of a number that `to_digits` gives."""
    return int(str(digits), 8)


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "symlink"
    return "directory" if stat.S_ISDIR(mode) else "file"


def _owner(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
