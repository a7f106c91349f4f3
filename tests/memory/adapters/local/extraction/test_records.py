"""What lies beside a transcript as JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.memory.adapters.local.transcripts import CommitRecord, ExtractionRecord

counts = st.integers(min_value=0)
texts = st.text()
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    st.builds(
        CommitRecord, st.lists(counts).map(tuple), st.lists(texts).map(tuple), st.none() | texts
    )
)
def test_a_commit_is_read_as_it_was_written(record: CommitRecord) -> None:
    assert CommitRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


@given(
    st.builds(
        ExtractionRecord,
        st.sampled_from(["pending", "done", "failed"]),
        counts,
        st.lists(texts).map(tuple),
        st.none() | texts,
        st.none() | texts,
    )
)
def test_an_extraction_is_read_as_it_was_written(record: ExtractionRecord) -> None:
    assert ExtractionRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


@given(anything)
def test_what_somebody_else_wrote_is_read_as_nothing(payload: object) -> None:
    assert CommitRecord.from_json(payload) == CommitRecord()
    assert ExtractionRecord.from_json(payload) is None


@pytest.mark.parametrize("rows", [[1, -2], ["1"], [True], [1.0], {"a": 1}, None])
def test_rows_are_all_known_or_none(rows: object) -> None:
    assert CommitRecord.from_json({"rows": rows, "used_uris": ["a", 1]}).rows == ()


@pytest.mark.parametrize(
    "payload",
    [{"state": "pending"}, {"state": "odd", "attempts": 1}, {"state": "done", "attempts": -1}],
)
def test_an_extraction_needs_a_known_state_and_a_count(payload: object) -> None:
    assert ExtractionRecord.from_json(payload) is None
