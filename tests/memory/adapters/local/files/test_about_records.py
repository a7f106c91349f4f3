"""The JSON of the file beside a note."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.memory import MemorySource
from rath.memory.adapters.local.metadata import NO_METADATA, Metadata, MetadataRecord

moments = st.datetimes().map(lambda moment: (moment - moment.min).total_seconds() - 62_135_596_800)
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
rows = st.lists(st.integers(0, 10**9), max_size=4).map(tuple)
sources = st.builds(MemorySource, texts, rows, st.none() | texts, st.none() | moments)
told = st.builds(Metadata, st.none() | moments, st.lists(sources, max_size=3).map(tuple))
remembered = st.builds(Metadata, st.none(), st.tuples(sources), st.just(value=True))
abouts = told | remembered
records = st.builds(MetadataRecord, abouts) | st.builds(MetadataRecord, abouts, texts, abouts)


@given(record=records)
def test_what_is_written_is_read(record: MetadataRecord) -> None:
    again = MetadataRecord.from_json(record.to_json())
    assert MetadataRecord.from_json(again.to_json()) == again
    assert again.next_digest == record.next_digest
    for about, before in (
        (again.metadata, record.metadata),
        (again.next_metadata, record.next_metadata),
    ):
        assert about.expires_at == pytest.approx(before.expires_at, abs=1e-3)
        assert [each.session_id for each in about.sources] == [
            each.session_id for each in before.sources
        ]
        assert about.is_remembered == before.is_remembered


def test_the_file_has_the_documented_form() -> None:
    about = Metadata(60.0, (MemorySource("s", (1, 2), "m", 0.5),))
    assert json.loads(MetadataRecord(about).to_json()) == {
        "schema_version": 1,
        "expires_at": "1970-01-01T00:01:00+00:00",
        "sources": [
            {
                "session_id": "s",
                "rows": [1, 2],
                "model": "m",
                "learned_at": "1970-01-01T00:00:00.500000+00:00",
            }
        ],
    }
    assert MetadataRecord.from_json(MetadataRecord(about).to_json()) == MetadataRecord(about)
    assert MetadataRecord.from_json(MetadataRecord().to_json()) == MetadataRecord(NO_METADATA)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        "{}",
        '{"schema_version": 2, "expires_at": null, "sources": []}',
        '{"schema_version": 1, "expires_at": null}',
        '{"schema_version": 1, "expires_at": 5, "sources": []}',
        '{"schema_version": 1, "expires_at": "2030-01-01", "sources": []}',
        '{"schema_version": 1, "expires_at": "soon", "sources": []}',
        '{"schema_version": 1, "expires_at": null, "sources": [1]}',
        '{"schema_version": 1, "expires_at": null, "sources": [{"rows": []}]}',
        '{"schema_version": 1, "expires_at": null, "sources": [{"session_id": "s"}]}',
        '{"schema_version": 1, "expires_at": null, "sources": [], "next": {}}',
        "[" * 100_000,
    ],
)
def test_a_foreign_file_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        MetadataRecord.from_json(text.encode())
