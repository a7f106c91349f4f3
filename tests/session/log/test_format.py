"""What the lines of a session file say comes back as it was, or is refused by name."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import EnumType
from functools import cache
from inspect import signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from rath._core.blobs import Blob
from rath._core.vector import Vector
from rath.backend.abc import BackendSandboxSpec
from rath.errors import PersistenceError, SessionDamaged
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.chat_response import RathLLMTokenUsage
from rath.llm.credentials import OPENAI, Account, find_account
from rath.llm.prices import Cost
from rath.session import RowId
from rath.session.chunk import ChunkRow, user_text_chunk
from rath.session.events import (
    AgentRows,
    AncestorRange,
    CallSetup,
    Failed,
    Finished,
    Header,
    OutcomeChange,
    PartialText,
    Reopened,
    RoundEnd,
    Row,
    ToolSchemas,
)
from rath.session.graph.kind import LineageKind
from rath.session.log.format import Encoder
from rath.session.log.reader import LineReader, read_lines
from rath.session.outcome import (
    Completed,
    NeedsDecision,
    OutputValue,
)
from rath.session.record import (
    ModelCall,
    ToolRun,
    Verdict,
)
from tests.support.api import (
    Event,
    chained,
    decode_header,
    header_of,
    provider_from_jsonable,
)
from tests.support.evidence import evidence as call_evidence
from tests.support.session_files import operation
from tests.support.sessions import rows

SESSION = UUID(int=7)


NOW = datetime(2026, 11, 22, tzinfo=UTC)


HEADER = Header(session=SESSION, created_at=NOW, operator="implicit", kind=LineageKind.UNKNOWN)


names = st.text(st.characters(codec="utf-8"), max_size=12)


texts = st.text(st.characters(codec="utf-8"), max_size=40) | st.sampled_from(
    ["\u2028", "a\nb", '","more":1,"sum":"0123456789abcdef"}', "\x00", "é" * 50]
)


digests = st.text("0123456789abcdef", min_size=64, max_size=64)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


objects = st.dictionaries(names, json_values, max_size=3)


blobs = st.builds(Blob.from_bytes, st.binary(max_size=20)) | st.builds(
    Blob, digests, st.integers(0, 10**9)
)
KNOWN: dict[Any, st.SearchStrategy[Any]] = {
    Any: json_values,
    AncestorRange: st.builds(AncestorRange, st.uuids(), st.just(0), st.integers(0, 99), digests),
    BackendSandboxSpec: st.builds(BackendSandboxSpec, working_dir=texts, timeout=st.none()),
    Blob: blobs,
    ChunkRow: st.builds(ChunkRow.with_id, rows, st.builds(RowId, st.uuids(), st.integers(0, 99))),
    Decimal: st.decimals(0, 9, places=3),
    NoneType: st.none(),
    UUID: st.uuids(),
    bool: st.booleans(),
    datetime: st.datetimes(timezones=st.just(UTC)),
    float: st.floats(0, 1e6),
    int: st.integers(0, 10**6),
    str: texts,
}


@cache
def of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type, with all of their fields."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in KNOWN:
        return KNOWN[kind]
    if origin is Vector:
        return st.nothing()  # a log has the length of what it was, or its ids
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (Union, UnionType):
        return st.one_of(*map(of, args))
    if origin is Sequence or args[-1:] == (Ellipsis,):
        return st.lists(of(args[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of, args))
    if origin in (dict, Mapping):
        return objects
    if isinstance(kind, EnumType):
        return st.sampled_from(list[Any](kind))
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: of(hints[name]) for name in signature(kind).parameters})


def of_session(made: Header) -> Header:
    """The header of our session; what its extras are besides text becomes text."""
    extras = tuple((name, str(value)) for name, value in made.extras)
    operator = made.operator or "fork"
    return structs.replace(made, session=SESSION, operator=operator, extras=extras)


headers = of(Header).map(of_session)
trailers = of(Finished)
ADDED = Header, Finished, AgentRows, ToolSchemas, CallSetup
lines = st.one_of(*(of(kind) for kind in get_args(Event) if kind not in ADDED))


def log_of(groups: Sequence[Sequence[Event]], header: Header = HEADER) -> bytes:
    encoder = Encoder(SESSION)
    return b"".join(encoder.add(*group).data for group in [[header], *groups])


def unnamed(found: Sequence[Event]) -> list[Event]:
    return [line for line in found if not isinstance(line, AgentRows | ToolSchemas | CallSetup)]


def reply(data: bytes) -> list[Any]:
    """Return the lines without those that were added for what operations name."""
    return unnamed(read_lines(data, "log").lines)


@settings(max_examples=300)
@given(headers, st.lists(st.lists(lines, min_size=1, max_size=3), max_size=4), trailers)
def test_every_line_comes_back_as_it_was(
    header: Header, groups: list[list[Event]], trailer: Finished
) -> None:
    groups = [*groups, [trailer]]
    assert reply(log_of(groups, header)) == [header, *(line for group in groups for line in group)]


@settings(max_examples=100)
@given(st.lists(st.lists(lines, min_size=1, max_size=3), max_size=4), st.data())
def test_pieces_give_the_same_events_as_one_text(
    groups: list[list[Event]], data: st.DataObject
) -> None:
    log = log_of(groups)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=5)))
    reader, found = LineReader("log"), list[Event]()
    for start, stop in zip([0, *cuts], [*cuts, len(log)], strict=True):
        found += reader.feed(log[start:stop])
    assert tuple(found) == read_lines(log, "log").lines
    assert reader.n_good == len(log)


def test_writing_goes_on_where_reading_ended_and_repeats_no_rows_of_an_agent() -> None:
    head, tool = (user_text_chunk("be good"),), RathLLMFunctionTool("f", {"type": "object"})
    run = operation(SESSION, head=head, tools=(tool,))
    log = log_of([[run], [structs.replace(run, id=UUID(int=8))]])
    last = structs.replace(run, id=UUID(int=9))
    log += read_lines(log, "log").reader.encoder().add(last).data
    assert reply(log)[-1] == last
    assert log.count(b'"event":"agent_rows"') == log.count(b'"event":"tool_schemas"') == 1


def model_call() -> ModelCall:
    return ModelCall(
        operation=SESSION,
        purpose="turn",
        status="done",
        seen=None,
        evidence=call_evidence(None),
    )


def tool_run(**more: Any) -> ToolRun:
    return ToolRun(
        operation=SESSION, call_id="a", tool="f", origin="built-in", schema_digest=None,
        effects_declared="idempotent", arguments={}, sandbox=None, status="done", error_kind=None,
        exit_code=None, signal=None, duration_ms=1.0, file_effects=(), **more,
    )  # fmt: skip


RUN = tool_run(shown=Blob.from_bytes(b"x"), full=None)


def verdict(score: float) -> Verdict:
    return Verdict(operation=SESSION, name="n", judge="j", passed=True, report="", score=score)


def priced() -> ModelCall:
    made = model_call()
    made.evidence.settle_cost(Cost(Decimal("0.25"), "a list 1.0", "openai/gpt"))
    return made


@pytest.mark.parametrize("number", [math.inf, -math.inf, 10**400, -(2**70), 1e308, 5e-324])
def test_any_number_comes_back(number: float) -> None:
    run = structs.replace(RUN, arguments={"n": [number, {"m": number}]})
    row = Row(0, ChunkRow("user", {"n": number}, RowId(SESSION, 0)))
    events: list[Event] = [row, run, verdict(number)]
    assert reply(log_of([events]))[1:] == events


def test_odd_values_come_back_as_what_they_mean() -> None:
    zone = timezone(timedelta(hours=3))
    no_number, cost, run, *others = reply(
        log_of([[
            verdict(math.nan),
            priced(),
            structs.replace(RUN, at=NOW.replace(tzinfo=None)),
            PartialText(SESSION, "\ud800"),
            OutcomeChange(Completed(OutputValue(RathLLMTokenUsage(1, 2, 3)))),
            Reopened(NOW.astimezone(zone)),
        ]])
    )[1:]  # fmt: skip
    assert math.isnan(no_number.score)
    assert cost.evidence.cost == priced().evidence.cost
    assert run.at == NOW
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert others[0] == PartialText(SESSION, "\ud800")
    assert others[1].outcome.output.value.items() >= usage.items()
    assert others[2] == Reopened(NOW)


@pytest.mark.parametrize(
    "event",
    [
        OutcomeChange(Completed(OutputValue(object()))),
        *(
            structs.replace(RUN, arguments={"a": value})
            for value in (b"x", NOW, Decimal(1), SESSION, {1, "a"}, object())
        ),
    ],
)
def test_what_has_no_json_form_is_refused_where_it_is_written(event: Event) -> None:
    with pytest.raises(TypeError, match=r"no JSON form|not supported between"):
        Encoder(SESSION).add(HEADER, event)


class OwnText(str):
    """Text of somebody's own class."""


