"""`rath show`: what it says of a session, its rows and their evidence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rath.cli.terminal import Exit
from rath.session.chunk import ChunkRow
from rath.session.outcome import NeedsInput
from rath.session.persistence.store import FileStore
from rath.session.record import Interrupt, Summary, Verdict
from tests.cli.conftest import Rath
from tests.support.logs import LogMaker
from tests.support.store_family import RUN, Family, damage, save

V1 = Path(__file__).parents[1] / "data" / "v1"


def test_a_session_is_shown_with_its_evidence(rath: Rath, family: Family) -> None:
    result = rath("show 22222222", ends=Exit.ANSWERED)
    lines = result.stdout.splitlines()
    assert lines[:6] == [
        f"session  {family.plan.session}",
        "state    completed",
        "made by  run_session_loop from 11111111",
        "place    Team.planner#0 in run 0ddba11c",
        "time     2026-11-01 13:00 to 2026-11-01 13:00, 2.0 s",
        "took     1 model call, 0 tool calls, 110 tokens, $0.01",
    ]
    assert lines[6].startswith(f"log      {family.directory}")
    assert lines[7:] == [
        "  0 user        Fix the parser",
        "  1 assistant   1. read",
        "                gpt-5-mini, 100 + 10 tokens, $0.01",
    ]


def test_a_run_that_was_cut_off_is_shown_as_far_as_it_came(rath: Rath, family: Family) -> None:
    stdout = rath("show 77777777").stdout
    assert "state    needs_decision" in stdout
    assert "    ? call-1: tool was called (non_idempotent), and nothing is known of its end" in (
        stdout
    )
    assert "    … I am th" in stdout


def test_a_run_in_progress_is_running(rath: Rath, sessions: Path) -> None:
    log = LogMaker().begun().said("go").answered("calling").round("a", "b", is_done=False)
    writer = FileStore(sessions).create(log.session)
    writer.append(log.data)
    stdout = rath("show", str(log.session)).stdout
    writer.abandon()
    assert "state    running" in stdout
    assert stdout.count("and its round is not done") == 2


def test_a_failed_run_says_why(rath: Rath, family: Family) -> None:
    stdout = rath("show 44444444").stdout
    assert "state    failed" in stdout
    assert "· gpt-5-mini, failed: no\n" in stdout
    assert "    ! no answer" in stdout


def test_a_cancelled_run_needs_no_reason(rath: Rath, sessions: Path) -> None:
    save(sessions, log := LogMaker().begun().failed("stop", how="cancelled"), is_finished=False)
    stdout = rath("show", str(log.session)).stdout
    assert "state    cancelled" in stdout
    assert "stop" not in stdout


def test_what_belongs_to_no_row_is_shown(rath: Rath, sessions: Path) -> None:
    log = LogMaker().begun().said("go")
    operation = log.operation
    for entry in (
        Verdict(
            operation=operation,
            name="tests",
            judge="pytest",
            passed=False,
            score=0.5,
            report="",
            workspace_digest=None,
        ),
        Interrupt(operation=operation, reason="approval", calls=("a",)),
        log.decision("a"),
        Summary(operation=operation, replaced=(), replaced_digest=""),
    ):
        log.add(log.entry_line(entry))
    save(sessions, log.ended(NeedsInput(log.session, "which one?")))
    stdout = rath("show", str(log.session)).stdout
    assert "state    needs_input: which one?" in stdout
    for text in (
        "check tests: failed, score 0.5",
        "waits for approval on a",
        "tests decided: skip a",
        "summary of 0 rows",
    ):
        assert f"    · {text}\n" in stdout


def test_full_shows_whole_texts(rath: Rath, sessions: Path) -> None:
    log = LogMaker().said("one\ntwo\n" + "x" * 500).answered("").ended()
    save(sessions, log)
    assert "x" * 500 not in rath("show", str(log.session)).stdout
    stdout = rath("show --full", str(log.session)).stdout
    assert "    one\n    two\n    " + "x" * 500 in stdout


@pytest.mark.parametrize("name", ["tools", "merged", "plain", "separators"])
def test_a_file_of_version_1_is_shown(rath: Rath, name: str) -> None:
    rath("show", str(V1 / f"{name}.jsonl"), ends=Exit.ANSWERED, out="state    completed")


def test_calls_and_results_of_tools_are_shown(rath: Rath) -> None:
    stdout = rath("show", str(V1 / "tools.jsonl")).stdout
    assert (
        '  1 assistant   → write_workspace_file({"path":"a.txt","content":"héllo – 世界"})'
        in stdout
    )
    assert '  2 tool_result write_workspace_file: {"bytes_written":17}' in stdout
    full = rath("show --full", str(V1 / "tools.jsonl")).stdout
    assert "    → write_workspace_file(" in full


def test_of_a_damaged_log_is_shown_what_can_be_believed(rath: Rath, sessions: Path) -> None:
    log = LogMaker().said("fine").said("Fix the parser").ended()
    save(sessions, log)
    damage(sessions, log)
    result = rath("show", str(log.session), ends=Exit.DAMAGED, out="state    damaged")
    assert "  0 user        fine" in result.stdout
    assert "parser" not in result.stdout.lower()
    assert "what is shown stands before it" in result.stderr


def test_json_has_rows_entries_and_what_is_open(rath: Rath, family: Family) -> None:
    shown = json.loads(rath("show --json 77777777").stdout)
    assert (shown["state"], shown["outcome"]) == ("needs_decision", None)
    assert (shown["open_calls"], shown["partial_text"]) == (["call-1"], "I am th")
    assert [row["kind"] for row in shown["rows"]] == ["user", "assistant"]
    assert shown["rows"][0]["id"] == f"{family.other.session}:0"
    entries = {entry["id"]: entry["entry"] for entry in shown["entries"]}
    assert entries[shown["rows"][1]["entry"]] == "model_call"
    shown = json.loads(rath("show --json 22222222").stdout)
    assert (shown["run"], shown["outcome"]) == (str(RUN), {"is": "Completed"})
    assert shown["error"] is None
    assert json.loads(rath("show --json 44444444").stdout)["error"] == "no answer"


def test_an_unknown_kind_of_row_is_shown_as_it_is(rath: Rath, sessions: Path) -> None:
    log = LogMaker().row(ChunkRow("from_the_future", {"x": 1})).ended()
    save(sessions, log)
    assert "  0 from_the_future {'x': 1}" in rath("show", str(log.session)).stdout
