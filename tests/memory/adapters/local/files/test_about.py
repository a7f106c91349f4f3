"""What is told about a note, and what is left of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.memory import MemorySource
from rath.memory.adapters.local.metadata import NO_METADATA, Metadata
from rath.memory.notes import EXPIRES_AT, MODEL, ROWS, SESSION_ID

NOW = 1_000_000.0

times = st.integers(0, 100_000).map(float)
sources = st.builds(
    MemorySource,
    st.sampled_from(["s", "t", "u"]),
    st.sets(st.integers(0, 9)).map(lambda rows: tuple(sorted(rows))),
    st.none() | st.just("m"),
    st.none() | times,
)
abouts = st.builds(
    Metadata,
    st.none() | times,
    st.lists(sources, max_size=3, unique_by=lambda source: source.session_id).map(tuple),
).flatmap(
    lambda about: st.booleans().map(
        lambda flag: Metadata(about.expires_at, about.sources, flag and bool(about.sources))
    )
)


def names(about: Metadata) -> set[str]:
    """The sessions that a note comes from."""
    return {source.session_id for source in about.sources}


@given(about=abouts)
def test_telling_the_same_twice_tells_no_more(about: Metadata) -> None:
    assert about.union(about) == about


@given(old=abouts, new=abouts)
def test_all_sources_count_and_the_later_end(old: Metadata, new: Metadata) -> None:
    both = old.union(new)
    assert names(both) == names(old) | names(new)
    for now in (0.0, 1000.0, 50_000.0, 100_000.0):
        assert both.is_expired(now) == (old.is_expired(now) and new.is_expired(now))
    is_by_itself = any(each.is_remembered or not each.sources for each in (old, new))
    assert both.is_remembered == (is_by_itself and bool(both.sources))


@given(old=abouts, new=abouts)
def test_rows_of_a_session_are_united(old: Metadata, new: Metadata) -> None:
    rows: dict[str, set[int]] = {}
    for source in (*old.sources, *new.sources):
        rows.setdefault(source.session_id, set()).update(source.rows)
    assert {each.session_id: set(each.rows) for each in old.union(new).sources} == rows


@given(about=abouts)
def test_a_note_goes_with_its_last_session_unless_it_was_remembered(about: Metadata) -> None:
    left: Metadata | None = about
    for session in sorted(names(about)):
        assert left is not None
        assert left.comes_from(session)
        left = left.without(session)
        assert left is None or not left.comes_from(session)
    if about.sources:
        assert left == (Metadata(about.expires_at) if about.is_remembered else None)


def test_who_told_first_is_kept() -> None:
    old = Metadata(None, (MemorySource("s", (1,), None, 5.0),))
    new = Metadata(None, (MemorySource("s", (0,), "m", 9.0),))
    assert old.union(new).sources == (MemorySource("s", (0, 1), "m", 5.0),)


def test_metadata_tell_the_end_and_the_source() -> None:
    metadata = {
        EXPIRES_AT: "1970-01-01T01:00:09+01:00",
        SESSION_ID: "s",
        ROWS: "4,3,4",
        MODEL: "m",
        "else": "x",
    }
    about = Metadata.from_write(metadata, now=NOW)
    assert about == Metadata(9.0, (MemorySource("s", (3, 4), "m", NOW),))
    assert Metadata.from_write({"on_conflict": "keep_both"}, now=NOW) == NO_METADATA
    assert Metadata.from_write({SESSION_ID: "s"}, now=NOW).sources == (
        MemorySource("s", (), None, NOW),
    )


@pytest.mark.parametrize(
    "metadata",
    [
        {EXPIRES_AT: "tomorrow"},
        {EXPIRES_AT: "2030-01-01T00:00:00"},
        {EXPIRES_AT: ""},
        {EXPIRES_AT: 5},
        {SESSION_ID: ""},
        {SESSION_ID: "a/b"},
        {SESSION_ID: 5},
        {SESSION_ID: "s", ROWS: "1;2"},
        {SESSION_ID: "s", ROWS: "-1"},
        {SESSION_ID: "s", ROWS: "1,,2"},
        {SESSION_ID: "s", ROWS: "\u00b2"},
        {SESSION_ID: "s", ROWS: 3},
        {ROWS: "1"},
        {MODEL: "m"},
    ],
)
def test_what_cannot_be_kept_is_refused(metadata: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected|give both"):
        Metadata.from_write(metadata, now=NOW)
