"""Several files of a directory written together: all of them, or none if one cannot be written."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path


class Writing:
    """What is to be done below a directory; nothing of it is seen there before the end."""

    def __init__(self, root: Path, aside: Path) -> None:
        self._root = root
        self._aside = aside
        """Where new files wait, and old ones until all is done."""

        self._n_aside = 0
        self._removed: list[Path] = []
        self._new: list[tuple[Path, Path]] = []
        self._modes: list[tuple[Path, int]] = []
        self._steps_back: list[Callable[[], object]] = []

    def remove(self, path: str) -> None:
        """Have a file removed."""
        self._removed.append(self._root / path)

    def chmod(self, path: str, mode: int) -> None:
        """Have a file given other permission bits."""
        self._modes.append((self._root / path, stat.S_IMODE(mode)))

    def write(self, path: str, content: Iterable[bytes], *, mode: int) -> str:
        """Have a file written, or a link made; return the sha256 of its content."""
        waiting = self._place_aside()
        digest = sha256()
        if stat.S_ISLNK(mode):
            target = b"".join(content)
            waiting.symlink_to(os.fsdecode(target))
            digest.update(target)
        else:
            with waiting.open("xb") as file:
                for part in content:
                    file.write(part)
                    digest.update(part)
            waiting.chmod(stat.S_IMODE(mode))
        self._new.append((self._root / path, waiting))
        return digest.hexdigest()

    def finish(self) -> None:
        """Do all of it."""
        # What is taken away first may make room for what comes.
        for path in self._removed:
            self._take_away(path)
        for path, waiting in self._new:
            self._make_directory(path.parent)
            if os.path.lexists(path):
                self._take_away(path)
            waiting.rename(path)
            self._steps_back.append(partial(path.rename, waiting))
        for path, mode in self._modes:
            before = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode)
            self._steps_back.append(partial(path.chmod, before))

    def step_back(self) -> list[OSError]:
        """Undo what was done so far; return what stood against it."""
        faults: list[OSError] = []
        for step in reversed(self._steps_back):
            try:
                step()
            except OSError as exc:
                faults.append(exc)
        return faults

    def _take_away(self, path: Path) -> None:
        """Move a file aside, or a directory that no files are left in."""
        kept = self._place_aside()
        path.rename(kept)
        self._steps_back.append(partial(kept.rename, path))

    def _make_directory(self, path: Path) -> None:
        if path.is_dir():
            return
        self._make_directory(path.parent)
        path.mkdir()
        self._steps_back.append(path.rmdir)

    def _place_aside(self) -> Path:
        self._n_aside += 1
        return self._aside / str(self._n_aside)


@contextmanager
def all_or_none(root: Path) -> Generator[Writing]:
    """Collect what is to be done below `root` and do it at the end of the block.

    An error inside the block, or in doing it, leaves everything as it was. A process that is killed
    in the middle leaves the old files in a directory whose name begins with `.rath_apply_`.

    Raises:
        OSError: Something could not be done, so nothing was.
    """
    aside = Path(tempfile.mkdtemp(prefix=".rath_apply_", dir=root))
    writing = Writing(root, aside)
    try:
        yield writing
        writing.finish()
    except BaseException as exc:
        faults = writing.step_back()
        if faults:
            exc.add_note(f"not all could be put back, the rest is in {str(aside)!r}: {faults}")
        else:
            shutil.rmtree(aside, ignore_errors=True)
        raise
    shutil.rmtree(aside, ignore_errors=True)
