"""Opening regular files only: a pipe or a device under the name of a note must not block anyone."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

MAX_FILE_BYTES = 536_870_912
"""Larger files are neither written nor read in one piece."""

_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO)


class TooLarge(Exception):
    """A file has more than `MAX_FILE_BYTES`."""


@contextmanager
def opened(path: Path, *, follow: bool = False) -> Generator[BinaryIO | None]:
    """Open a regular file for reading; gives None where there is none.

    Args:
        path: The file.
        follow: Whether a symbolic link in its place is followed.

    Raises:
        OSError: It is there and cannot be read.
    """
    fd = _open(path, follow=follow)
    if fd is None:
        yield None
        return
    with os.fdopen(fd, "rb") as file:
        yield file if stat.S_ISREG(os.fstat(fd).st_mode) else None


def content_at(path: Path) -> bytes | None:
    """Return the bytes of a regular file; None where there is none.

    Raises:
        OSError: It is there and cannot be read.
        TooLarge: It has more than `MAX_FILE_BYTES`.
    """
    with opened(path, follow=True) as file:
        if file is None:
            return None
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            raise TooLarge(
                f"{str(path)!r} has {size} bytes, and at most {MAX_FILE_BYTES} are read in one "
                "piece; read the file by other means"
            )
        return file.read()


def _open(path: Path, *, follow: bool) -> int | None:
    try:
        # Opening some devices has effects of its own, so they are not even opened.
        mode = os.stat(path, follow_symlinks=follow).st_mode
        if not stat.S_ISREG(mode):
            return None
        return os.open(path, _FLAGS if follow else _FLAGS | _NO_LINK)
    except OSError as exc:
        if exc.errno in _NOTHING_THERE:
            return None
        raise
