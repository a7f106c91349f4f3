"""The files with which a workspace begins, as a record tells them."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rath._core.blobs import MAX_BLOB_BYTES, Blob
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_modules
from rath.backend.changes import MAX_GAP_PATHS, EffectPolicy, Manifest, manifest_digest

if TYPE_CHECKING:
    import tarfile

    from rath.backend import snapshots
    from rath.backend.snapshots import NewFile
    from rath.config import redaction
else:
    tarfile, snapshots, redaction = lazy_modules(
        __name__, "tarfile", "rath.backend.snapshots", "rath.config.redaction"
    )

MAX_START_FILES = 200
"""Above so many files their contents are not recorded: what begins a workspace is read before its
first operation, and that many small files take some 5 ms; a guess of what nobody notices."""


@dataclass(frozen=True, slots=True)
class WorkspaceStart:
    """The files of a workspace before its first operation."""

    digest: str | None = None
    """`manifest_digest` of them, without ignored directories; None where it was not looked for."""

    files: Blob | None = None
    """The files as a tar archive; None where there is none, or they are not recorded."""

    revision: str | None = None
    """The commit of a clean git checkout."""

    remote: str | None = None
    """Remote of that commit, without user and password."""

    reason: str | None = None
    """Reason for which the files are not available here; None where they are."""


def packed_start(manifest: Manifest, contents: Mapping[str, bytes]) -> WorkspaceStart:
    """Return a start that holds its files, unless one of them may hold secrets.

    Args:
        manifest: Their states by path.
        contents: Their contents by digest.
    """
    digest = manifest_digest(manifest)
    if not manifest:
        return WorkspaceStart(digest=digest)
    secret = [
        repr(path)
        for path, state in sorted(manifest.items())
        if redaction.is_secret_file(path, contents.get(state.digest, b""))
    ]
    if secret:
        more = "" if len(secret) <= MAX_GAP_PATHS else f" and {len(secret) - MAX_GAP_PATHS} more"
        names = f"{', '.join(secret[:MAX_GAP_PATHS])}{more}"
        return WorkspaceStart(
            digest=digest, reason=f"it had files that may hold secrets, which are not kept: {names}"
        )
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(manifest):
            state = manifest[path]
            data = contents.get(state.digest)
            if data is None:
                return WorkspaceStart(digest=digest, reason=f"{path!r} was not kept")
            member = tarfile.TarInfo(path)
            member.mode = state.mode & 0o7777
            if stat.S_ISLNK(state.mode):
                member.type, member.linkname = tarfile.SYMTYPE, os.fsdecode(data)
                archive.addfile(member)
            else:
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    data = buffer.getvalue()
    if len(data) > MAX_BLOB_BYTES:
        return WorkspaceStart(digest=digest, reason=f"its files are more than {MAX_BLOB_BYTES} B")
    return WorkspaceStart(digest=digest, files=Blob.from_bytes(data))


def unpacked_files(start: WorkspaceStart) -> dict[str, NewFile] | None:
    """Return the files of a start by path, None where they are not at hand."""
    if start.files is None:
        is_empty = start.digest == manifest_digest({})
        return {} if is_empty and start.reason is None else None
    data = start.files.data
    if data is None or Blob.from_bytes(data, keep=0) != start.files:
        return None
    files: dict[str, NewFile] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                new = _file_of(archive, member)
                if new is None:
                    return None
                files[member.name] = new
    except (tarfile.TarError, ValueError):
        return None
    return files


def _file_of(archive: tarfile.TarFile, member: tarfile.TarInfo) -> NewFile | None:
    """Return a file or link of an archive, None of anything else: a record may be hostile."""
    runs_as_owner = member.mode & (stat.S_ISUID | stat.S_ISGID)
    if "\0" in member.name + member.linkname or runs_as_owner:
        return None
    if member.issym():
        link = os.fsencode(member.linkname)
        return snapshots.NewFile(link, stat.S_IFLNK | member.mode)
    # A sparse file may be of any size, however few bytes it has.
    if not member.isreg() or member.issparse():
        return None
    file = archive.extractfile(member)
    assert file is not None, "a regular file has content"
    return snapshots.NewFile(file.read(), stat.S_IFREG | member.mode)


def is_ignored(path: str, policy: EffectPolicy) -> bool:
    """Tell whether a scan passes over a path."""
    return not policy.ignore.isdisjoint(path.split("/")[:-1])
