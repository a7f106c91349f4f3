"""Where files of deleted logs wait until they are brought back, or removed for good.

<directory>/.trash/<file of the log>.<number>/      the files of one deletion; the last has the
                                                    highest number
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from rath._core.files import make_private_directory, sync_directory
from rath._core.trash import TRASH_DIR_NAME, empty_trash, in_trash
from rath.session.persistence.paths import partial_beside

__all__ = ["FileTrash"]


class FileTrash:
    """The trash of a directory of logs; all its methods block.

    Args:
        directory: Where the logs stand.
    """

    __slots__ = ("_directory",)

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, path: Path, files: Iterable[Path]) -> None:
        """Move the files of the log whose finished file is `path` into the trash; durable.

        Raises:
            OSError: They cannot be moved; the first is moved first.
        """
        entry = self._new_entry(path)
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                file.replace(entry / file.name)
        sync_directory(entry)
        sync_directory(path.parent)

    def last(self, path: Path) -> Path | None:
        """Return what was deleted last of the log whose finished file is `path`."""
        numbered = {
            int(number): entry
            for entry in in_trash(self._directory)
            for name, _, number in [entry.name.rpartition(".")]
            if name == path.name and number.isdecimal() and _holds(entry, path)
        }
        return numbered[max(numbered)] if numbered else None

    def take_back(self, entry: Path) -> None:
        """Move all files of an entry to where they were; durable.

        Raises:
            OSError: They cannot be moved.
        """
        for file in sorted(entry.iterdir()):
            file.replace(_free(self._directory / file.name))
        entry.rmdir()
        sync_directory(self._directory)

    def empty(self) -> int:
        """Remove for good what lies here; return how many logs that were."""
        before = in_trash(self._directory)
        empty_trash(self._directory)
        return len(set(before) - set(in_trash(self._directory)))

    def _new_entry(self, path: Path) -> Path:
        trash = self._directory / TRASH_DIR_NAME
        if trash.is_symlink():
            raise NotADirectoryError(20, "is a link; put a directory in its place", str(trash))
        make_private_directory(trash)
        number = 1
        while True:
            entry = trash / f"{path.name}.{number}"
            try:
                entry.mkdir(mode=0o700)
            except FileExistsError:
                number += 1
            else:
                return entry


def _holds(entry: Path, path: Path) -> bool:
    return (entry / path.name).exists() or (entry / partial_beside(path).name).exists()


def _free(path: Path) -> Path:
    """Return a name that bears nothing yet; what was cut off earlier is numbered anyway."""
    if not path.name.rpartition(".")[2].isdecimal():
        return path
    number = int(path.name.rpartition(".")[2])
    while path.exists():
        number += 1
        path = path.with_name(f"{path.name.rpartition('.')[0]}.{number}")
    return path
