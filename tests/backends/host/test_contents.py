"""Contents are kept by digest, outlive nothing but the store, and stay within a limit."""

from __future__ import annotations

import os
import tempfile
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.backend.host import scan
from rath.backend.host.scan import ContentStore


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()


@given(kept=st.lists(st.binary(max_size=50)), wanted=st.sets(st.integers(0, 9)))
def test_what_is_wanted_survives_any_compaction(kept: list[bytes], wanted: set[int]) -> None:
    store = ContentStore()
    for content in kept:
        assert store.put(digest(content), content)
    chosen = {digest(content) for n, content in enumerate(kept) if n in wanted}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "MIN_WASTE_BYTES", 1)
        store.keep_only(chosen)
    for content in kept:
        assert store.get(digest(content)) in (
            {content} if digest(content) in chosen else {content, None}
        )
    store.close()


def test_a_content_is_kept_once() -> None:
    store = ContentStore()
    assert store.put("one", b"abc")
    assert store.put("one", b"abc")
    assert store.n_bytes == 3
    store.close()


def test_a_full_store_refuses_and_keeps_what_it_has() -> None:
    store = ContentStore(max_bytes=4)
    assert store.put("one", b"abc")
    assert not store.put("two", b"de")
    assert (store.get("one"), store.get("two")) == (b"abc", None)
    store.close()


def test_compaction_frees_what_nobody_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MIN_WASTE_BYTES", 4)
    store = ContentStore()
    store.put("one", b"abc")
    store.put("two", b"defgh")
    store.keep_only({"one"})
    assert (store.n_bytes, store.get("one"), store.get("two")) == (3, b"abc", None)
    store.close()


def test_little_waste_is_not_worth_a_copy() -> None:
    store = ContentStore()
    store.put("one", b"abc")
    store.keep_only(set())
    assert store.get("one") == b"abc"
    store.close()


def test_its_file_has_no_name() -> None:
    before = set(os.listdir(tempfile.gettempdir()))
    store = ContentStore()
    made = set(os.listdir(tempfile.gettempdir())) - before
    assert not {name for name in made if name.startswith("rath-contents-")}
    store.close()


def test_nothing_is_kept_after_closing() -> None:
    store = ContentStore()
    store.put("one", b"abc")
    store.close()
    assert store.get("one") is None


def full_disk(*_: object, **__: object) -> int:
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ContentStore()
    monkeypatch.setattr(os, "pwrite", full_disk)
    assert not store.put("one", b"abc")
    store.close()


@pytest.mark.parametrize("broken", ["os.pwrite", "tempfile.mkstemp"])
def test_without_room_for_a_copy_nothing_is_dropped(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "MIN_WASTE_BYTES", 1)
    store = ContentStore()
    store.put("one", b"abc")
    store.put("two", b"defgh")
    monkeypatch.setattr(broken, full_disk)
    store.keep_only({"one"})
    assert (store.get("one"), store.get("two")) == (b"abc", b"defgh")
    store.close()
