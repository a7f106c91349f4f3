"""Notes of ours as files of the server, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.memory.adapters.openviking import client
from rath.memory.driver import InvalidUri

ALICE = client.Addresses("alice")

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1)
plain = names.filter(lambda name: name not in {".", ".."})
odd = st.text(st.sampled_from("=%:? \\.\t0123456789ABCDEFé\u3000\u2028"), min_size=1)


@given(st.one_of(names, odd))
def test_a_name_comes_back(name: str) -> None:
    assert client.unescape_name(client.escape_name(name)) == name


@given(st.one_of(names, odd))
def test_a_name_on_the_wire_holds_nothing_that_the_server_changes(name: str) -> None:
    kept = client.escape_name(name)
    assert not any(char.isspace() or char in ":?\\" for char in kept)


@pytest.mark.parametrize("name", ["tea", "report.v1", "with_score-2", "鷺", "a=b", "100%"])
def test_ordinary_names_stay(name: str) -> None:
    assert client.escape_name(name) == name


@pytest.mark.parametrize("name", ["a=FF", "=C3"])
def test_what_looks_like_an_escape_of_somebody_else_stays(name: str) -> None:
    assert client.unescape_name(name) == name


@given(st.sampled_from(["user", "agent", "session", "resources"]), st.lists(plain, min_size=1))
def test_a_note_comes_back(scope: str, segments: list[str]) -> None:
    if scope == "user" and segments[0] in {"alice", "sessions"}:
        return  # other names of the same places
    uri = f"memory://{scope}/{'/'.join(segments)}"
    assert ALICE.public(ALICE.note(uri)) == uri
    assert ALICE.public(ALICE.place(uri), is_dir=True) == uri


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("memory://user/memories/a", "viking://user/alice/memories/a"),
        ("viking://user/memories/a", "viking://user/alice/memories/a"),
        ("viking://user/alice/memories/a", "viking://user/alice/memories/a"),
        ("memory://user", "viking://user/alice"),
        ("memory://session/s1", "viking://user/alice/sessions/s1"),
        ("memory://agent/a b", "viking://agent/a=20b"),
        ("memory://resources", "viking://resources"),
    ],
)
def test_places_on_the_server(uri: str, address: str) -> None:
    assert ALICE.place(uri) == address


@pytest.mark.parametrize(
    "uri",
    ["nowhere", "https://host/x", "memory://", "memory://elsewhere/x", "memory://user/../x",
     "memory://user//x", "memory://user/x/", "memory://user/./x", "memory:/"],
)  # fmt: skip
def test_what_is_no_place_is_refused(uri: str) -> None:
    with pytest.raises(InvalidUri):
        ALICE.place(uri)


def test_a_scope_is_no_note() -> None:
    with pytest.raises(InvalidUri, match="is a scope"):
        ALICE.note("memory://user")


@pytest.mark.parametrize(
    "address", ["viking://user/bob/x.md", "viking://user", "viking://system/x", "viking://temp/x"]
)
def test_what_is_of_others_has_no_uri(address: str) -> None:
    assert ALICE.public(address) is None


def test_only_notes_lose_their_suffix() -> None:
    assert ALICE.public("viking://agent/code.py") == "memory://agent/code.py"
    assert ALICE.public("viking://agent/odd.md", is_dir=True) == "memory://agent/odd.md"
    assert ALICE.public("viking://agent/.md") == "memory://agent/.md"


def test_memories_are_known_by_their_directory() -> None:
    assert client.has_server_fields("viking://user/alice/memories/x.md")
    assert not client.has_server_fields("viking://agent/memories")
