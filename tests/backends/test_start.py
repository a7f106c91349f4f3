"""The files with which a workspace begins, as an archive that a hostile record may hold."""

from __future__ import annotations

import io
import stat
import tarfile
from collections.abc import Callable

import pytest

from rath._core.blobs import Blob
from rath.backend.changes import FileState, manifest_digest
from rath.backend.start import WorkspaceStart, packed_start, unpacked_files


def archived(*members: tarfile.TarInfo, content: bytes = b"x") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def device() -> bytes:
    member = tarfile.TarInfo("device")
    member.type = tarfile.CHRTYPE
    return archived(member)


def hard_link() -> bytes:
    member = tarfile.TarInfo("link")
    member.type, member.linkname = tarfile.LNKTYPE, "nothing"
    return archived(member)


def sparse_file() -> bytes:
    member = tarfile.TarInfo("sparse")
    member.size = 1
    member.pax_headers = {
        "GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,1",
        "GNU.sparse.size": str(1 << 40), "GNU.sparse.name": "sparse",
    }  # fmt: skip
    return archived(member)


def program_of_its_owner() -> bytes:
    member = tarfile.TarInfo("program")
    member.size, member.mode = 1, 0o4755
    return archived(member)


@pytest.mark.parametrize(
    "make", [device, hard_link, sparse_file, program_of_its_owner, lambda: b"no archive" * 100]
)
def test_an_archive_of_anything_but_files_and_links_is_refused(make: Callable[[], bytes]) -> None:
    start = WorkspaceStart(digest="0" * 64, files=Blob.from_bytes(make()))
    assert unpacked_files(start) is None


def test_files_and_links_come_back() -> None:
    contents = {"1": b"one", "2": b"a/one.txt"}
    manifest = {
        "a/one.txt": FileState("1", 3, stat.S_IFREG | 0o755),
        "link": FileState("2", 9, stat.S_IFLNK | 0o777),
    }
    start = packed_start(manifest, contents)
    files = unpacked_files(start)
    assert files is not None
    assert start.digest == manifest_digest(manifest)
    found = {path: (new.data, new.mode) for path, new in files.items()}
    assert found == {
        "a/one.txt": (b"one", stat.S_IFREG | 0o755),
        "link": (b"a/one.txt", stat.S_IFLNK | 0o777),
    }
