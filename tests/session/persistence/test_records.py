"""Lines of a session file."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.backend.abc import BackendSandboxSpec
from rath.errors import PersistenceError
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session.chunk import (
    ChunkKind,
    ChunkRow,
    assistant_turn_chunk,
    system_text_chunk,
    tool_feedback_chunk,
    user_text_chunk,
)
from rath.session.graph.kind import LineageKind
from rath.session.persistence.records import (
    PersistedSessionHeader,
    decode_chunk,
    decode_header,
    decode_line,
    encode_chunk,
    encode_header,
    encode_line,
    encode_trailer,
    usage_from_jsonable,
    usage_to_jsonable,
)

separators = st.sampled_from("\u2028\u2029\x85\x0c\x0b\x1c\r\n\t\0")
any_text = st.text(st.characters() | separators)  # surrogates included
# Python joins escaped surrogates that form a pair, so only lone ones can come back as they were.
plain_text = st.text(st.characters(exclude_categories=["Cs"]) | separators | st.just("\udc80"))
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | plain_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_text, inner, max_size=3),
    max_leaves=8,
)
kinds = st.sampled_from([*ChunkKind, "verdict", "\u2028"])
raw_rows = st.builds(ChunkRow, kinds, st.dictionaries(plain_text, json_values, max_size=4))
built_rows = st.one_of(
    st.builds(user_text_chunk, any_text),
    st.builds(system_text_chunk, any_text),
    st.builds(tool_feedback_chunk, any_text, any_text, any_text),
    st.builds(assistant_turn_chunk, tool_calls=st.none(), content=st.none() | any_text),
)
extras = st.lists(st.tuples(plain_text, json_values), max_size=3).map(tuple)
specs = st.builds(
    BackendSandboxSpec,
    image=st.none() | plain_text,
    entrypoint=st.none() | st.lists(plain_text).map(tuple),
    env=st.none(),
    timeout=st.none() | st.integers(0, 10**9).map(lambda ms: timedelta(milliseconds=ms)),
    working_dir=st.none() | plain_text,
)
headers = st.builds(
    PersistedSessionHeader,
    schema_version=st.just(1),
    id=st.uuids(),
    created_at=st.datetimes(timezones=st.just(UTC)),
    parent_session_ids=st.lists(st.uuids(), max_size=3).map(tuple),
    lineage_operator=plain_text.filter(bool),
    lineage_kind=st.sampled_from(LineageKind),
    lineage_extras=extras,
    sandbox_backend=st.none() | plain_text,
    sandbox_spec=st.none() | specs,
    sandbox_handle_id=st.none() | plain_text,
)
counts = st.integers(min_value=0)
HEADER: dict[str, Any] = {
    "record_type": "header",
    "schema_version": 1,
    "id": str(UUID(int=1)),
    "created_at": "2026-11-21T21:36:38.440597+00:00",
}


@given(raw_rows | built_rows, counts)
def test_row_comes_back_from_its_line(row: ChunkRow, index: int) -> None:
    line = encode_line(encode_chunk(index, row))
    assert line.index(b"\n") == len(line) - 1
    assert decode_chunk(decode_line(line)) == row


@given(headers)
def test_header_comes_back_from_its_line(header: PersistedSessionHeader) -> None:
    assert decode_header(decode_line(encode_line(encode_header(header)))) == header


@given(st.none() | st.builds(RathLLMTokenUsage, counts, counts, counts))
def test_usage_comes_back(usage: RathLLMTokenUsage | None) -> None:
    assert usage_from_jsonable(usage_to_jsonable(usage)) == usage


@given(st.binary())
def test_any_bytes_are_a_record_or_a_persistence_error(line: bytes) -> None:
    with contextlib.suppress(PersistenceError):
        assert isinstance(decode_line(line), dict)


@given(st.dictionaries(st.sampled_from(sorted(HEADER)), json_values))
def test_any_header_is_decoded_or_a_persistence_error(damage: dict[str, Any]) -> None:
    with contextlib.suppress(PersistenceError):
        assert isinstance(decode_header({**HEADER, **damage}), PersistedSessionHeader)


def test_keys_stand_in_the_documented_order() -> None:
    header = decode_header(HEADER)
    assert list(encode_header(header)) == [
        "record_type",
        "schema_version",
        "id",
        "created_at",
        "parent_session_ids",
        "lineage_operator",
        "lineage_kind",
        "lineage_extras",
        "sandbox_backend",
        "sandbox_spec",
        "sandbox_handle_id",
    ]
    assert list(encode_chunk(0, user_text_chunk("x"))) == [
        "record_type",
        "index",
        "kind",
        "payload",
    ]
    assert list(encode_trailer(n_rows=1, usage=None)) == [
        "record_type",
        "closed_at",
        "final_chunk_count",
        "cumulative_usage",
    ]


def test_characters_are_written_as_they_are() -> None:
    assert "世界".encode() in encode_line({"a": "世界"})


def test_lone_surrogate_is_written_as_an_escape() -> None:
    line = encode_line({"a": "世\ud800"})
    assert json.loads(line.decode("ascii")) == {"a": "世\ud800"}


def test_mapping_inside_a_payload_is_written_as_an_object() -> None:
    row = ChunkRow("x", {"inner": ChunkRow("y", {"a": 1}).payload})
    assert decode_chunk(decode_line(encode_line(encode_chunk(0, row)))).payload == {
        "inner": {"a": 1}
    }


def test_value_without_json_form_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="bytes has no JSON form"):
        encode_line({"a": b"x"})


def test_record_that_nests_too_deep_is_a_persistence_error() -> None:
    with pytest.raises(PersistenceError, match="invalid JSON"):
        decode_line(b"[" * 100_000)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("lineage_kind", "op_new", LineageKind.UNKNOWN),
        ("lineage_kind", 7, LineageKind.UNKNOWN),
        ("parent_session_ids", ["x", str(UUID(int=2)), 3], (UUID(int=2),)),
        ("lineage_extras", [["a", 1], ["b"], 3, ["c", None]], (("a", 1), ("c", None))),
        ("lineage_extras", "x", ()),
        ("lineage_operator", None, "implicit"),
        ("created_at", "2026-01-01T00:00:00", datetime(2026, 1, 1, tzinfo=UTC)),
    ],
)
def test_header_is_read_forgivingly(field: str, value: object, expected: object) -> None:
    assert getattr(decode_header({**HEADER, field: value}), field) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "x"),
        ("id", None),
        ("created_at", "yesterday"),
        ("created_at", None),
        ("sandbox_spec", {"timeout_seconds": 1e300}),
        ("sandbox_spec", {"timeout_seconds": "x"}),
        ("sandbox_spec", [1]),
    ],
)
def test_header_without_what_it_needs_is_malformed(field: str, value: object) -> None:
    with pytest.raises(PersistenceError, match="malformed header"):
        decode_header({**HEADER, field: value})


@pytest.mark.parametrize(
    "record",
    [{"payload": {}}, {"kind": 1, "payload": {}}, {"kind": "", "payload": {}}, {"kind": "user"}],
    ids=["no-kind", "number", "empty", "no-payload"],
)
def test_bad_chunk_is_a_persistence_error(record: dict[str, Any]) -> None:
    with pytest.raises(PersistenceError, match="bad chunk"):
        decode_chunk(record)


def test_usage_of_the_wrong_type_counts_as_none_or_zero() -> None:
    assert usage_from_jsonable(None) is None
    assert usage_from_jsonable({"total_tokens": "x"}) == RathLLMTokenUsage(0, 0, 0)


def test_a_mapping_that_is_no_dict_is_written_like_one() -> None:
    line = encode_line({"a": MappingProxyType({"b": 1})})
    assert decode_line(line) == {"a": {"b": 1}}
