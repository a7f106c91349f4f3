"""What the lines of a session file say comes back as it was, or is refused by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from rath._async.retry import Attempt
from rath._core.blobs import Blob
from rath._core.vector import Vector
from rath.backend.abc import BackendSandboxSpec, SandboxIdentity
from rath.backend.effects import FileEffect
from rath.errors import PersistenceError, SessionDamaged
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.chat_response import RathLLMTokenUsage
from rath.llm.exchange import CallEvidence
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
    Intent,
    OutcomeChange,
    PartialText,
    PendingResult,
    Reopened,
    RoundEnd,
    Row,
    ToolSchemas,
)
from rath.session.graph.kind import LineageKind
from rath.session.log.format import Encoder
from rath.session.log.reader import LineReader, read_lines
from rath.session.operation import Place
from rath.session.outcome import (
    BudgetExceeded,
    Cancelled,
    Completed,
    DeadlineExceeded,
    NeedsApproval,
    NeedsDecision,
    NeedsInput,
    OutputMissing,
    OutputValue,
    RoundLimit,
)
from rath.session.output_schema import OutputSpec
from rath.session.record import (
    Decision,
    Interrupt,
    ModelCall,
    Operation,
    RecalledNote,
    Seen,
    Summary,
    ToolRun,
    Verdict,
)
from tests.support.api import Event, GivenUsage, Record, chained
from tests.support.evidence import evidence as call_evidence
from tests.support.sessions import rows

SESSION = UUID(int=7)
NOW = datetime(2026, 11, 22, tzinfo=UTC)
HEADER = Header(session=SESSION, created_at=NOW, operator="implicit", kind=LineageKind.UNKNOWN)

names = st.text(st.characters(codec="utf-8"), max_size=12)
texts = st.text(st.characters(codec="utf-8"), max_size=40) | st.sampled_from(
    ["\u2028", "a\nb", '","more":1,"sum":"0123456789abcdef"}', "\x00", "é" * 50]
)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
times = st.datetimes(timezones=st.just(UTC))
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(names, json_values, max_size=3)
ids = st.uuids()
row_ids = st.builds(RowId, ids, st.integers(0, 10**6))
row_id_tuples = st.lists(row_ids, max_size=3).map(tuple)
blobs = st.builds(Blob.from_bytes, st.binary(max_size=20)) | st.builds(
    Blob, digests, st.integers(0, 10**9)
)
named_rows: st.SearchStrategy[ChunkRow] = st.builds(ChunkRow.with_id, rows, row_ids)
usages = st.builds(
    RathLLMTokenUsage,
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.none() | objects,
    st.none() | objects,
)
tools = st.builds(RathLLMFunctionTool, names, objects, st.none() | texts, st.none() | st.booleans())
tool_tuples = st.lists(tools, max_size=2).map(tuple)
durations = st.floats(0, 1e6)
spec = st.builds(OutputSpec, name=names, schema=objects, strict=st.booleans(), tool=tools)
outcomes = st.one_of(
    st.builds(Completed, st.none() | st.builds(OutputMissing, texts)),
    st.builds(Completed, st.builds(OutputValue, json_values)),
    st.builds(RoundLimit, st.integers(0, 99)),
    st.builds(DeadlineExceeded, durations),
    st.builds(Cancelled, ids),
    st.builds(NeedsApproval, ids, st.lists(names, max_size=2).map(tuple)),
    st.builds(NeedsInput, ids, texts),
    st.builds(NeedsDecision, ids, st.lists(names, max_size=2).map(tuple)),
    st.builds(
        BudgetExceeded,
        st.none() | st.integers(0, 99),
        st.integers(0, 99),
        budget_usd=st.none() | st.decimals(0, 9, places=3),
    ),
)
evidence = st.builds(
    CallEvidence,
    parameters=objects,
    origins=st.lists(st.tuples(names, names), max_size=2).map(tuple),
    attempts=st.lists(
        st.builds(Attempt, st.integers(1, 9), st.none() | texts, st.none(), durations, durations),
        max_size=2,
    ).map(tuple),
    started=times,
    first_token_ms=st.none() | durations,
    duration_ms=durations,
    usage=st.none() | usages,
    reasoning_blocks=st.lists(objects, max_size=1).map(tuple),
    partial_text=texts,
    queued_ms=durations,
)
common: dict[str, Any] = {"operation": ids, "rows": row_id_tuples, "id": ids, "at": times}
seen = st.builds(
    Seen,
    context=st.none() | texts,
    recalled=st.lists(
        st.builds(RecalledNote, texts, texts, st.none() | durations, st.integers(0, 9)), max_size=2
    ).map(tuple),
)
effects = st.builds(
    FileEffect, texts, st.sampled_from(["created", "changed"]), st.none() | blobs, st.none() | blobs
)
identities = st.builds(SandboxIdentity, names, names, names, texts, texts, st.none() | names)
tool_runs = st.builds(
    ToolRun,
    **common,
    arguments=st.none() | objects,
    sandbox=st.none() | identities,
    duration_ms=durations,
    shown=blobs,
    full=st.none() | blobs,
    file_effects=st.lists(effects, max_size=2).map(tuple),
    effect_gaps=st.lists(texts, max_size=2).map(tuple),
    decision=st.none() | ids,
)
entries = st.one_of(
    st.builds(
        Operation,
        **common,
        place=st.builds(Place, names, st.integers(0, 99), st.none() | ids, st.none() | ids),
        head=st.lists(named_rows, max_size=2).map(tuple),
        tools=tool_tuples,
        output=st.none() | spec,
        theirs=st.none(),
    ),
    st.builds(ModelCall, **common, seen=st.none() | seen, evidence=evidence),
    tool_runs,
    st.builds(Summary, **common, replaced=row_id_tuples),
    st.builds(Verdict, **common, score=st.none() | durations, report=texts),
    st.builds(Interrupt, **common, calls=st.lists(names, max_size=2).map(tuple)),
    st.builds(Decision, **common, arguments=st.none() | objects),
)
parts = st.builds(AncestorRange, ids, st.just(0), st.integers(0, 99), digests)
headers = st.builds(
    Header,
    session=st.just(SESSION),
    created_at=times,
    operator=names.filter(bool),
    kind=st.sampled_from(LineageKind),
    parents=st.lists(ids, max_size=2).map(tuple),
    extras=st.lists(st.tuples(names, texts), max_size=2).map(tuple),
    sandbox_spec=st.none() | st.builds(BackendSandboxSpec, working_dir=texts, timeout=st.none()),
    rows=st.lists(parts, max_size=2).map(tuple),
    entries=st.lists(parts, max_size=2).map(tuple),
    given=st.lists(st.builds(GivenUsage, ids, usages), max_size=2).map(tuple),
    lineage=st.none() | st.tuples(ids, ids, names),
    provider=st.none() | objects,
)
lines: st.SearchStrategy[Event] = st.one_of(
    st.builds(Row, st.integers(0, 10**6), named_rows),
    entries,
    st.builds(Intent, at=times),
    st.builds(PendingResult, run=tool_runs, shown=st.none() | named_rows),
    st.builds(RoundEnd, st.integers(0, 9), st.lists(ids, max_size=3).map(tuple)),
    st.builds(PartialText, ids, texts),
    st.builds(Failed, at=times, error=texts),
    st.builds(Reopened, at=times),
    st.builds(OutcomeChange, outcomes),
)
trailers = st.builds(
    Finished, closed_at=times, usage=st.none() | usages, outcome=outcomes,
    n_rows=st.integers(0, 99), n_entries=st.integers(0, 99),
)  # fmt: skip


def log_of(groups: Sequence[Sequence[Event]], header: Header = HEADER) -> bytes:
    encoder = Encoder(SESSION)
    return b"".join(encoder.add(*group).data for group in [[header], *groups])


def unnamed(found: Sequence[Event]) -> list[Event]:
    return [line for line in found if not isinstance(line, AgentRows | ToolSchemas | CallSetup)]


def said(data: bytes) -> list[Event]:
    """Return the lines without those that were added for what operations name."""
    found = read_lines(data, "log").lines
    return unnamed(found)


@settings(max_examples=300)
@given(headers, st.lists(st.lists(lines, min_size=1, max_size=3), max_size=4), trailers)
def test_every_line_comes_back_as_it_was(
    header: Header, groups: list[list[Event]], trailer: Finished
) -> None:
    groups = [*groups, [trailer]]
    assert said(log_of(groups, header)) == [header, *(line for group in groups for line in group)]


@settings(max_examples=100)
@given(st.lists(st.lists(lines, min_size=1, max_size=3), max_size=4), st.data())
def test_what_comes_in_pieces_is_read_as_what_comes_at_once(
    groups: list[list[Event]], data: st.DataObject
) -> None:
    log = log_of(groups)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=5)))
    reader, found = LineReader("log"), list[Event]()
    for start, stop in zip([0, *cuts], [*cuts, len(log)], strict=True):
        found += reader.feed(log[start:stop])
    assert tuple(found) == read_lines(log, "log").lines
    assert reader.n_good == len(log)


@settings(max_examples=15)
@given(st.lists(st.lists(lines, min_size=1, max_size=3), max_size=3))
def test_a_log_that_is_cut_anywhere_gives_its_whole_groups(groups: list[list[Event]]) -> None:
    log = log_of(groups)
    encoder, ends, whole = Encoder(SESSION), [0], [0]
    all_groups: list[list[Event]] = [[HEADER], *groups]
    for group in all_groups:
        ends.append(ends[-1] + len(encoder.add(*group).data))
        whole.append(whole[-1] + len(group))
    for size in range(ends[1], len(log)):
        n_groups = max(i for i, end in enumerate(ends) if end <= size)
        found = read_lines(log[:size], "log")
        assert len(unnamed(found.lines)) == whole[n_groups]
        assert (found.reader.n_good, found.n_torn) == (ends[n_groups], size - ends[n_groups])


SMALL = log_of(
    [
        [Row(0, user_text_chunk("hello").with_id(RowId(SESSION, 0)))],
        [Row(1, user_text_chunk("a").with_id(RowId(SESSION, 1))), RoundEnd(0, ())],
        [PartialText(SESSION, "b")],
    ]
)


def test_no_flipped_bit_is_believed() -> None:
    whole = read_lines(SMALL, "log").lines
    for place in range(len(SMALL)):
        for bit in range(8):
            changed = bytearray(SMALL)
            changed[place] ^= 1 << bit
            try:
                found = read_lines(bytes(changed), "log").lines
            except SessionDamaged as exc:
                assert exc.line is not None  # noqa: PT017  # a prefix is as good
            else:
                assert found == whole[: len(found)]
                assert len(found) < len(whole)


def test_a_line_that_was_taken_out_is_noticed() -> None:
    first, _, *others = SMALL.splitlines(keepends=True)
    with pytest.raises(SessionDamaged, match=r"log:2: the checksum does not fit") as caught:
        read_lines(b"".join([first, *others]), "log")
    assert (caught.value.where, caught.value.line) == ("log", 2)


def test_recovery_gives_what_stands_before_the_damage() -> None:
    damaged = SMALL.replace(b'"b"', b'"c"')
    found = read_lines(damaged, "log", recover=True)
    assert found.lines == read_lines(SMALL, "log").lines[:-1]
    assert found.problem is not None
    assert found.problem.line == 5


def test_writing_goes_on_where_reading_ended() -> None:
    head = (user_text_chunk("be good"),)
    run = Operation(operation=SESSION, kind="loop", place=Place("", 0), session=SESSION, head=head)
    log = log_of([[run]])
    encoder = read_lines(log, "log").reader.encoder()
    more = encoder.add(structs.replace(run, id=UUID(int=9)))
    assert said(log + more.data)[-1] == structs.replace(run, id=UUID(int=9))
    assert b'"event":"agent_rows"' not in more.data


def test_an_agents_rows_and_tools_stand_once() -> None:
    tool = RathLLMFunctionTool("f", {"type": "object"})
    run = Operation(
        operation=SESSION, kind="loop", place=Place("", 0), session=SESSION,
        head=(user_text_chunk("be good"),), tools=(tool,),
    )  # fmt: skip
    log = log_of([[run], [structs.replace(run, id=UUID(int=9))]])
    assert log.count(b'"event":"agent_rows"') == log.count(b'"event":"tool_schemas"') == 1


def test_the_record_of_a_second_parent_is_told_by_its_length() -> None:
    theirs: Record = Vector(
        [Operation(operation=SESSION, kind="fork", place=Place("", 0), session=SESSION)]
    )
    merge = Operation(
        operation=SESSION, kind="merge", place=Place("", 0), session=SESSION, theirs=theirs
    )
    header = structs.replace(HEADER, entries=(AncestorRange(UUID(int=8), 0, 1, "0" * 64),))
    log = log_of([[merge]], header)
    assert read_lines(log, "log").reader.decoder.n_theirs == {merge.id: 1}
    assert said(log)[-1] == structs.replace(merge, theirs=None)


def test_a_log_that_stands_alone_names_the_record_of_a_second_parent() -> None:
    theirs: Record = Vector(
        [Operation(operation=SESSION, kind="fork", place=Place("", 0), session=SESSION)]
    )
    merge = Operation(
        operation=SESSION, kind="merge", place=Place("", 0), session=SESSION, theirs=theirs
    )
    decoder = read_lines(log_of([[merge]]), "log").reader.decoder
    assert (decoder.n_theirs, decoder.theirs) == ({}, {merge.id: (theirs[0].id,)})


def test_the_bytes_of_blobs_are_handed_out_beside_the_line() -> None:
    kept, known = Blob.from_bytes(b"content"), Blob("0" * 64, 10**9)
    run = tool_run(shown=known, full=kept)
    assert Encoder(SESSION).add(HEADER, run).blobs == (kept,)


def test_a_reader_says_which_blobs_were_kept() -> None:
    asked: list[tuple[str, int, bool]] = []

    def make_blob(digest: str, size: int, is_kept: bool) -> Blob:
        asked.append((digest, size, is_kept))
        return Blob(digest, size)

    kept, known = Blob.from_bytes(b"content"), Blob("0" * 64, 10**9)
    read_lines(log_of([[tool_run(shown=known, full=kept)]]), "", make_blob=make_blob)
    assert asked == [(known.digest, 10**9, False), (kept.digest, 7, True)]


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


@pytest.mark.parametrize("cost", [None, Cost(Decimal("0.25"), "a list 1.0", "openai/gpt")])
def test_a_call_keeps_the_price_of_its_day(cost: Cost | None) -> None:
    made = model_call()
    made.evidence.settle_cost(cost)
    (line,) = said(log_of([[made]]))[1:]
    assert isinstance(line, ModelCall)
    assert line.evidence.cost == cost


def test_a_lone_surrogate_comes_back() -> None:
    assert said(log_of([[PartialText(SESSION, "\ud800")]]))[-1] == PartialText(SESSION, "\ud800")


def test_the_contents_of_an_entry_are_handed_out_whatever_its_texts_are() -> None:
    kept = Blob.from_bytes(b"content")
    run = tool_run(shown=kept, full=kept, effect_gaps=("\ud800",))
    run = structs.replace(run, tool="\udfff")
    assert Encoder(SESSION).add(HEADER, run).blobs == (kept, kept)
    assert said(log_of([[run]]))[-1] == run


@pytest.mark.parametrize("number", [math.inf, -math.inf, 10**400, -(2**70), 1e308, 5e-324])
def test_any_number_comes_back(number: float) -> None:
    run = structs.replace(tool_run(shown=Blob("0", 1)), arguments={"n": [number, {"m": number}]})
    verdict = Verdict(operation=SESSION, name="n", judge="j", passed=True, report="", score=number)
    row = Row(0, ChunkRow("user", {"n": number}, RowId(SESSION, 0)))
    events: list[Event] = [row, run, verdict]
    assert said(log_of([events]))[1:] == events


def test_what_is_no_number_comes_back_as_such() -> None:
    verdict = Verdict(
        operation=SESSION, name="n", judge="j", passed=True, report="", score=math.nan
    )
    (line,) = said(log_of([[verdict]]))[1:]
    assert isinstance(line, Verdict)
    assert line.score is not None
    assert math.isnan(line.score)


def test_an_answer_of_a_class_is_kept_as_what_can_be_read_of_it() -> None:
    done = OutcomeChange(Completed(OutputValue(RathLLMTokenUsage(1, 2, 3))))
    (line,) = said(log_of([[done]]))[1:]
    assert isinstance(line, OutcomeChange)
    assert isinstance(line.outcome, Completed)
    assert isinstance(line.outcome.output, OutputValue)
    assert line.outcome.output.value["total_tokens"] == 3


def test_what_has_no_json_form_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match="object has no JSON form"):
        Encoder(SESSION).add(OutcomeChange(Completed(OutputValue(object()))))


RUN = tool_run(shown=Blob.from_bytes(b"x"), full=None)


@pytest.mark.parametrize(
    "value", [b"x", NOW, Decimal(1), SESSION, {1, "a"}], ids=lambda v: type(v).__name__
)
def test_arguments_that_json_has_no_form_for_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"no JSON form|not supported between"):
        Encoder(SESSION).add(HEADER, structs.replace(RUN, arguments={"a": value}))


class OwnText(str):
    """Text of somebody's own class."""


