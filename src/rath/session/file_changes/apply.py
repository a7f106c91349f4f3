"""Writing changes of files into a directory of the user, all of them or none."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import file_digest, sha256
from pathlib import Path, PurePosixPath

from rath._core.blobs import MAX_BLOB_BYTES
from rath.backend import BackendSandbox, BackendToolFilesRead, FileContent
from rath.backend.effects import FileEffect
from rath.errors import BackendError
from rath.session.file_changes.all_or_none import Writing, all_or_none
from rath.session.file_changes.diff import PLAIN_FILE

Contents = Callable[[str], Iterable[bytes]]
"""Gives the content of a file of the workspace in parts."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One path: what must be there, and what shall be there; None stands for nothing."""

    path: str
    before: str | None
    """sha256 of the content, of a link's target."""

    after: str | None
    data: bytes | None
    mode: int
    moved_from: str | None = None
    """Where in the directory the same content stands now."""


@dataclass(frozen=True)
class _Found:
    """What stands at a path of the directory now; a link is not followed."""

    place: Path
    mode: int | None = None
    """`st_mode`, None where there is nothing."""

    behind: str | None = None
    """The path above that is no directory, so that there is nothing."""

    is_behind_link: bool = False

    @cached_property
    def digest(self) -> str | None:
        """The sha256 of a file or of a link's target, None for anything else."""
        if self.mode is None:
            return None
        if stat.S_ISLNK(self.mode):
            return sha256(os.fsencode(os.readlink(self.place))).hexdigest()
        if not stat.S_ISREG(self.mode):
            return None
        with self.place.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()

    def has_content(self, one: _Wanted) -> bool:
        """Whether at most the permission bits are to be changed."""
        is_same_kind = stat.S_IFMT(self.mode or 0) == stat.S_IFMT(one.mode)
        return is_same_kind and self.digest == one.after

    def has_mode(self, one: _Wanted) -> bool:
        """Whether nothing of the permission bits has to be changed."""
        mode = self.mode or 0
        return stat.S_ISLNK(mode) or (mode ^ one.mode) & 0o111 == 0

    @property
    def is_directory(self) -> bool:
        return self.mode is not None and stat.S_ISDIR(self.mode)


def apply_changes(
    changes: Sequence[FileEffect],
    directory: str | os.PathLike[str],
    *,
    contents: Contents | None = None,
) -> list[str]:
    """Write changes below `directory` and return the paths that were touched, sorted.

    Args:
        changes: Net changes, each path once.
        directory: Root of the tree to change.
        contents: Asked for what the changes do not hold, as it is after them.

    Raises:
        ValueError: A path is not as the changes found or left it, or leads out, or its content
            is not to be had; nothing was written.
        NotADirectoryError: There is no such directory.
        OSError: Something could not be written; everything is as it was.
    """
    root = Path(directory)
    if not root.is_dir():
        raise NotADirectoryError(f"cannot apply changes to {str(root)!r}: it is no directory")
    wanted = {one.path: one for change in changes for one in _wanted(change)}
    check = _Check(root, wanted, contents)
    problems = [problem for path in sorted(wanted) if (problem := check.problem(wanted[path]))]
    if problems:
        raise ValueError(
            f"nothing was written to {str(root)!r}, since files there are not as the changes "
            f"found them: {'; '.join(problems)}. Bring them back to that, or apply the parts that "
            "fit with files.diff()"
        )
    todo = [wanted[path] for path in sorted(wanted) if not check.is_done(wanted[path])]
    if todo:
        with all_or_none(root) as writing:
            for one in todo:
                _plan(one, check, writing)
    return [one.path for one in todo]


def contents_of(sandbox: BackendSandbox, path: str) -> Iterator[bytes]:
    """Yield the content of a file of an open sandbox in parts.

    Raises:
        BackendError: It cannot be read.
    """
    offset: int | None = 0
    while offset is not None:
        result = sandbox.dispatch(
            BackendToolFilesRead(path, encoding=None, offset=offset, limit=MAX_BLOB_BYTES)
        )
        if not isinstance(result, FileContent) or isinstance(result.data, str):
            raise BackendError(
                f"nothing was written, since the content of {path!r} was not kept and cannot be "
                f"read in the workspace: {result!r:.200}"
            )
        yield result.data
        offset = result.next_offset


def _wanted(change: FileEffect) -> Iterator[_Wanted]:
    before = None if change.before is None else change.before.digest
    after = None if change.after is None else change.after.digest
    data = None if change.after is None else change.after.data
    mode = change.after_mode or PLAIN_FILE
    moved_from = change.renamed_from if before == after else None
    if change.renamed_from is not None:
        yield _Wanted(change.renamed_from, before, None, None, PLAIN_FILE)
        before = None
    yield _Wanted(change.path, before, after, data, mode, moved_from)


