"""Changes applied to a directory, all or none."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from hashlib import file_digest, sha256
from pathlib import Path, PurePosixPath

from rath._core.blobs import MAX_BLOB_BYTES
from rath.backend import BackendSandbox, BackendToolFilesRead, FileContent
from rath.backend.effects import FileEffect
from rath.errors import BackendError
from rath.session.files.diff import PLAIN_FILE


class Writing:
    """Planned changes below a directory; nothing of them is seen there before the end."""

    def __init__(self, root: Path, temporary: Path) -> None:
        self._root = root
        self._temporary = temporary
        """Where new files wait, and old ones until all is done."""

        self._n_temporary = 0
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
        waiting = self._temporary_path()
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
        backup = self._temporary_path()
        path.rename(backup)
        self._steps_back.append(partial(backup.rename, path))

    def _make_directory(self, path: Path) -> None:
        if path.is_dir():
            return
        self._make_directory(path.parent)
        path.mkdir()
        self._steps_back.append(path.rmdir)

    def _temporary_path(self) -> Path:
        self._n_temporary += 1
        return self._temporary / str(self._n_temporary)


@contextmanager
def all_or_none(root: Path) -> Generator[Writing]:
    """Collect what is to be done below `root` and do it at the end of the block.

    An error inside the block, or in doing it, leaves everything as it was. A process that is killed
    in the middle leaves the old files in a directory whose name begins with `.rath_apply_`.

    Raises:
        OSError: Something could not be done, so nothing was.
    """
    temporary = Path(tempfile.mkdtemp(prefix=".rath_apply_", dir=root))
    writing = Writing(root, temporary)
    try:
        yield writing
        writing.finish()
    except BaseException as exc:
        faults = writing.step_back()
        if faults:
            exc.add_note(f"not all could be put back, the rest is in {str(temporary)!r}: {faults}")
        else:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(temporary, ignore_errors=True)


Contents = Callable[[str], Iterable[bytes]]
"""Gives the content of a file of the workspace in parts."""


@dataclass(frozen=True, slots=True)
class _PathPlan:
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
class _PathState:
    """The present state of a path of the directory; a link is not followed."""

    place: Path
    mode: int | None = None
    """`st_mode`, None where there is nothing."""

    behind: str | None = None
    """The path above that is no directory, so that there is nothing."""

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

    def has_content(self, one: _PathPlan) -> bool:
        """Whether at most the permission bits are to be changed."""
        is_same_kind = stat.S_IFMT(self.mode or 0) == stat.S_IFMT(one.mode)
        return is_same_kind and self.digest == one.after

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
    wanted = {one.path: one for change in changes for one in _plans_of(change)}
    check = _DirectoryCheck(root, wanted, contents)
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


def _plans_of(change: FileEffect) -> Iterator[_PathPlan]:
    before = None if change.before is None else change.before.digest
    after = None if change.after is None else change.after.digest
    data = None if change.after is None else change.after.data
    mode = change.after_mode or PLAIN_FILE
    moved_from = change.renamed_from if before == after else None
    if change.renamed_from is not None:
        yield _PathPlan(change.renamed_from, before, None, None, PLAIN_FILE)
        before = None
    yield _PathPlan(change.path, before, after, data, mode, moved_from)


class _DirectoryCheck:
    """Looks at a directory before anything is written to it."""

    def __init__(
        self, root: Path, wanted: Mapping[str, _PathPlan], contents: Contents | None
    ) -> None:
        self._root = root
        self._wanted = wanted
        self._contents = contents
        self.found = cache(self._look)
        """Returns what stands at a path."""

    def is_done(self, one: _PathPlan) -> bool:
        """Tell whether a path is as the changes leave it."""
        state = self.found(one.path)
        if one.after is not None:
            mode = state.mode or 0
            return state.has_content(one) and (stat.S_ISLNK(mode) or (mode ^ one.mode) & 0o111 == 0)
        # A file made way for a directory.
        return state.mode is None or (
            state.is_directory
            and any(
                other.after is not None and path.startswith(f"{one.path}/")
                for path, other in self._wanted.items()
            )
        )

    def problem(self, one: _PathPlan) -> str | None:
        """Return why a path cannot be written, None where it can."""
        parts = PurePosixPath(one.path).parts
        if not parts or one.path.startswith("/") or ".." in parts:
            return f"{one.path!r} leads out of the directory"
        state = self.found(one.path)
        if state.behind is not None:
            above = self._wanted.get(state.behind)
            if above is None and stat.S_ISLNK(self.found(state.behind).mode or 0):
                return f"{one.path!r} lies behind the symbolic link {state.behind!r}"
            if one.after is not None and (above is None or above.after is not None):
                return f"{one.path!r} lies behind {state.behind!r}, which is no directory"
        if self.is_done(one):
            return None
        return self._misfit(one, state) or self._missing(one, state)

    def content(self, one: _PathPlan) -> Iterable[bytes]:
        """Return the new content of a file."""
        if one.data is not None:
            return [one.data]
        if self._is_moved(one):
            assert one.moved_from is not None
            return _parts(self.found(one.moved_from).place)
        assert self._contents is not None
        return self._contents(one.path)

    def _look(self, path: str) -> _PathState:
        place = self._root / path
        for above in [*PurePosixPath(path).parents][::-1][1:]:  # but for the root itself
            mode = _mode(self._root / above)
            if mode is not None and not stat.S_ISDIR(mode):
                return _PathState(place, None, str(above))
        return _PathState(place, _mode(place))

    def _misfit(self, one: _PathPlan, state: _PathState) -> str | None:
        if state.digest == one.before and (state.mode is None or one.before is not None):
            return None
        if state.is_directory and one.before is None and self._is_emptied(state.place):
            return None
        expected = "no file" if one.before is None else "the file that was changed"
        actual = (
            "none" if state.mode is None else "a directory" if state.is_directory else "another"
        )
        return f"{one.path!r}: expected {expected}, found {actual}"

    def _is_emptied(self, directory: Path) -> bool:
        """Tell whether nothing but directories is left of a directory."""
        for above, below, names in os.walk(directory):
            links = [name for name in below if os.path.islink(os.path.join(above, name))]
            for name in [*names, *links]:
                path = Path(above, name).relative_to(self._root).as_posix()
                if path not in self._wanted or self._wanted[path].after is not None:
                    return False
        return True

    def _missing(self, one: _PathPlan, state: _PathState) -> str | None:
        is_there = one.after is None or one.data is not None or state.has_content(one)
        if is_there or self._is_moved(one) or self._contents is not None:
            return None
        return (
            f"the content of {one.path!r} was not kept, since it has more than {MAX_BLOB_BYTES} "
            "bytes or effects keep none, and the sandbox of the session, which has it, is not open"
        )

    def _is_moved(self, one: _PathPlan) -> bool:
        return one.moved_from is not None and self.found(one.moved_from).digest == one.after


def _mode(place: Path) -> int | None:
    try:
        return place.lstat().st_mode
    except FileNotFoundError:
        return None


def _plan(one: _PathPlan, check: _DirectoryCheck, writing: Writing) -> None:
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
