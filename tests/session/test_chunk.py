"""Rows and tables: values that never change, with names that stay."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any, cast
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.errors import PersistenceError
from rath.llm.image import Image
from rath.session import (
    ChunkKind,
    ChunkRow,
    ChunkTable,
    RowId,
    Session,
    assistant_turn_chunk,
    format_chunk_row_brief,
    system_text_chunk,
    tool_feedback_chunk,
    user_text_chunk,
)
from rath.session.chunk import FrozenDict, FrozenList, differing_row, frozen_mapping
from rath.session.content import AssistantTurn, ToolCall, UserText
from tests.support.api import encode_content
from tests.support.images import picture, pictures
from tests.support.sessions import any_texts, row_lists, rows


@given(text=any_texts)
def test_text_is_valid_unicode_from_the_moment_it_enters(text: str) -> None:
    row = user_text_chunk(text)
    content = row.payload["content"]
    content.encode()
    assert (content != text) == row.payload.get("unicode_replaced", False)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (user_text_chunk("hi\nyou"), "[0] user: 'hi\\\\nyou'"),
        (
            user_text_chunk("hi", images=[picture()]),
            "[0] user: [image/png 8 B sha256:4c4b6a3b] 'hi'",
        ),
        (system_text_chunk("s"), "[0] system: 's'"),
        (assistant_turn_chunk(tool_calls=None, content=None), "[0] assistant: (empty)"),
        (
            ChunkRow(
                ChunkKind.ASSISTANT,
                encode_content(
                    AssistantTurn("t", (ToolCall("1", "f", "{}"), ToolCall("2", "g", "{}")))
                ),
            ),
            "[0] assistant: text='t', tools=[f, g]",
        ),
        (
            tool_feedback_chunk("1", "n", '{"a": "\\u2500"}'),
            '[0] tool_result: name=\'n\' body={"a":"─"}',
        ),
        (ChunkRow("new", {"x": 1}), """[0] new: "{'x': 1}\""""),
    ],
    ids=["user", "user with image", "system", "empty", "tools", "tool result", "unknown kind"],
)
def test_brief_line(row: ChunkRow, line: str) -> None:
    assert format_chunk_row_brief(0, row) == line


def test_a_row_with_images_names_them_and_holds_their_bytes() -> None:
    image = Image.from_bytes(picture(b"cat"))
    row = user_text_chunk("What is it?", images=[picture(b"cat")])
    named = {"sha256": image.blob.digest, "mime": "image/png", "size": 11}
    assert row.payload == {"content": "What is it?", "images": [named]}
    assert row.content == UserText("What is it?", (image,))
    assert [image.blob.data for image in row.images] == [picture(b"cat")]


@given(contents=st.lists(pictures, min_size=1, max_size=3))
def test_the_bytes_stay_with_a_row_wherever_it_goes(contents: list[bytes]) -> None:
    row = user_text_chunk("x", images=contents)
    session = Session(ChunkTable([row]))
    copies = [
        row.with_id(RowId(uuid4(), 3)),
        pickle.loads(pickle.dumps(row)),
        copy.deepcopy(row),
        session.fork().merge(Session.from_user_message("y")).chunk_table[0],
        session.detach().chunk_table[0],
    ]
    for each in copies:
        assert each == row
        assert [image.blob.data for image in each.images] == contents


@given(row=rows)
def test_a_row_made_of_a_payload_knows_its_images_by_digest(row: ChunkRow) -> None:
    bare = ChunkRow(row.kind, dict(row.payload))
    assert bare == row
    assert bare.content == row.content
    assert bare.digest == row.digest
    for image in bare.images:
        with pytest.raises(PersistenceError, match="only its digest is known"):
            image.to_base64()


@pytest.mark.parametrize(
    "images", ["a.png", {"sha256": "0" * 64}, ["a.png", 7, None], [{"url": "x"}]],
    ids=["text", "mapping", "no mappings", "other mappings"],
)  # fmt: skip
def test_images_in_the_form_of_other_programs_are_no_images(
    images: object,
) -> None:
    row = ChunkRow(ChunkKind.USER, {"content": "a", "images": images})
    assert row.images == ()
    assert row.payload["images"] == images


@pytest.mark.parametrize("digest", ["../../etc/passwd", "0" * 63, "A" * 64, 7])
def test_an_image_that_no_digest_names_is_known_and_cannot_be_sent(digest: object) -> None:
    row = ChunkRow(ChunkKind.USER, {"content": "a", "images": [{"sha256": digest}]})
    (image,) = row.images
    with pytest.raises(PersistenceError, match="does not name it by a sha256"):
        image.to_base64()


