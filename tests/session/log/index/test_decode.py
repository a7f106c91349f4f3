"""The facts of a log are those that its lines tell, and what cannot be believed is damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rath.errors import SessionDamaged
from rath.session.chunk import ChunkRow, user_text_chunk
from rath.session.events import PendingResult, RoundEnd
from rath.session.log.index.decode import facts_of
from rath.session.log.reader import read_lines
from rath.session.operation import Place
from rath.session.outcome import NeedsDecision, NeedsInput, RoundLimit
from rath.session.record import ModelCall, Operation, ToolRun, Verdict
from tests.support.api import (
    UNKNOWN_TIME,
    GivenUsage,
    ParsedLog,
    chained,
    dump,
    parse_log,
    sum_costs,
)
from tests.support.evidence import tokens
from tests.support.logs import DAY, LogMaker, made_logs

V1 = Path(__file__).parents[3] / "data" / "v1"


def content(data: bytes) -> ParsedLog:
    """What the codec and the loader make of a log."""
    return parse_log(read_lines(data, "log"), lambda row: row)


def is_believed(data: bytes) -> bool:
    """Whether the codec and the loader believe a log."""
    try:
        content(data)
    except SessionDamaged:
        return False
    return True


@given(made_logs())
def test_the_facts_are_those_of_the_lines(log: LogMaker) -> None:
    facts, read = facts_of(log.session, log.data), content(log.data)
    calls = [entry for entry in read.entries if isinstance(entry, ModelCall)]
    assert facts.n_rows == read.state.n_rows
    assert facts.n_tool_runs == sum(isinstance(entry, ToolRun) for entry in read.entries)
    assert list(facts.calls) == [call.id for call in calls]
    usages = [call.evidence.usage for call in calls]
    assert [call.total_tokens for call in facts.calls.values()] == [
        0 if usage is None else usage.total_tokens for usage in usages
    ]
    assert facts.updated_at >= read.state.last_at


@given(made_logs())
def test_what_is_known_of_costs_is_what_a_session_says(log: LogMaker) -> None:
    calls = facts_of(log.session, log.data).calls.values()
    said = sum_costs(content(log.data).entries)
    assert sum(call.usd or 0 for call in calls) == said.usd
    assert sum(call.price == "known" for call in calls) == said.n_priced
    assert sum(call.price == "unpriced" for call in calls) == sum(n for _, n in said.unpriced)
    assert sum(call.price == "uncounted" for call in calls) == sum(n for _, n in said.uncounted)


@given(made_logs())
def test_the_state_is_how_the_loader_says_that_a_run_stands(log: LogMaker) -> None:
    facts, read = facts_of(log.session, log.data), content(log.data)
    left = read.state.unfinished
    assert facts.is_open == (read.state.trailer is None)
    if read.state.trailer is not None:
        name = type(read.state.outcome).__name__
        assert facts.state.replace("_", "") == name.lower()
    elif left.failure is not None:
        assert facts.state == left.failure.how
    else:
        expected = "needs_decision" if left.unknown_calls else "cut_off"
        assert facts.state == expected


@given(made_logs(), st.data())
def test_a_changed_byte_is_damage_where_the_codec_says_so(
    log: LogMaker, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(log.data) - 1))
    bit = data.draw(st.integers(0, 7))
    changed = log.data[:at] + bytes([log.data[at] ^ 1 << bit]) + log.data[at + 1 :]
    assert (facts_of(log.session, changed).state != "damaged") == is_believed(changed)


@given(made_logs(), st.data())
def test_a_cut_log_is_what_its_whole_groups_say(log: LogMaker, data: st.DataObject) -> None:
    cut = log.data[: data.draw(st.integers(0, len(log.data)))]
    facts = facts_of(log.session, cut)
    assert (facts.state != "damaged") == is_believed(cut)
    whole = read_lines(cut, "log").reader.n_good if is_believed(cut) else 0
    again = facts_of(log.session, cut[:whole])
    assert (facts.said, facts.calls, facts.state) == (again.said, again.calls, again.state)


def test_texts_are_those_of_own_rows_with_what_tools_are_asked(tmp_path: Path) -> None:
    file = V1 / "tools.jsonl"
    session = UUID("9531c84d-17b6-47a6-b9ad-3e625f957dac")
    facts = facts_of(session, file.read_bytes())
    assert facts.said[0].text == "Write a file and read it."
    assert facts.said[1].text.startswith("write_workspace_file {")
    assert [row.index for row in facts.said] == list(range(10))


@pytest.mark.parametrize("name", ["plain", "merged", "separators", "tools"])
def test_a_file_of_version_1_is_read(name: str) -> None:
    data = (V1 / f"{name}.jsonl").read_bytes()
    read = content(data)
    facts = facts_of(read.header.session, data)
    assert (facts.state, facts.n_rows) == ("completed", len(read.rows))
    trailer = read.state.trailer
    usage = None if trailer is None else trailer.usage
    given_tokens = {} if usage is None else {facts.session: usage.total_tokens}
    assert facts.given == given_tokens


def test_a_cut_off_file_of_version_1_is_cut_off() -> None:
    data = (V1 / "crashed.jsonl.__partial__").read_bytes()
    assert facts_of(content(data).header.session, data).state == "cut_off"


OLD_HEADER = (
    b'{"record_type": "header", "schema_version": 1, "id": "%s", "created_at": "2026-01-01"}\n'
)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"record_type": "intent"}', "unknown record_type 'intent'"),
        (b'{"record_type": "chunk", "kind": "", "payload": {}}', "malformed"),
        (b'{"record_type": "chunk", "kind": "user", "payload": []}', "malformed"),
        (b"[]", "expected a JSON object"),
        (b'{"record_type": "trailer"}', "malformed"),
        (
            b'{"record_type": "trailer", "closed_at": "2026-01-01"}\n{"record_type": "chunk"}',
            "stands after the trailer",
        ),
    ],
)
def test_a_bad_line_of_version_1_is_named(line: bytes, problem: str) -> None:
    session = uuid4()
    facts = facts_of(session, OLD_HEADER % str(session).encode() + line + b"\n")
    assert facts.state == "damaged"
    assert problem in facts.problem
    assert facts.problem.startswith(("line 2", "line 3"))
    assert facts.created_at != UNKNOWN_TIME


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "no complete line"),
        (b'{"record_type": "header"', "no complete line"),
        (b'{"record_type": "chunk"}\n', "missing header"),
        (b'{"record_type": "header", "schema_version": "2"}\n', "schema_version is '2'"),
        (b'{"record_type": "header", "schema_version": 99}\n', "newer than"),
        (b'{"record_type": "header", "schema_version": 1, "sum": "x"}\n', "no checksums"),
        (b'{"record_type": "header", "schema_version": 1}\n', "malformed header"),
        (OLD_HEADER % str(UUID(int=7)).encode(), f"the log of session {UUID(int=7)}"),
    ],
)
def test_a_log_without_a_header_to_believe_is_damaged(data: bytes, problem: str) -> None:
    facts = facts_of(UUID(int=1), data)
    assert (facts.state, facts.created_at) == ("damaged", UNKNOWN_TIME)
    assert problem in facts.problem


def test_a_reopened_run_is_open_again() -> None:
    log = LogMaker().begun().said("go").ended(NeedsInput(uuid4(), "which?"))
    assert facts_of(log.session, log.data).state == "needs_input"
    assert facts_of(log.session, log.reopened().data).state == "cut_off"


def test_a_decision_settles_an_open_call() -> None:
    log = LogMaker().begun().answered("calling").intended("a")
    assert facts_of(log.session, log.data).state == "needs_decision"
    log.add(log.entry_line(log.decision("a")))
    assert facts_of(log.session, log.data).state == "cut_off"
    log.intended("a")
    assert facts_of(log.session, log.data).state == "needs_decision"


def test_an_outcome_after_the_end_counts() -> None:
    log = LogMaker().ended(NeedsDecision(uuid4(), ("a",))).decided(RoundLimit(3))
    assert facts_of(log.session, log.data).state == "round_limit"


def test_what_an_entry_names_that_came_late_is_no_damage() -> None:
    log = LogMaker().said("go").ended()
    head = (user_text_chunk("be good"),)
    made = Operation(operation=uuid4(), kind="loop", place=Place("", 0), session=uuid4(), head=head)
    data = log.add(log.entry_line(made)).data
    assert is_believed(data)
    assert facts_of(log.session, data).state == "completed"


def test_the_place_is_that_of_the_operation_that_makes_the_session() -> None:
    run = uuid4()
    log = LogMaker(at=DAY).begun(path="Team.planner", ordinal=3, run=run)
    facts = facts_of(log.session, log.data)
    assert (facts.path, facts.ordinal, facts.run) == ("Team.planner", 3, run)


def test_a_long_text_is_kept_by_its_beginning() -> None:
    log = LogMaker().said("word " * 100_000)
    (row,) = facts_of(log.session, log.data).said
    assert len(row.text) == 100_000


def with_line(log: LogMaker, *records: dict[str, Any]) -> bytes:
    """A log with more lines, whose checksums are right."""
    after = read_lines(log.data, "log").reader.sum
    data, _ = chained([dump(record) for record in records], after, is_compact=True)
    return log.data + data


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize(
    "record",
    [
        {"event": "from_the_future"},
        {"event": "partial", "operation": str(UUID(int=1)), "text": "x"},
        {"event": "row", "index": 0, "kind": "user", "payload": {}},
        {"event": "failed", "how": "failed", "error": [], "at": "2026-01-01T00:00:00+00:00"},
        {"event": "row", "index": 1, "kind": "user", "payload": {}},
        {"event": "row", "index": 1, "kind": 5, "payload": {}},
        {"event": "round", "row": 0, "results": [str(UUID(int=1))]},
        {"event": "outcome", "outcome": {"is": "Nothing"}},
        {"event": "reopened"},
    ],
    ids=repr,
)
def test_lines_that_contradict_those_before_are_damage(
    record: dict[str, Any], is_over: bool
) -> None:
    log = LogMaker().said("go")
    data = with_line(log.ended() if is_over else log, record)
    assert (facts_of(log.session, data).state != "damaged") == is_believed(data)


def test_tokens_that_a_session_was_given_are_kept() -> None:
    first, own = GivenUsage(uuid4(), tokens(5, 6)), LogMaker()
    log = LogMaker(own.session, given=(first,))
    assert facts_of(log.session, log.data).given == {first.session: 11}


def test_a_call_that_was_cut_off_in_a_round_has_no_row() -> None:
    log = LogMaker().begun().answered("calling")
    run = log.tool_run("a")
    log.add(PendingResult(row=0, call=0, run=run, shown=None)).add(RoundEnd(0, (run.id,)))
    facts = facts_of(log.session, log.data)
    assert (facts.n_rows, facts.n_tool_runs) == (1, 1)
    assert content(log.data).rows == log.rows


def test_entries_of_others_are_not_its_place() -> None:
    log = LogMaker()
    inner = LogMaker(log.session).begun(path="Team.inner")
    other = LogMaker().begun(path="Other")
    for made in (other, inner):
        for line in read_lines(made.data, "log").lines[1:]:
            log.add(line)
    log.add(log.entry_line(structs.replace(log.decision("a"), call_id=None)))
    log.intended("a").add(log.entry_line(structs.replace(log.tool_run("a"), operation=uuid4())))
    facts = facts_of(log.session, log.data)
    assert (facts.path, facts.state) == ("Team.inner", "needs_decision")


def test_a_verdict_changes_only_the_time() -> None:
    log = LogMaker().said("go").ended()
    before = facts_of(log.session, log.data)
    verdict = Verdict(
        operation=log.operation,
        name="tests",
        judge="x",
        passed=True,
        score=None,
        report="",
        workspace_digest=None,
        at=log.now(),
    )
    after = facts_of(log.session, log.add(log.entry_line(verdict)).data)
    assert after.updated_at > before.updated_at
    assert after.n_lines == before.n_lines + 1
    after = replace(after, n_lines=before.n_lines)
    assert replace(after, updated_at=before.updated_at, size=before.size) == before


def test_tool_calls_of_a_row_may_lack_anything() -> None:
    row = ChunkRow("assistant", {"content": 7, "tool_calls": [{"function": {"name": None}}, {}]})
    log = LogMaker().row(row).row(ChunkRow("odd", {"content": "unread"}))
    (said,) = facts_of(log.session, log.data).said
    assert said.text.split() == ["7"]
