"""A blob knows its content by digest and size, and holds it unless it is too large."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._core.blobs import MAX_BLOB_BYTES, Blob, is_digest


@given(content=st.binary(max_size=50), keep=st.integers(0, 50))
def test_content_is_held_up_to_the_limit_and_known_beyond_it(content: bytes, keep: int) -> None:
    blob = Blob.from_bytes(content, keep=keep)
    assert (blob.digest, blob.size) == (sha256(content).hexdigest(), len(content))
    assert blob.data == (content if len(content) <= keep else None)


@given(one=st.binary(max_size=3), other=st.binary(max_size=3))
def test_blobs_are_equal_when_their_content_is_held_or_not(one: bytes, other: bytes) -> None:
    assert (Blob.from_bytes(one) == Blob.from_bytes(other, keep=0)) == (one == other)


def test_the_limit_is_inclusive() -> None:
    assert Blob.from_bytes(bytes(MAX_BLOB_BYTES)).data is not None
    assert Blob.from_bytes(bytes(MAX_BLOB_BYTES + 1)).data is None


def test_repr_shows_no_content() -> None:
    assert "secret" not in repr(Blob.from_bytes(b"secret"))


@given(content=st.binary(max_size=9))
def test_a_blob_is_named_by_a_digest(content: bytes) -> None:
    assert is_digest(Blob.from_bytes(content).digest)


@pytest.mark.parametrize(
    "text", ["", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "0" * 64 + "\n", "../" + "0" * 61]
)
def test_other_text_is_no_digest(text: str) -> None:
    assert not is_digest(text)


def fetched(content: bytes | None, asked: list[str]) -> Blob:
    """Return a blob that is fetched, and notes for which digests it was asked."""

    def fetch(digest: str) -> bytes | None:
        asked.append(digest)
        return content

    whole = Blob.from_bytes(content or b"x")
    return Blob.fetched(whole.digest, whole.size, fetch)


def test_content_is_fetched_when_it_is_read_and_only_once() -> None:
    asked: list[str] = []
    blob = fetched(b"content", asked)
    assert (blob.size, blob.is_kept, asked) == (7, True, [])
    assert blob.data == blob.data == b"content"
    assert asked == [blob.digest]


def test_content_that_is_lost_is_none() -> None:
    blob = fetched(None, [])
    assert blob.data is None
    assert blob.is_kept


def test_fetched_blob_equals_the_one_that_holds_its_content() -> None:
    asked: list[str] = []
    blob, whole = fetched(b"content", asked), Blob.from_bytes(b"content")
    assert blob == whole
    assert hash(blob) == hash(whole)
    assert repr(blob) == repr(whole)
    assert asked == []


@pytest.mark.parametrize(
    "copied", [pickle.loads, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"]
)
def test_a_copy_of_a_fetched_blob_holds_its_content(copied: Callable[..., Blob]) -> None:
    blob = fetched(b"content", [])
    # A function that fetches cannot be written; what it gives can.
    made = copied(pickle.dumps(blob) if copied is pickle.loads else blob)
    assert (made, made.data) == (blob, b"content")


def test_fetched_blob_is_as_frozen_as_any() -> None:
    blob = fetched(b"content", [])
    with pytest.raises(FrozenInstanceError):
        blob.data = b"other"
    assert blob.without_data().data is None
    with pytest.raises(AttributeError, match="no attribute 'dat'"):
        getattr(blob, "dat")  # noqa: B009  # a name that checkers would refuse


def test_only_what_has_bytes_is_kept() -> None:
    assert Blob.from_bytes(b"x").is_kept
    assert not Blob.from_bytes(b"x", keep=0).is_kept
