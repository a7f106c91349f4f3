"""Addresses of notes."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.memory.uri import (
    MEMORY_SCOPES,
    is_memory_root,
    is_memory_uri,
    memory_uri_prefix,
    names_place,
    note_uri,
    to_public_uri,
    to_wire_uri,
    valid_memory_uri,
)

tails = st.builds("{}/{}".format, st.sampled_from(MEMORY_SCOPES), st.text())


@given(tails)
def test_wire_and_public_form_lead_back_to_each_other(tail: str) -> None:
    assert to_wire_uri(f"memory://{tail}") == f"viking://{tail}"
    assert to_public_uri(f"viking://{tail}") == f"memory://{tail}"


@given(st.text())
def test_what_is_no_memory_uri_stays_as_it_is(text: str) -> None:
    other = "x" + text
    assert (to_wire_uri(other), to_public_uri(other)) == (other, other)
    assert not is_memory_uri(other)


@pytest.mark.parametrize(
    ("uri", "prefix", "valid"),
    [
        ("memory://user/a", "memory://", True),
        ("viking://agent", "viking://", True),
        ("memory:/", "memory:/", True),
        ("viking:/", "viking:/", True),
        ("memory://user/../a", "memory://", True),
        ("memory://", "memory://", False),
        ("memory://elsewhere/a", "memory://", False),
        ("memory:/user", None, False),
        ("file:///a", None, False),
        ("", None, False),
    ],
)
def test_prefix_and_validity(uri: str, prefix: str | None, valid: bool) -> None:
    assert (memory_uri_prefix(uri), valid_memory_uri(uri)) == (prefix, valid)


def test_roots_are_translated_too() -> None:
    assert to_wire_uri("memory:/") == "viking:/"
    assert to_public_uri("viking:/") == "memory:/"


@given(st.text(st.characters(codec="utf-8")))
def test_a_note_is_named_by_its_content(content: str) -> None:
    digest = sha256(content.encode()).hexdigest()
    assert note_uri("user", "facts", content) == f"memory://user/memories/facts/{digest[:8]}"
    assert note_uri("user", "facts", content, digits=64).endswith(f"/{digest}")


def test_a_lone_surrogate_does_not_keep_a_note_from_its_name() -> None:
    assert note_uri("user", "facts", "a\ud800") == note_uri("user", "facts", "a\ufffd")


@pytest.mark.parametrize(
    "uri", ["memory://user", "memory://user/a b", "viking://agent/x/y.z", "memory://session/笔记"]
)
def test_a_place_is_below_a_scope(uri: str) -> None:
    assert names_place(uri)


@pytest.mark.parametrize("tail", ["", "user/", "user//x", "user/./x", "user/x/..", "other/x", "/"])
def test_segments_that_name_nothing_make_no_place(tail: str) -> None:
    assert not names_place(f"memory://{tail}")


@pytest.mark.parametrize("uri", ["memory:/", "viking:/"])
def test_a_root_is_above_all_places(uri: str) -> None:
    assert is_memory_root(uri)
    assert not names_place(uri)


@pytest.mark.parametrize("uri", ["memory://", "user/x", "https://user/x"])
def test_what_is_no_memory_uri_is_neither_root_nor_place(uri: str) -> None:
    assert not is_memory_root(uri)
    assert not names_place(uri)
