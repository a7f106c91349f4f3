"""Pictures for tests: bytes that begin as their format does, and say nothing."""

from __future__ import annotations

from hypothesis import strategies as st

BEGINNINGS = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff\xe0",
    "image/gif": b"GIF89a",
    "image/webp": b"RIFF\x00\x00\x00\x00WEBP",
}


def picture(rest: bytes = b"", *, mime: str = "image/png") -> bytes:
    """Return bytes of a picture of type `mime` that ends with `rest`."""
    return BEGINNINGS[mime] + rest


pictures = st.builds(picture, st.binary(), mime=st.sampled_from(sorted(BEGINNINGS)))