class OwnNumber(float):
    """A number of somebody's own class."""


def test_texts_and_numbers_of_own_classes_are_written_as_such() -> None:
    changes = {"tool": OwnText("f"), "duration_ms": OwnNumber(2), "arguments": {"a": OwnText("b")}}
    run = structs.replace(RUN, **changes)
    (found,) = reply(log_of([[run]]))[1:]
    assert (found.tool, found.duration_ms, found.arguments) == ("f", 2.0, {"a": "b"})


def altered(log: bytes, old: bytes, new: bytes) -> bytes:
    """Return a log whose last line was changed and given a checksum that fits."""
    *first, last = [each.rpartition(b',"sum"')[0] + b"}" for each in log.splitlines()]
    assert old in last
    return chained([*first, last.replace(old, new)], "", is_compact=True)[0]


@pytest.mark.parametrize(
    ("line", "change", "problem"),
    [
        (PartialText(SESSION, "b"), (b'"partial"', b'"dream"'), "unknown event 'dream'"),
        (PartialText(SESSION, "b"), (b'"b"', b"3"), "malformed partial: text: expected str, found"),
        (PartialText(SESSION, "b"), (b',"text":"b"', b""), "partial: member 'text' is missing"),
        (RoundEnd(0, ()), (b"[]", b"3"), "malformed round: results: expected array, found 3"),
        (RoundEnd(0, ()), (b"[]", b"]["), "invalid JSON"),
        (Failed("failed", "", NOW), (b'"failed","err', b'"felt","err'), "expected one of 'failed'"),
        (OutcomeChange(Completed()), (b"Completed", b"Perfect"), "outcome.*found .*'Perfect'"),
        (tool_run(shown=Blob("0", 1), full=None), (b"tool_run", b"rune"), "'rune'"),
        (tool_run(shown=Blob("0", 1)), (b'"size":1', b'"size":"1"'), "shown: .*sha256 and a size"),
        (model_call(), (b'"purpose":"turn"', b'"purpose":"fun"'), "expected one of 'turn'"),
        (model_call(), (b'"setup":"', b'"setup":"x'), "names 'x.*', which is in no line before"),
        (Row(0, user_text_chunk("a")), (b'"index":0', b'"index":"0"'), "index: expected int"),
        (Row(0, user_text_chunk("a")), (b'{"content":"a"}', b'["a"]'), "payload: expected object"),
        (Row(0, user_text_chunk("a")), (b'"a"', b'"\xff"'), "invalid JSON: 'utf-8'"),
        (Row(0, user_text_chunk("a")), (b'"a"', b'"\\ud8"'), "invalid JSON"),
        (Row(0, user_text_chunk("a")), (b'"a"', b"9" * 5000), "invalid JSON: Exceeds the limit"),
        (Row(0, user_text_chunk("a")), (b'"user"', b'""'), "bad chunk kind"),
    ],
)
def test_an_unknown_line_is_refused(line: Event, change: tuple[bytes, bytes], problem: str) -> None:
    with pytest.raises(SessionDamaged, match="log:[23]: .*" + problem):
        read_lines(altered(log_of([[line]]), *change), "log")


