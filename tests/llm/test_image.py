"""Pictures: what is taken, what is refused and in which words, and how they are sent."""

from __future__ import annotations

import base64
import os
import pickle
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._core.blobs import Blob
from rath.errors import PersistenceError
from rath.llm import image as image_module
from rath.llm.image import Image, read_images
from tests.support.images import BEGINNINGS, picture, pictures

STARTS = {content[:3] for content in BEGINNINGS.values()}
ACCEPTED = "expected the bytes of a PNG, JPEG, GIF or WebP picture"


@pytest.mark.parametrize("mime", BEGINNINGS)
def test_the_media_type_is_that_of_the_bytes_and_not_of_the_name(mime: str, tmp_path: Path) -> None:
    path = tmp_path / "anything.txt"
    path.write_bytes(picture(b"x", mime=mime))
    assert Image.from_path(path).mime == Image.from_bytes(path.read_bytes()).mime == mime


def test_an_old_gif_is_one_too() -> None:
    assert Image.from_bytes(b"GIF87a...").mime == "image/gif"


@given(content=pictures)
def test_the_bytes_are_preserved_and_known_by_digest(content: bytes) -> None:
    blob = Image.from_bytes(content).blob
    assert (blob.data, blob.size) == (content, len(content))
    assert blob.digest == sha256(content).hexdigest()


@given(content=pictures)
def test_a_data_url_holds_type_and_bytes(content: bytes) -> None:
    image = Image.from_bytes(content)
    head, _, text = image.to_data_url().partition(",")
    assert head == f"data:{image.mime};base64"
    assert base64.b64decode(text, validate=True) == content


def test_path_bytes_and_image_give_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(picture(b"same"))
    images = read_images([path, str(path), path.read_bytes(), Image.from_path(path)])
    assert len(set(images)) == 1


def test_a_large_picture_is_preserved_complete() -> None:
    content = picture(bytes(2 << 20))
    assert Image.from_bytes(content).blob.data == content


@given(content=st.binary(max_size=30).filter(lambda data: data[:3] not in STARTS))
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=ACCEPTED):
        Image.from_bytes(content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the bytes given as an image: empty; "),
        (b"%PDF-1.7 secret", r"15 bytes that begin with b'%PDF-1\.7'; "),
        (b"RIFF\x00\x00\x00\x00WAVE", "12 bytes that begin with b'RIFF"),
        ("iVBORw0KGgo=", "an image is made of bytes, not of str; .*from_path"),
        (3, "not of int; .*from_path"),
        (None, "not of NoneType; .*from_path"),
        ([137, 80], "not of list; .*from_path"),
    ],
    ids=repr,
)
def test_a_refusal_says_what_it_got_and_what_is_accepted(content: Any, words: str) -> None:
    with pytest.raises(ValueError if isinstance(content, bytes) else TypeError) as caught:
        Image.from_bytes(content)
    assert re.search(words, str(caught.value))
    assert isinstance(content, bytes) == (ACCEPTED in str(caught.value))
    assert "secret" not in str(caught.value)


def test_a_refused_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cat.svg"
    path.write_text("<svg/>")
    with pytest.raises(ValueError, match=r"the image file '.*cat\.svg': 6 bytes"):
        Image.from_path(path)


@pytest.mark.parametrize("name", ["bytes", "path"])
def test_what_is_too_large_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_module, "MAX_IMAGE_BYTES", 20)
    content = picture(bytes(12))
    path = tmp_path / "a.png"
    path.write_bytes(content)
    Image.from_bytes(content)
    Image.from_path(path)
    path.write_bytes(content + b"x")
    with pytest.raises(ValueError, match="more than 20 bytes, the most that is taken; scale"):
        read_images([path if name == "path" else content + b"x"])


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        ("gone.png", FileNotFoundError, r"an image cannot be read \(No such file"),
        (".", OSError, "an image cannot be read"),
        ("A" * 100_000, OSError, "an image cannot be read"),
        ("https://example.com/cat.png?key=secret", ValueError, "are not fetched; pass the bytes"),
        ("s3://secret/cat", ValueError, "addresses are not fetched; pass the bytes"),
        ("data:image/png;base64,secret", ValueError, "addresses are not fetched; pass the bytes"),
        ("a\0b.png", ValueError, r"can name no file \(.*null.*; give the path of a file"),
        (1.5, TypeError, "the path of a file or as bytes, not float"),
    ],
    ids=["missing", "directory", "endless", "web", "bucket", "data", "null", "number"],
)
def test_a_source_that_cannot_be_read_is_refused_in_clear_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any, kind: type[Exception], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=words) as caught:
        read_images([source])
    assert len(str(caught.value)) < 500
    assert "secret" not in str(caught.value)
    assert kind is not FileNotFoundError or getattr(caught.value, "filename", "") == source


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_bytes_of_any_kind_are_taken(kind: Callable[[bytes], Any]) -> None:
    content = picture(b"same")
    (image,) = read_images([kind(content)])
    assert image == Image.from_bytes(content)
    assert type(image.blob.data) is bytes


def test_none_means_no_images() -> None:
    assert read_images(None) == ()


def test_any_iterable_of_images_is_taken() -> None:
    assert len(read_images(picture(name) for name in (b"a", b"b"))) == 2


@pytest.mark.parametrize(
    "given", ["a.png", b"GIF89a", Path("a.png"), bytearray(b"GIF89a"), 5, {"a.png": 1}], ids=repr
)
def test_a_single_image_is_not_taken_for_a_list(given: Any) -> None:
    with pytest.raises(TypeError, match=r"images must be a list, not one .*images=\[\.\.\.\]"):
        read_images(given)


@pytest.mark.parametrize(
    ("size", "label"),
    [
        (812, "[image/png 812 B sha256:00000000]"),
        (12_345, "[image/png 12.3 kB sha256:00000000]"),
        (2_345_678, "[image/png 2.3 MB sha256:00000000]"),
    ],
)
def test_a_label_says_type_size_and_the_beginning_of_the_digest(size: int, label: str) -> None:
    assert Image("image/png", Blob("0" * 64, size)).label == label


def test_images_are_equal_with_and_without_their_bytes() -> None:
    whole = Image.from_bytes(picture(b"x"))
    bare = Image(whole.mime, whole.blob.without_data(), "it is missing")
    assert bare == whole
    assert hash(bare) == hash(whole)
    assert repr(bare) == repr(whole)
    assert whole != Image.from_bytes(picture(b"y"))


def test_repr_shows_no_content(tmp_path: Path) -> None:
    path = tmp_path / "private-name.png"
    path.write_bytes(picture(b"canary"))
    shown = repr(Image.from_path(path))
    assert "canary" not in shown
    assert "private-name" not in shown


def test_an_image_can_be_pickled() -> None:
    image = Image.from_bytes(picture(b"x"))
    assert pickle.loads(pickle.dumps(image)).blob.data == image.blob.data


@pytest.mark.parametrize(
    ("absent", "why"),
    [(None, "only its digest is known"), (f"the file {os.sep}x is missing", "x is missing")],
)
def test_bytes_that_are_not_there_cannot_be_sent(absent: str | None, why: str) -> None:
    image = Image("image/png", Blob("0" * 64, 5), absent)
    with pytest.raises(PersistenceError, match=rf"\[image/png 5 B sha256:00000000\]: .*{why}"):
        image.to_data_url()