@given(row=rows)
def test_what_a_row_has_worked_out_does_not_count(row: ChunkRow) -> None:
    fresh = row.with_id(RowId(uuid4(), 0))
    assert (row.content, row.digest) == (fresh.content, fresh.digest)
    again = pickle.loads(pickle.dumps(row))
    assert again == row == fresh
    assert repr(again) == repr(row)


@given(made=row_lists)
def test_equal_tables_have_equal_hashes_and_pictures(made: list[ChunkRow]) -> None:
    one, other = ChunkTable(made), ChunkTable().extend(*made)
    assert hash(one) == hash(other)
    assert repr(one) == repr(other) == f"ChunkTable(rows={tuple(made)!r})"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


payloads = st.dictionaries(st.text(max_size=3), values, max_size=3)


WRITES_TO_A_DICT: list[Callable[[Any], object]] = [
    lambda d: d.__setitem__("a", 2),
    lambda d: d.__delitem__("a"),
    lambda d: d.__ior__({"b": 1}),
    lambda d: d.clear(),
    lambda d: d.pop("a"),
    lambda d: d.popitem(),
    lambda d: d.setdefault("b", 1),
    lambda d: d.update(b=1),
]


WRITES_TO_A_LIST: list[Callable[[Any], object]] = [
    lambda v: v.__setitem__(0, 2),
    lambda v: v.__delitem__(0),
    lambda v: v.__iadd__([1]),
    lambda v: v.__imul__(2),
    lambda v: v.append(1),
    lambda v: v.extend([1]),
    lambda v: v.insert(0, 1),
    lambda v: v.pop(),
    lambda v: v.remove(1),
    lambda v: v.clear(),
    lambda v: v.sort(),
    lambda v: v.reverse(),
]


@given(payloads)
def test_reads_like_the_plain_one(plain: dict[str, Any]) -> None:
    frozen = frozen_mapping(plain)
    assert frozen == plain
    assert json.dumps(frozen) == json.dumps(plain)
    assert pickle.loads(pickle.dumps(frozen)) == plain


@given(payloads)
def test_a_deep_copy_is_plain_all_the_way_down(plain: dict[str, Any]) -> None:
    again = copy.deepcopy(frozen_mapping(plain))
    assert again == plain
    assert _types(again) <= {dict, list, str, int, bool, type(None)}


@pytest.mark.parametrize("write", WRITES_TO_A_DICT)
def test_no_write_to_a_dict_is_let_through(write: Callable[[Any], object]) -> None:
    frozen = FrozenDict(a=1)
    with pytest.raises(TypeError, match="read-only"):
        write(frozen)
    assert frozen == {"a": 1}


@pytest.mark.parametrize("write", WRITES_TO_A_LIST)
def test_no_write_to_a_list_is_let_through(write: Callable[[Any], object]) -> None:
    frozen = FrozenList([1])
    with pytest.raises(TypeError, match="read-only"):
        write(frozen)
    assert frozen == [1]


def test_copies_can_be_written() -> None:
    frozen = frozen_mapping({"a": [1]})
    assert type(frozen.copy()) is type(copy.copy(frozen)) is type(dict(frozen)) is dict
    assert type(frozen["a"].copy()) is type(copy.copy(frozen["a"])) is list


def test_what_is_frozen_is_not_copied_again() -> None:
    frozen = frozen_mapping({"a": [1], "b": (1, [2])})
    assert frozen_mapping(frozen) is frozen
    assert frozen_mapping(dict(frozen))["a"] is frozen["a"]
    assert type(frozen["b"][1]) is FrozenList


def _types(value: Any) -> set[type[Any]]:
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = [*cast("dict[str, object]", value).values()]
    elif isinstance(value, list):
        inner = [*cast("list[object]", value)]
    own: type[Any] = type(cast("object", value))
    return {own}.union(*[_types(item) for item in inner])


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (["be kind", "be"], ["be kind"], ("row 1 (system) 'be'", "no row 1")),
        (["x" * 50 + "a"], ["x" * 50 + "b"], ("row 0 (system) '...", "xxxxb'")),
        (
            ["key sk-proj-" + "a1" * 20],
            ["key"],
            ("row 0 (system) 'key ***", "row 0 (system) 'key'"),
        ),
        (["a" + "z" * 300], ["b"], ("row 0 (system) 'azz", "row 0 (system) 'b'")),
    ],
    ids=["more rows", "far into a row", "a key", "long"],
)
def test_the_first_differing_row_is_shortened(
    before: list[str], now: list[str], expected: tuple[str, str]
) -> None:
    shown = differing_row(map(system_text_chunk, before), map(system_text_chunk, now))
    assert expected[0] in shown[0]
    assert expected[1] in shown[1]
    assert max(map(len, shown)) < 120