@pytest.mark.parametrize("value", [b"1e999", b"9" * 300, b"NaN", '"\u00e9\u4fee"'.encode()])
def test_a_payload_that_is_parsed_later_says_what_stands_there(value: bytes) -> None:
    log = altered(log_of([[Row(0, user_text_chunk("a"))]]), b'"a"', value)
    (event,) = reply(log)[1:]
    row: ChunkRow = event.row
    assert repr(row.payload) == repr({"content": json.loads(value)})
    assert (row.images, row.kind_name) == ((), "user")


def test_nothing_but_late_entries_and_a_reopening_follow_a_trailer() -> None:
    end = Finished(closed_at=NOW, n_rows=0, n_entries=0, usage=None, outcome=Completed())
    late = OutcomeChange(NeedsDecision(SESSION, ()))
    again: list[list[Event]] = [
        [end],
        [late],
        [Reopened(NOW)],
        [PartialText(SESSION, "x")],
        [end],
    ]
    assert len(reply(log_of(again))) == 6
    with pytest.raises(SessionDamaged, match="log:3: partial after the end"):
        read_lines(log_of([[end], [PartialText(SESSION, "x")]]), "log")


OLD_HEADER: dict[str, Any] = {
    "record_type": "header",
    "schema_version": 1,
    "id": str(UUID(int=1)),
    "created_at": "2026-11-21T21:36:38.440597+00:00",
}


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
    assert getattr(header_of(decode_header({**OLD_HEADER, field: value})), field) == expected


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
        decode_header({**OLD_HEADER, field: value})