class _Check:
    """Looks at a directory before anything is written to it."""

    def __init__(
        self, root: Path, wanted: Mapping[str, _Wanted], contents: Contents | None
    ) -> None:
        self._root = root
        self._wanted = wanted
        self._contents = contents
        self._seen: dict[str, _Found] = {}

    def found(self, path: str) -> _Found:
        """Return what stands at a path."""
        if path not in self._seen:
            self._seen[path] = self._look(path)
        return self._seen[path]

    def is_done(self, one: _Wanted) -> bool:
        """Tell whether a path is as the changes leave it."""
        found = self.found(one.path)
        if one.after is not None:
            return found.has_content(one) and found.has_mode(one)
        # A file made way for a directory.
        return found.mode is None or (
            found.is_directory
            and any(
                other.after is not None and path.startswith(f"{one.path}/")
                for path, other in self._wanted.items()
            )
        )

    def problem(self, one: _Wanted) -> str | None:
        """Return why a path cannot be written, None where it can."""
        parts = PurePosixPath(one.path).parts
        if not parts or one.path.startswith("/") or ".." in parts:
            return f"{one.path!r} leads out of the directory"
        found = self.found(one.path)
        if found.behind is not None:
            above = self._wanted.get(found.behind)
            if found.is_behind_link and above is None:
                return f"{one.path!r} lies behind the symbolic link {found.behind!r}"
            if one.after is not None and (above is None or above.after is not None):
                return f"{one.path!r} lies behind {found.behind!r}, which is no directory"
        if self.is_done(one):
            return None
        return self._misfit(one, found) or self._missing(one, found)

    def content(self, one: _Wanted) -> Iterable[bytes]:
        """Return the new content of a file."""
        if one.data is not None:
            return [one.data]
        if self._is_moved(one):
            assert one.moved_from is not None
            return _parts(self.found(one.moved_from).place)
        assert self._contents is not None
        return self._contents(one.path)

    def _look(self, path: str) -> _Found:
        place = self._root / path
        for above in [*PurePosixPath(path).parents][::-1][1:]:  # but for the root itself
            mode = _mode(self._root / above)
            if mode is not None and not stat.S_ISDIR(mode):
                return _Found(place, None, str(above), stat.S_ISLNK(mode))
        return _Found(place, _mode(place))

    def _misfit(self, one: _Wanted, found: _Found) -> str | None:
        if found.digest == one.before and (found.mode is None or one.before is not None):
            return None
        if found.is_directory and one.before is None and self._is_emptied(found.place):
            return None
        expected = "no file" if one.before is None else "the file that was changed"
        found_now = (
            "none" if found.mode is None else "a directory" if found.is_directory else "another"
        )
        return f"{one.path!r}: expected {expected}, found {found_now}"

    def _is_emptied(self, directory: Path) -> bool:
        """Tell whether nothing but directories is left of a directory."""
        for above, below, names in os.walk(directory):
            links = [name for name in below if os.path.islink(os.path.join(above, name))]
            for name in [*names, *links]:
                path = Path(above, name).relative_to(self._root).as_posix()
                if path not in self._wanted or self._wanted[path].after is not None:
                    return False
        return True

    def _missing(self, one: _Wanted, found: _Found) -> str | None:
        is_there = one.after is None or one.data is not None or found.has_content(one)
        if is_there or self._is_moved(one) or self._contents is not None:
            return None
        return (
            f"the content of {one.path!r} was not kept, since it has more than {MAX_BLOB_BYTES} "
            "bytes or effects keep none, and the sandbox of the session, which has it, is not open"
        )

    def _is_moved(self, one: _Wanted) -> bool:
        return one.moved_from is not None and self.found(one.moved_from).digest == one.after


def _mode(place: Path) -> int | None:
    try:
        return place.lstat().st_mode
    except FileNotFoundError:
        return None


def _plan(one: _Wanted, check: _Check, writing: Writing) -> None:
    """Have one path written.

    Raises:
        ValueError: Its content is another one by now.
    """
    if one.after is None:
        writing.remove(one.path)
    elif check.found(one.path).has_content(one):
        writing.chmod(one.path, one.mode)
    elif writing.write(one.path, check.content(one), mode=one.mode) != one.after:
        raise ValueError(
            f"nothing was written, since the content of {one.path!r} was not kept and in the "
            "workspace it is not as the changes left it: later calls or somebody else changed it"
        )


def _parts(place: Path) -> Iterator[bytes]:
    with place.open("rb") as file:
        while part := file.read(MAX_BLOB_BYTES):
            yield part
