"""Finding notes and transcripts by their words."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rath.memory import (
    MemoryExecutionFailure,
    MemoryFindResult,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpRead,
    MemoryOpSearch,
    MemoryOpWrite,
    MemoryReadResult,
    MemoryStore,
)
from rath.memory.adapters.local.search import fused
from tests.memory.adapters.local.conftest import Find
from tests.support.memories import hits


def note(store: MemoryStore, name: str, text: str) -> str:
    """Write a note and return its URI."""
    uri = f"memory://user/{name}"
    store.dispatch(MemoryOpWrite(uri, text))
    return uri


def say(store: MemoryStore, session: str, *texts: str) -> None:
    """Commit a transcript in which the user said something."""
    messages = tuple({"role": "user", "content": text} for text in texts)
    store.dispatch(MemoryOpCommit(session, messages))


@given(query=st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_query_is_an_error(store: MemoryStore, query: str) -> None:
    assert isinstance(store.dispatch(MemoryOpFind(query)), MemoryFindResult)


@pytest.mark.parametrize(
    "query",
    [
        'tea"',
        "tea AND nothing",
        "NEAR(tea, 2)",
        "tea*",
        "-tea",
        "notes:tea",
        "(tea",
        "^tea",
        "NOT tea",
    ],
)
def test_a_query_is_never_a_syntax(store: MemoryStore, find: Find, query: str) -> None:
    uri = note(store, "a", "tea")
    note(store, "b", "milk")
    assert find(query) == [uri]


def test_what_matches_nothing_is_no_hit(store: MemoryStore, find: Find) -> None:
    note(store, "a", "tea")
    assert find("coffee") == find("") == find("?!") == []


def test_the_note_with_more_and_rarer_words_of_the_query_comes_first(
    store: MemoryStore, find: Find
) -> None:
    for number in range(5):
        note(store, f"n{number}", f"the user said something {number}")
    best = note(store, "best", "the user likes tea")
    assert find("the user tea")[0] == best


def test_a_target_is_a_directory_or_a_note(store: MemoryStore, find: Find) -> None:
    one = note(store, "a/one", "tea")
    two = note(store, "a/b/two", "tea")
    note(store, "ab", "tea")
    assert set(find("tea", "memory://user/a")) == {one, two}
    assert find("tea", "viking://user/a/b/two") == [two]
    assert find("tea", "memory://agent") == []
    assert len(find("tea", "memory:/")) == 3


def test_a_target_that_names_no_place_is_refused(store: MemoryStore) -> None:
    result = store.dispatch(MemoryOpFind("tea", "memory://user/../x"))
    assert isinstance(result, MemoryExecutionFailure)
    assert result.kind == "invalid_uri"


def test_search_finds_what_find_does(store: MemoryStore) -> None:
    note(store, "a", "tea")
    found = store.dispatch(MemoryOpSearch("TEA", session_id="s"))
    assert found == store.dispatch(MemoryOpFind("tea"))


def test_a_snippet_is_the_beginning_of_the_note(store: MemoryStore) -> None:
    note(store, "short", "  tea\n")
    note(store, "long", "milk " * 100)
    assert hits(store, "tea")[0].snippet == "tea"
    assert hits(store, "milk")[0].snippet == ("milk " * 100)[:200] + "..."


def test_a_transcript_is_found_at_once_and_names_its_session(store: MemoryStore) -> None:
    say(store, "s-1", "unrelated", "count the words")
    (hit,) = hits(store, "count words")
    assert hit.uri.startswith("memory://session/s-1/commits/")
    assert hit.snippet == "count the words"
    read = store.dispatch(MemoryOpRead(hit.uri))
    assert isinstance(read, MemoryReadResult)
    assert "count the words" in str(read.data)


def test_only_what_user_and_assistant_reported_is_found(store: MemoryStore, find: Find) -> None:
    messages = (
        {"role": "system", "content": "alpha"},
        {"role": "tool", "content": "beta"},
        {"role": "assistant", "content": [{"type": "text", "text": "gamma"}, {"type": "image"}]},
        {"role": "user", "parts": ["delta", 3]},
        {"role": "user", "content": None},
        "epsilon",
    )
    store.dispatch(MemoryOpCommit("s", messages[:-1]))
    assert [len(find(word)) for word in ("alpha", "beta", "gamma", "delta")] == [0, 0, 1, 1]


def test_a_session_that_was_committed_often_is_one_hit(store: MemoryStore, find: Find) -> None:
    for number in range(10):
        say(store, "chatty", *["tea"] * (number + 1))
    say(store, "other", "tea and milk")
    assert len(find("tea")) == 2


def test_sessions_that_reported_the_same_are_one_hit(store: MemoryStore, find: Find) -> None:
    for number in range(6):
        say(store, f"s-{number}", "count the words")
    assert len(find("count words")) == 1


def test_transcripts_do_not_crowd_out_notes(store: MemoryStore, find: Find) -> None:
    notes = {note(store, f"n{number}", f"tea {'and more ' * 20}{number}") for number in range(4)}
    for number in range(6):
        say(store, f"s-{number}", f"tea {number}")
        say(store, f"other-{number}", f"milk {number}")
    found = find("tea", top_k=4)
    assert len(found) == 4
    assert len(notes.intersection(found)) == 2


def test_transcripts_fill_the_places_that_notes_leave(store: MemoryStore, find: Find) -> None:
    note(store, "a", "tea")
    for number in range(6):
        say(store, f"s-{number}", f"tea {number}")
    assert len(find("tea", top_k=4)) == 4


def test_a_long_note_is_found_by_its_beginning(store: MemoryStore, root: Path, find: Find) -> None:
    uri = note(store, "long", "tea " + "x" * 2_000_000 + " milk")
    assert find("tea") == [uri]
    assert find("milk") == []


def test_only_the_beginning_of_a_very_long_query_counts(store: MemoryStore, find: Find) -> None:
    store.dispatch(MemoryOpWrite("memory://user/a", "zebra"))
    assert find("x " * 100 + "zebra") == ["memory://user/a"]
    assert find("x " * 100_000 + "zebra") == []


orders = st.lists(st.lists(st.integers(0, 20), unique=True, max_size=12), max_size=4)


@given(orders)
def test_a_score_is_the_sum_of_reciprocal_ranks(lists: list[list[int]]) -> None:
    expected = {
        each: sum(1 / (60 + order.index(each) + 1) for order in lists if each in order)
        for each in {each for order in lists for each in order}
    }
    assert fused(lists) == expected


@given(st.lists(st.integers(), unique=True))
def test_one_list_keeps_its_order(order: list[int]) -> None:
    scores = fused([order])
    assert sorted(scores, key=lambda each: -scores[each]) == order
