"""What a tool returned with images in it: text for the model, and the images beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from rath._core.blobs import Blob
from rath.llm.image import MAX_IMAGE_BYTES, Image
from rath.session.content import MAX_RESULT_IMAGE_BYTES, MAX_RESULT_IMAGES
from tests.support.api import MAX_RESULT_CHARS, encode_result
from tests.support.images import picture, pictures

CAT, DOG = Image.from_bytes(picture(b"cat")), Image.from_bytes(picture(b"dog"))


def text_of(value: object) -> Any:
    return json.loads(encode_result(value).shown)


def many(count: int) -> list[Image]:
    return [Image.from_bytes(picture(str(number).encode())) for number in range(count)]


def test_an_image_alone_is_its_label() -> None:
    made = encode_result(CAT)
    assert (json.loads(made.shown), made.images, made.full) == (CAT.label, (CAT,), None)


@pytest.mark.parametrize("make", [list, tuple])
def test_text_and_images_stand_in_the_order_in_which_they_came(make: Any) -> None:
    made = encode_result(make(["before", DOG, {"n": 1, "cat": CAT}]))
    assert json.loads(made.shown) == ["before", DOG.label, {"n": 1, "cat": CAT.label}]
    assert made.images == (DOG, CAT)


def test_the_same_image_is_shown_once() -> None:
    made = encode_result([CAT, replace(CAT), DOG, CAT])
    assert json.loads(made.shown) == [CAT.label, CAT.label, DOG.label, CAT.label]
    assert made.images == (CAT, DOG)


leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
trees = st.recursive(
    leaves | pictures.map(Image.from_bytes),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


def labelled(value: object) -> object:
    if isinstance(value, list):
        return [labelled(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {key: labelled(item) for key, item in cast("dict[str, object]", value).items()}
    return value.label if isinstance(value, Image) else value


@given(trees)
def test_every_image_of_a_result_is_shown_and_told(value: Any) -> None:
    made = encode_result([value])
    assert json.loads(made.shown) == labelled([value])
    for image in made.images:
        assert image.label in made.shown


def test_more_images_than_are_shown_are_told() -> None:
    made = encode_result(many(MAX_RESULT_IMAGES + 1))
    *shown, last = json.loads(made.shown)
    assert shown == [image.label for image in made.images]
    assert len(made.images) == MAX_RESULT_IMAGES
    assert last.endswith(f"(not shown: the result has more than {MAX_RESULT_IMAGES} images)")


def test_more_bytes_than_are_shown_are_told_and_a_smaller_one_still_fits() -> None:
    large, same = (
        Image.from_bytes(picture(bytes([fill]) * (MAX_RESULT_IMAGE_BYTES // 2))) for fill in (1, 2)
    )
    made = encode_result([large, same, CAT])
    assert made.images == (large, CAT)
    told = json.loads(made.shown)[1]
    assert told == (
        f"{same.label} (not shown: the images of the result have more than "
        f"{MAX_RESULT_IMAGE_BYTES} bytes)"
    )


@pytest.mark.parametrize(
    ("image", "why"),
    [
        (Image("image/png", Blob(sha256(b"x").hexdigest(), 1)), "its bytes are not there"),
        (Image("image/png", Blob(sha256(b"x").hexdigest(), 1), "it was lost"), "it was lost"),
        (Image("image/svg+xml", Blob.from_bytes(b"<svg/>")), "its bytes are no image/svg"),
        (Image("image/gif", CAT.blob), "its bytes are no image/gif"),
        (Image("image/png", Blob("0" * 64, MAX_IMAGE_BYTES + 1)), "it has more than"),
    ],
    ids=["absent", "lost", "unknown", "another", "large"],
)
def test_what_no_model_can_be_shown_is_told(image: Image, why: str) -> None:
    made = encode_result({"plot": image})
    assert made.images == ()
    assert json.loads(made.shown)["plot"].startswith(f"{image.label} (not shown: {why}")


def test_images_beside_what_has_no_json_are_shown() -> None:
    value = {"loss": float("nan"), "plots": (CAT, [DOG])}
    made = encode_result(value)
    assert made.images == (CAT, DOG)
    assert json.loads(made.shown)["images"] == [CAT.label, DOG.label]


def test_an_image_in_a_model_is_shown() -> None:
    class Seen(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        place: str
        picture: Image

    made = encode_result(Seen(place="door", picture=CAT))
    assert made.images == (CAT,)
    assert json.loads(made.shown) == {"place": "door", "picture": CAT.label}


def test_images_in_a_list_that_holds_itself_are_shown() -> None:
    loop: list[object] = [CAT]
    loop.append(loop)
    assert encode_result(loop).images == (CAT,)


def test_a_result_that_is_cut_counts_its_images() -> None:
    made = encode_result(["x" * MAX_RESULT_CHARS, *many(MAX_RESULT_IMAGES + 2)])
    said = json.loads(made.shown)
    assert (said["images_shown"], said["images_not_shown"]) == (MAX_RESULT_IMAGES, 2)
    assert len(made.images) == MAX_RESULT_IMAGES


def test_a_result_without_images_says_nothing_of_them() -> None:
    assert text_of({"x": float("nan")}) == {"repr": "{'x': nan}", "type": "dict"}
    assert "images_shown" not in text_of("x" * (MAX_RESULT_CHARS + 1))
