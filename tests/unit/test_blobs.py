"""A blob knows its content by digest and size, and holds it unless it is too large."""

from __future__ import annotations

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
