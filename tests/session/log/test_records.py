"""What the JSON of a session file means."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.errors import PersistenceError
from rath.llm.credentials import Account, find_account
from rath.llm.provider import Provider
from rath.llm.variables import OPENAI
from rath.session.chunk import (
    ChunkKind,
    ChunkRow,
    assistant_turn_chunk,
    system_text_chunk,
    tool_feedback_chunk,
    user_text_chunk,
)
from rath.session.events import Header, Row
from rath.session.graph.kind import LineageKind
from rath.session.log.format import Encoder
from rath.session.log.reader import read_lines
from rath.session.log.records import (
    PersistedSessionHeader,
    header_of,
    provider_from_jsonable,
)
from tests.support.api import decode_header, usage_from_jsonable

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
HEADER: dict[str, Any] = {
    "record_type": "header",
    "schema_version": 1,
    "id": str(UUID(int=1)),
    "created_at": "2026-11-21T21:36:38.440597+00:00",
}


@given(raw_rows | built_rows)
def test_row_comes_back_from_its_line(row: ChunkRow) -> None:
    header = Header(
        session=UUID(int=1),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        operator="implicit",
        kind=LineageKind.UNKNOWN,
    )
    log = Encoder(header.session).add(header, Row(0, row)).data
    assert log.count(b"\n") == 2
    last = read_lines(log, "log").lines[-1]
    assert isinstance(last, Row)
    assert last.row == row


@given(st.dictionaries(st.sampled_from(sorted(HEADER)), json_values))
def test_any_header_is_decoded_or_a_persistence_error(damage: dict[str, Any]) -> None:
    with contextlib.suppress(PersistenceError):
        assert isinstance(header_of(decode_header({**HEADER, **damage})), PersistedSessionHeader)


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
    assert getattr(header_of(decode_header({**HEADER, field: value})), field) == expected


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
    "row",
    [{"payload": {}}, {"kind": 1, "payload": {}}, {"kind": "", "payload": {}}, {"kind": "user"}],
    ids=["no-kind", "number", "empty", "no-payload"],
)
def test_bad_chunk_is_a_persistence_error(row: dict[str, Any]) -> None:
    lines = [HEADER, {"record_type": "chunk", **row}]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    with pytest.raises(PersistenceError, match=r"log:2: malformed row: .*(kind|payload)"):
        read_lines(data, "log")


def test_usage_of_the_wrong_type_counts_as_none_or_zero() -> None:
    assert usage_from_jsonable(None) is None
    counts = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), 0)
    assert usage_from_jsonable({"total_tokens": "x"}) == counts


# The provider of a session.


def account_of(said: dict[str, Any]) -> Account:
    """Return whom a provider that a header names would call, and with which key."""
    provider = provider_from_jsonable(said)
    assert provider is not None
    return find_account(
        provider, kind="openai", variables=OPENAI, default_base_url="https://default.example"
    )


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    """A key of the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
    return "from-the-environment"


def test_provider_without_an_endpoint_is_asked_as_the_environment_says(key: str) -> None:
    account = account_of({"model": "m", "temperature": 0.5})
    assert (account.api_key.value, account.base_url.value) == (key, "https://default.example")


def test_endpoint_that_a_file_names_gets_no_key_that_is_not_its_own(key: str) -> None:
    account = account_of({"model": "m", "base_url": "https://file.example/v1"})
    assert (account.api_key.value, account.from_project) == ("", True)
    assert account.base_url.value == "https://file.example/v1"
    assert key


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [("https://known.example/v1", "kept"), ("https://other.example/v1", "")],
    ids=["the same endpoint", "another endpoint"],
)
def test_entry_of_the_config_brings_its_key_to_its_own_endpoint_only(
    home: Path, base_url: str, expected: str
) -> None:
    entry = {"model": "x", "base_url": "https://known.example/v1", "api_key": "kept"}
    home.mkdir()
    (home / "config.json").write_text(json.dumps({"llm": {"providers": {"mine": entry}}}))
    said = {"model": "m", "base_url": base_url, "config": "mine"}
    assert account_of(said).api_key.value == expected
    provider = provider_from_jsonable(said)
    assert provider is not None
    assert (provider.model, provider.base_url) == ("m", base_url)


def test_entry_that_is_gone_from_the_config_leaves_the_endpoint(key: str) -> None:
    account = account_of({"base_url": "https://file.example/v1", "config": "gone"})
    assert account.base_url.value == "https://file.example/v1"
    assert (account.api_key.value, key) == ("", key)


@pytest.mark.parametrize(
    "said",
    [{"model": 1}, {"timeout": -1}, {"output_mode": "?"}, {"base_url": "u", "seed": "x"}],
    ids=str,
)
def test_what_is_no_provider_is_none(said: dict[str, Any]) -> None:
    assert provider_from_jsonable(said) is None


def test_header_cannot_bring_a_key_or_code() -> None:
    said = {"model": "m", "api_key": "k", "extra_create_args": {"x": 1}, "on_budget_exceeded": "f"}
    assert provider_from_jsonable(said) == Provider(model="m")
