"""Pictures that users and tools show to a model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_modules
from rath._core.text import one_line_preview
from rath.errors import PersistenceError

if TYPE_CHECKING:
    import base64
    import pathlib
else:
    base64, pathlib = lazy_modules(__name__, "base64", "pathlib")


__all__ = ["MAX_IMAGE_BYTES", "Image", "ImageSource", "read_images"]

MAX_IMAGE_BYTES = 20_000_000
"""Largest picture that is taken, in bytes; a guess above what vendors accept of one picture."""

_SHOWN_BYTES = 8
_MAX_NAME = 200
_ACCEPTED = "expected the bytes of a PNG, JPEG, GIF or WebP picture"
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://|(data):", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Image:
    """One picture: its media type, and its bytes by digest; equal when these are."""

    mime: str
    """Media type such as `image/png`."""

    blob: Blob
    """The bytes, their sha256 and their number; its `data` is None when they are not there."""

    absent: str | None = field(default=None, repr=False, compare=False)
    """Reason for missing bytes, where it is known."""

    @classmethod
    def from_bytes(cls, content: bytes | bytearray | memoryview) -> Image:
        """Return the picture that `content` holds; its media type is that of the bytes.

        Raises:
            TypeError: `content` is something else than bytes.
            ValueError: They are no PNG, JPEG, GIF or WebP, or more than `MAX_IMAGE_BYTES`.
        """
        # To `bytes` a number is a size, and a text an error that says nothing of pictures.
        if not isinstance(content, bytes | bytearray | memoryview):
            raise TypeError(
                f"an image is made of bytes, not of {type(content).__name__}; for a file give "
                "Image.from_path(...), for base64 base64.b64decode(...)"
            )
        return _checked(bytes(content), "the bytes given as an image")

    @classmethod
    def from_path(cls, path: str | os.PathLike[str]) -> Image:
        """Return the picture in a file; blocks, and the path is not kept.

        Raises:
            OSError: The file is not there or cannot be read.
            ValueError: It is no PNG, JPEG, GIF or WebP, or larger than `MAX_IMAGE_BYTES`; or
                `path` is an address or can name no file.
        """
        _refuse_address(path)
        name = one_line_preview(os.fspath(path), _MAX_NAME)
        try:
            with pathlib.Path(path).open("rb") as file:
                content = file.read(MAX_IMAGE_BYTES + 1)
        except OSError as exc:
            text = (
                f"an image cannot be read ({exc.strerror}); give the path of a file, or its bytes"
            )
            raise OSError(exc.errno, text, name) from exc
        except ValueError as exc:
            raise ValueError(
                f"an image cannot be read: {name!r} can name no file ({exc}); give the path of a "
                "file, or its bytes"
            ) from exc
        return _checked(content, f"the image file {name!r}")

    @property
    def label(self) -> str:
        """Stand-in for the picture in a text: `[image/png 12.3 kB sha256:0a1b2c3d]`."""
        return f"[{self.mime} {_readable_size(self.blob.size)} sha256:{self.blob.digest[:8]}]"

    @property
    def problem(self) -> str | None:
        """Reason why no model can be shown the picture, None where one can; may read its bytes."""
        if self.blob.size > MAX_IMAGE_BYTES:
            return f"it has more than {MAX_IMAGE_BYTES} bytes, the most that is taken"
        if self.blob.data is None:
            return self.absent or "its bytes are not there"
        if _mime_of(self.blob.data) != self.mime:
            return f"its bytes are no {self.mime} that is known; {_ACCEPTED}"
        return None

    def to_base64(self) -> str:
        """Return the bytes as base64 text.

        Raises:
            PersistenceError: The bytes are not there; the text says why.
        """
        if self.blob.data is None:
            why = self.absent or "only its digest is known; make the row anew from its file"
            raise PersistenceError(f"no model can be shown the image {self.label}: {why}")
        return base64.b64encode(self.blob.data).decode()

    def to_data_url(self) -> str:
        """Return the picture as a `data:` address.

        Raises:
            PersistenceError: The bytes are not there; the text says why.
        """
        return f"data:{self.mime};base64,{self.to_base64()}"


ImageSource = str | os.PathLike[str] | bytes | bytearray | memoryview | Image
"""Source of an image: the path of a file, its bytes, or an image that is there already."""


def read_images(sources: Iterable[ImageSource] | None) -> tuple[Image, ...]:
    """Return the pictures that `sources` name, none for None; reads files, so it blocks.

    Raises:
        TypeError: `sources` is no list of paths, bytes and images.
        OSError: A file is not there or cannot be read.
        ValueError: One is no PNG, JPEG, GIF or WebP, or larger than `MAX_IMAGE_BYTES`; or an
            address, which is not fetched.
    """
    if sources is None:
        return ()
    kind = type(sources).__name__
    is_one = isinstance(sources, str | bytes | bytearray | memoryview | os.PathLike | Image)
    if is_one or isinstance(sources, Mapping) or not isinstance(sources, Iterable):
        raise TypeError(f"images must be a list, not one {kind}; write images=[...]")
    return tuple(_read(source) for source in sources)


def _read(source: ImageSource) -> Image:
    if isinstance(source, Image):
        return source
    if isinstance(source, bytes | bytearray | memoryview):
        return Image.from_bytes(source)
    if isinstance(source, str | os.PathLike):
        return Image.from_path(source)
    raise TypeError(
        f"an image is given as the path of a file or as bytes, not {type(source).__name__}"
    )


def _refuse_address(path: str | os.PathLike[str]) -> None:
    # Only its beginning is told: an address may hold a key, or a whole picture.
    found = _ADDRESS.match(path) if isinstance(path, str) else None
    if found is not None:
        raise ValueError(
            f"an image was given as an address ({found[0]}...), and addresses are not fetched; "
            "pass the bytes, or the path of a file"
        )


def _checked(content: bytes, what: str) -> Image:
    size = len(content)
    if size > MAX_IMAGE_BYTES:
        raise ValueError(
            f"{what}: more than {MAX_IMAGE_BYTES} bytes, the most that is taken; scale the picture "
            "down first"
        )
    mime = _mime_of(content)
    if mime is None:
        begins = f"{size} bytes that begin with {content[:_SHOWN_BYTES]!r}" if content else "empty"
        raise ValueError(f"{what}: {begins}; {_ACCEPTED}")
    return Image(mime, Blob.from_bytes(content, keep=size))


def _mime_of(content: bytes) -> str | None:
    """Return the media type of a picture by its first bytes, as its format's standard fixes them.

    PNG: ISO/IEC 15948, 5.2; JPEG: ITU-T T.81, B.1.1.3; GIF: GIF89a, 17; WebP: RFC 9649, 2.4.
    """
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if content.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "image/webp"
    return None


def _readable_size(size: int) -> str:
    if size < 1000:
        return f"{size} B"
    return f"{size / 1000:.1f} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"