class OwnNumber(float):
    """A number of somebody's own class."""


def test_texts_and_numbers_of_own_classes_are_written_as_such() -> None:
    changes = {"tool": OwnText("f"), "duration_ms": OwnNumber(2), "arguments": {"a": OwnText("b")}}
    run = structs.replace(RUN, **changes)
    (found,) = said(log_of([[run]]))[1:]
    assert isinstance(found, ToolRun)
    assert (found.tool, found.duration_ms, found.arguments) == ("f", 2.0, {"a": "b"})


def test_parameters_keep_their_types_beside_equal_ones() -> None:
    calls = [
        structs.replace(model_call(), evidence=call_evidence(None, parameters={"n": number}))
        for number in (1, 1.0, True)
    ]
    found = [each for each in said(log_of([calls])) if isinstance(each, ModelCall)]
    assert [repr(each.evidence.parameters["n"]) for each in found] == ["1", "1.0", "True"]


def test_a_time_without_a_zone_counts_as_utc() -> None:
    run = structs.replace(RUN, at=NOW.replace(tzinfo=None))
    assert run.at == NOW
    assert said(log_of([[run]]))[1:] == [run]


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
    ],
)
def test_a_line_that_says_nothing_known_is_refused_by_name(
    line: Event, change: tuple[bytes, bytes], problem: str
) -> None:
    with pytest.raises(SessionDamaged, match="log:[23]: .*" + problem):
        read_lines(altered(log_of([[line]]), *change), "log")


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
    assert len(said(log_of(again))) == 6
    with pytest.raises(SessionDamaged, match="log:3: partial after the end"):
        read_lines(log_of([[end], [PartialText(SESSION, "x")]]), "log")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "log:1: missing header: the file has no complete line"),
        (b'{"record_type": "header"', "log:1: missing header: the file has no complete line"),
        (b'{"record_type": "chunk"}\n', "log:1: missing header: chunk before header"),
        (b'{"record_type": "header"}\n', "log:1: malformed header: schema_version is None"),
        (b'{"record_type": "header", "schema_version": 4}\n', "newer than CURRENT_SCHEMA_VERSION"),
        (b'{"record_type": "header", "schema_version": 2}\n', "no checksum at its end"),
        (b'{"record_type":"header","schema_version":3}\n', "no checksum at its end"),
        (b'{"event":"row"}\n', "log:1: missing header: row before header"),
        (b'{"record_type": "header", "schema_version": 1, "sum": ""}\n', "has no checksums"),
        (b"[1]\n", "expected a JSON object, found list"),
    ],
)
def test_a_file_without_a_good_header_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(PersistenceError, match=problem):
        read_lines(data, "log", recover=True)


def test_times_come_back_in_utc() -> None:
    line = Reopened(NOW.astimezone(timezone(timedelta(hours=3))))
    assert said(log_of([[line]]))[-1] == Reopened(NOW)
