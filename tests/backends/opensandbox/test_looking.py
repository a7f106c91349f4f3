"""The list of files of a sandbox, without a sandbox."""

from __future__ import annotations

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._core.blobs import Blob
from rath.backend.changes import EffectPolicy, FileState
from rath.backend.opensandbox.contents import MAX_KEPT_BYTES, Contents
from rath.backend.opensandbox.faults import Broken
from rath.backend.opensandbox.looking import list_command, parsed

_paths = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@given(_paths, st.integers(0, 2**40), st.integers(0, 10**10 - 1))
def test_a_line_is_read_as_it_was_printed(path: str, size: int, fraction: int) -> None:
    time = f"1795294777.{fraction:010}"
    line = f"f 644 12 34 {size} {time} {time} {path}\0\0".encode()
    (found,) = parsed(line)
    ns = 1795294777 * 10**9 + fraction // 10
    assert (found.path, found.kind, found.target) == (path, "f", b"")
    assert found.key == (stat.S_IFREG | 0o644, 12, 34, size, ns, ns)


def test_a_link_has_its_target() -> None:
    (found,) = parsed(b"l 777 1 2 5 1.0 1.0 a\0b c\n\0")
    assert (found.kind, found.target) == ("l", b"b c\n")
    assert found.key[0] == stat.S_IFLNK | 0o777


@pytest.mark.parametrize("data", [b"f 644 1 2 3 1.0 1.0 a\0", b"f 644\0\0"])
def test_what_is_no_list_is_told(data: bytes) -> None:
    with pytest.raises(Broken, match="the list of files"):
        list(parsed(data))


def test_names_with_wildcards_are_meant_as_they_are() -> None:
    assert r"-name 'a\*b'" in list_command(EffectPolicy(ignore=frozenset({"a*b"})))
    assert "-prune" not in list_command(EffectPolicy(ignore=frozenset()))


def test_contents_are_kept_as_far_as_there_is_room() -> None:
    contents = Contents()
    blobs = [Blob.from_bytes(bytes([number]) * (1 << 20)) for number in range(33)]
    for blob in blobs:
        contents.keep(blob)
        contents.keep(blob)
    kept = [contents.blob_of(FileState(blob.digest, blob.size, 0)) for blob in blobs]
    assert [each.data is None for each in kept] == [True] + [False] * 32
    assert sum(each.size for each in kept if each.data is not None) == MAX_KEPT_BYTES