# The provider of a session.


def account_of(reply: dict[str, Any]) -> Account:
    """Return whom a provider that a header names would call, and with which key."""
    provider = provider_from_jsonable(reply)
    assert provider is not None
    return find_account(
        provider, kind="openai", variables=OPENAI, default_base_url="https://default.example"
    )


CONFIG = {"model": "x", "base_url": "https://known.example/v1", "api_key": "kept"}


FILE, DEFAULT = "https://file.example/v1", "https://default.example"


@pytest.mark.parametrize(
    ("reply", "key", "base_url"),
    [
        ({"model": "m", "temperature": 0.5}, "from-the-environment", DEFAULT),
        ({"model": "m", "base_url": FILE}, "", FILE),
        ({"base_url": FILE, "config": "gone"}, "", FILE),
        ({"base_url": FILE, "config": "mine"}, "", FILE),
        ({"base_url": CONFIG["base_url"], "config": "mine"}, "kept", CONFIG["base_url"]),
    ],
    ids=["no endpoint", "of the file", "entry is gone", "of another entry", "of the entry"],
)
def test_an_endpoint_that_a_file_names_gets_no_key_but_its_own(
    home: Path, monkeypatch: pytest.MonkeyPatch, reply: dict[str, Any], key: str, base_url: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
    if "config" in reply:
        home.mkdir()
        (home / "config.json").write_text(json.dumps({"llm": {"providers": {"mine": CONFIG}}}))
    account = account_of(reply)
    assert (account.api_key.value, account.base_url.value) == (key, base_url)
    assert account.from_project == (base_url == FILE)
    provider = provider_from_jsonable(reply)
    assert provider is not None
    assert provider.base_url == reply.get("base_url")


@pytest.mark.parametrize(
    "reply",
    [{"model": 1}, {"timeout": -1}, {"output_mode": "?"}, {"base_url": "u", "seed": "x"}],
    ids=str,
)
def test_what_is_no_provider_is_none(reply: dict[str, Any]) -> None:
    assert provider_from_jsonable(reply) is None


def test_rows_of_a_log_are_read_only_whatever_of_them_is_read_first() -> None:
    payload = {"content": "hi", "tool_calls": [{"function": {"name": "f"}}]}
    written = ChunkRow("assistant", payload, RowId(SESSION, 0))
    log = log_of([[Row(0, written)]])
    for first in ("digest", "content", "payload"):
        (event,) = reply(log)[1:]
        row: ChunkRow = event.row
        assert getattr(row, first) == getattr(written, first)
        assert (row, row.digest, row.content) == (written, written.digest, written.content)
        assert pickle.loads(pickle.dumps(row)) == written
        assert row.payload is row.payload
        with pytest.raises(TypeError, match="read-only"):
            row.payload["tool_calls"][0]["function"]["name"] = "g"
