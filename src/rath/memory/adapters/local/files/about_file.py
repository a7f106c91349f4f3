"""The file `<leaf>.meta.json` beside a note, which tells where it comes from and when it expires.

While a text is replaced, the file tells of both texts, so that a process that dies in between
leaves neither with what is said of the other.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rath._core.files import atomic_write_bytes
from rath.memory.adapters.local.files.about import NOTHING_KNOWN, NoteAbout
from rath.memory.adapters.local.files.about_records import AboutRecord
from rath.memory.adapters.local.files.drafts import mark_as_ours
from rath.memory.adapters.local.files.regular import TooLarge, content_at, opened
from rath.memory.adapters.local.layout import ABOUT_SUFFIX, NOTE_SUFFIX

MAX_ABOUT_BYTES = 1_048_576
"""A longer file is none of ours."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the file beside a note tells."""

    about: NoteAbout = NOTHING_KNOWN
    mtime_ns: int = 0
    """When the file changed; 0 when there is none."""
    problem: str | None = None
    """Why it does not count; None when it does, or there is none."""


NOTHING_TOLD = Told()


def about_path(note: Path) -> Path:
    """Return the place of the file that tells about a note."""
    return Path(_place_of(note))


def told_about(note: Path) -> Told:
    """Return what is told about the text that stands in a note now.

    A file that cannot be read, or that is none of ours, tells nothing.
    """
    place = _place_of(note)
    try:
        status = os.lstat(place)
    except OSError:
        return NOTHING_TOLD
    if stat.S_ISDIR(status.st_mode):
        return NOTHING_TOLD
    try:
        record = AboutRecord.from_json(_bytes_of(Path(place)))
        if record.next_digest is not None and record.next_digest == _digest_at(note):
            return Told(record.next_about, status.st_mtime_ns)
        return Told(record.about, status.st_mtime_ns)
    except (OSError, ValueError, TooLarge) as exc:
        return Told(mtime_ns=status.st_mtime_ns, problem=f"{place} tells nothing: {exc}")


def tell_about(note: Path, about: NoteAbout) -> None:
    """Let the file beside a note tell this of it, whatever its text is.

    Where nothing is known, there is no such file, except one of another program.

    Raises:
        OSError: It cannot be written.
    """
    path = about_path(note)
    if about == NOTHING_KNOWN:
        told = told_about(note)
        if told.mtime_ns and told.problem is None:
            path.unlink(missing_ok=True)
    else:
        _write(path, AboutRecord(about))


@contextmanager
def telling_of_next(note: Path, data: bytes, about: NoteAbout) -> Generator[None]:
    """Let the file beside a note tell this of another text, which is put there in the block.

    Raises:
        OSError: It cannot be written.
    """
    before = told_about(note).about
    if before != about:
        digest = hashlib.sha256(data).hexdigest()
        _write(about_path(note), AboutRecord(before, digest, about))
    yield
    tell_about(note, about)


def _place_of(note: Path) -> str:
    # Asked for each note that is read, written or indexed: not with the slower names of `Path`.
    return str(note).removesuffix(NOTE_SUFFIX) + ABOUT_SUFFIX


def _write(path: Path, record: AboutRecord) -> None:
    # Writing goes through a link, which may lead anywhere.
    if path.is_symlink():
        path.unlink()
    atomic_write_bytes(path, record.to_json())
    mark_as_ours(path)


def _bytes_of(path: Path) -> bytes:
    with opened(path) as file:
        data = b"" if file is None else file.read(MAX_ABOUT_BYTES + 1)
    if len(data) > MAX_ABOUT_BYTES:
        raise ValueError(f"it is longer than {MAX_ABOUT_BYTES} bytes")
    return data


def _digest_at(note: Path) -> str | None:
    data = content_at(note)
    return None if data is None else hashlib.sha256(data).hexdigest()
