"""Writing changes of files into a directory of the user, all of them or none."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path, PurePosixPath

from rath.backend.effects import FileEffect

_FILE = stat.S_IFREG | 0o644


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One path: what must be there, and what shall be there; None stands for nothing."""

    path: str
    before: str | None
    """sha256 of the content, of a link's target."""

    after: str | None
    data: bytes | None
    mode: int


def apply_changes(changes: Sequence[FileEffect], directory: str | os.PathLike[str]) -> list[str]:
    """Write changes below `directory` and return the paths that were touched, sorted.

    Raises:
        ValueError: A path is not as the changes found or left it, or leads out, or its content
            was not kept; nothing was written.
        NotADirectoryError: There is no such directory.
    """
    root = Path(directory)
    if not root.is_dir():
        raise NotADirectoryError(f"cannot apply changes to {str(root)!r}: it is no directory")
    wanted = sorted(
        (one for change in changes for one in _wanted(change)), key=lambda one: one.path
    )
    problems = [problem for one in wanted if (problem := _problem(root, one)) is not None]
    if problems:
        raise ValueError(
            f"nothing was written to {str(root)!r}, since files there are not as the changes "
            f"found them: {'; '.join(problems)}. Bring them back to that, or apply the parts that "
            "fit with files.diff()"
        )
    todo = [one for one in wanted if not _is_done(root / one.path, one)]
    # What is taken away first may make room for what comes.
    for one in sorted(todo, key=lambda one: one.after is not None):
        _write(root / one.path, one)
    return [one.path for one in todo]


def _wanted(change: FileEffect) -> Iterator[_Wanted]:
    before = None if change.before is None else change.before.digest
    if change.renamed_from is not None:
        yield _Wanted(change.renamed_from, before, None, None, _FILE)
        before = None
    after = change.after
    yield _Wanted(
        change.path,
        before,
        None if after is None else after.digest,
        None if after is None else after.data,
        change.after_mode or _FILE,
    )


def _problem(root: Path, one: _Wanted) -> str | None:
    """Return why a path cannot be written, None where it can."""
    parts = PurePosixPath(one.path).parts
    if not parts or one.path.startswith("/") or ".." in parts:
        return f"{one.path!r} leads out of the directory"
    above = root
    for part in parts[:-1]:
        above = above / part
        if above.is_symlink():
            return f"{one.path!r} lies behind the symbolic link {above.name!r}"
    if _is_done(root / one.path, one):
        return None
    if one.after not in (None, one.before) and one.data is None:
        return f"the content of {one.path!r} was not kept"
    now = _digest(root / one.path)
    if now != one.before:
        expected = "no file" if one.before is None else "the file that was changed"
        found = "none" if now is None else "another one"
        return f"{one.path!r}: expected {expected}, found {found}"
    return None


def _is_done(path: Path, one: _Wanted) -> bool:
    if _digest(path) != one.after:
        return False
    if one.after is None:
        return True
    mode = path.lstat().st_mode
    same_kind = stat.S_IFMT(mode) == stat.S_IFMT(one.mode)
    return same_kind and (stat.S_ISLNK(mode) or (mode ^ one.mode) & 0o111 == 0)


def _digest(path: Path) -> str | None:
    """Return the digest of what stands at a path, None for nothing; a link is not followed."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return sha256(os.fsencode(os.readlink(path))).hexdigest()
        if not stat.S_ISREG(mode):
            return "no file"
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _write(path: Path, one: _Wanted) -> None:
    if one.data is None:
        if one.after is None:
            path.unlink()
        else:
            path.chmod(stat.S_IMODE(one.mode))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".rath_apply_{os.urandom(8).hex()}")
    try:
        if stat.S_ISLNK(one.mode):
            temporary.symlink_to(os.fsdecode(one.data))
        else:
            temporary.write_bytes(one.data)
            temporary.chmod(stat.S_IMODE(one.mode))
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
