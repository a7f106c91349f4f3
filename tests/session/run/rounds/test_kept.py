"""How much content the record of a run holds."""

from __future__ import annotations

from rath._core.blobs import Blob
from rath.session.run.rounds import ContentCache
from tests.support.session_files import changed, created


def test_contents_are_kept_while_there_is_room() -> None:
    effects = [created("a", b"12"), created("b", b"34")]
    kept, is_whole = ContentCache(4).fitting(effects)
    assert (list(kept), is_whole) == (effects, True)
    assert [each.after.data for each in kept if each.after] == [b"12", b"34"]


def test_contents_without_room_keep_digest_and_size() -> None:
    kept, is_whole = ContentCache(3).fitting([created("a", b"12"), created("b", b"34")])
    assert not is_whole
    assert kept[1].after == Blob.from_bytes(b"34")
    assert [each.after.data for each in kept if each.after] == [b"12", None]


def test_equal_contents_count_once() -> None:
    contents = ContentCache(4)
    contents.fitting([changed("a", b"12", b"34")])
    _, is_whole = contents.fitting([changed("a", b"34", b"12")])
    assert is_whole


def test_what_has_no_content_anyway_misses_nothing() -> None:
    large = created("a", b"")
    assert ContentCache(0).fitting([large, changed("a", b"", b"")])[1]
    effects, is_whole = ContentCache(0).fitting([created("a", b"1")])
    assert not is_whole
    assert ContentCache(0).fitting(effects) == (effects, True)
