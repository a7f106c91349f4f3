"""`rath show` and `rath tail`: one session, its evidence, and what is added to it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec import structs

from rath._async.retry import Attempt
from rath._core.blobs import Blob
from rath.backend.abc import SandboxIdentity
from rath.backend.effects import FileEffect
from rath.cli.show import entry_text, makers, outcome_text, row_text
from rath.cli.terminal import Exit
from rath.session import RowId
from rath.session.chunk import ChunkRow, tool_feedback_chunk
from rath.session.events import Reopened
from rath.session.operation import Place
from rath.session.outcome import Completed, NeedsDecision, NeedsInput, OutputMissing, OutputValue
from rath.session.persistence.store import FileStore, stores
from rath.session.record import (
    Interrupt,
    ModelCall,
    Operation,
    RecalledNote,
    Seen,
    Summary,
    Verdict,
)
from tests.cli.conftest import Rath
from tests.support.evidence import evidence, tokens
from tests.support.images import picture
from tests.support.logs import LogMaker
from tests.support.store_family import RUN, Family, damage, save

V1 = Path(__file__).parents[1] / "data" / "v1"


def test_a_session_is_displayed_with_its_evidence(rath: Rath, family: Family) -> None:
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


def test_a_run_that_was_cut_off_is_displayed_as_far_as_it_came(rath: Rath, family: Family) -> None:
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


def test_what_belongs_to_no_row_is_displayed(rath: Rath, sessions: Path) -> None:
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


def test_full_shows_complete_texts(rath: Rath, sessions: Path) -> None:
    log = LogMaker().said("one\ntwo\n" + "x" * 500).answered("").ended()
    save(sessions, log)
    assert "x" * 500 not in rath("show", str(log.session)).stdout
    stdout = rath("show --full", str(log.session)).stdout
    assert "    one\n    two\n    " + "x" * 500 in stdout


@pytest.mark.parametrize("name", ["tools", "merged", "plain", "separators"])
def test_a_file_of_version_1_is_displayed(rath: Rath, name: str) -> None:
    rath("show", str(V1 / f"{name}.jsonl"), ends=Exit.ANSWERED, out="state    completed")


def test_calls_and_results_of_tools_are_displayed(rath: Rath) -> None:
    stdout = rath("show", str(V1 / "tools.jsonl")).stdout
    assert (
        '  1 assistant   → write_workspace_file({"path":"a.txt","content":"héllo – 世界"})'
        in stdout
    )
    assert '  2 tool_result write_workspace_file: {"bytes_written":17}' in stdout
    full = rath("show --full", str(V1 / "tools.jsonl")).stdout
    assert "    → write_workspace_file(" in full


def test_of_a_damaged_log_is_displayed_what_can_be_believed(rath: Rath, sessions: Path) -> None:
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


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("2:4", [2, 3]), (":2", [0, 1]), ("18:", [18, 19]), ("-2:", [18, 19]), ("7", [7]),
        ("-1", [19]), ("99", []), ("5:5", []), ("15:99", [15, 16, 17, 18, 19]),
    ],
)  # fmt: skip
def test_some_rows_are_displayed(
    rath: Rath, sessions: Path, rows: str, expected: list[int]
) -> None:
    log = LogMaker()
    for number in range(20):
        log.said(f"word {number}")
    save(sessions, log.ended())
    told = json.loads(rath("show --json --rows", rows, str(log.session), ends=0).stdout)
    assert [row["index"] for row in told["rows"]] == expected
    shown = rath("show --rows", rows, str(log.session), ends=0).stdout
    assert re.findall(r"(?m)word (\d+)$", shown) == [str(number) for number in expected]
    assert "of 20" in shown
    assert ("no such row of 20: they are 0 to 19" in shown) == (not expected)


def test_what_is_no_range_of_rows_is_a_misuse(rath: Rath, family: Family) -> None:
    assert family.directory.is_dir()
    rath("show --rows a:b 1111", ends=Exit.MISUSE, err="--rows 'a:b' is no range of rows")


def test_an_unknown_kind_of_row_is_displayed_as_it_is(rath: Rath, sessions: Path) -> None:
    log = LogMaker().row(ChunkRow("from_the_future", {"x": 1})).ended()
    save(sessions, log)
    assert "  0 from_the_future {'x': 1}" in rath("show", str(log.session)).stdout


SEEN = Seen(
    head_digest="",
    n_rows=0,
    context_at=0,
    context="",
    recalled=(RecalledNote("memory://a", "x"),),
    tools_digest=None,
    renderer="",
    request_digest="",
)


def call(purpose: Any = "turn", seen: Seen | None = None, **changes: Any) -> ModelCall:
    """A call of a model without a price."""
    changes.setdefault("duration_ms", 0.0)
    made = evidence(changes.pop("usage", None), **changes)
    made.settle_cost(None)
    return ModelCall(
        operation=uuid4(), purpose=purpose, status=made.status, seen=seen, evidence=made
    )


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (call(), "gpt-5-mini"),
        (call(model=None), "test"),
        (call(purpose="select"), "gpt-5-mini, select"),
        (call(usage=tokens(1000, 20)), "gpt-5-mini, 1,000 + 20 tokens"),
        (call(duration_ms=1234.0), "gpt-5-mini, 1.2 s"),
        (call(status="cancelled"), "gpt-5-mini, cancelled"),
        (call(status="failed", error="no\nway"), "gpt-5-mini, failed: no way"),
        (call(fallback_from="openai m"), "gpt-5-mini, instead of openai m"),
        (call(finish_reason="length"), "gpt-5-mini, ended by length"),
        (call(finish_reason="stop"), "gpt-5-mini"),
        (call(seen=SEEN), "gpt-5-mini, saw 1 note"),
        (call(attempts=(Attempt(1, "x", 500, 1.0, 0.0),) * 2), "gpt-5-mini, 2 tries"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_call(made: ModelCall, text: str) -> None:
    assert entry_text(made) == text


def effect(path: str) -> FileEffect:
    return FileEffect(path, "created", None, Blob.from_bytes(b"x"))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "done, 1 ms"),
        ({"status": "failed", "error_kind": "timeout"}, "failed (timeout), 1 ms"),
        ({"exit_code": 2}, "done, exit status 2, 1 ms"),
        ({"signal": 9}, "done, signal 9, 1 ms"),
        (
            {"sandbox": SandboxIdentity("local", "s", "none", "/w", "/w")},
            "done, 1 ms, in local /w",
        ),
        ({"file_effects": (effect("a"),)}, "done, 1 ms, created a"),
        (
            {"file_effects": tuple(map(effect, "abcde"))},
            "done, 1 ms, created a; created b; created c and 2 more",
        ),
        ({"full": Blob.from_bytes(b"x")}, "done, 1 ms, shown in part"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tool_run(changes: dict[str, Any], text: str) -> None:
    assert entry_text(structs.replace(LogMaker().tool_run("a"), **changes)) == text


def test_an_operation_has_its_place() -> None:
    made = Operation(operation=uuid4(), kind="fork", place=Place("", 0), session=uuid4())
    assert entry_text(made) == "fork"
    assert entry_text(structs.replace(made, place=Place("Team.coder", 2))) == "fork at Team.coder#2"


def test_rows_are_known_by_what_made_them_first() -> None:
    row, other = RowId(uuid4(), 1), RowId(uuid4(), 2)
    first, second = structs.replace(call(), rows=(row,)), structs.replace(call(), rows=(row, other))
    operation = Operation(
        operation=uuid4(), kind="loop", place=Place("", 0), session=uuid4(), rows=(row,)
    )
    summary = Summary(operation=uuid4(), replaced=(), replaced_digest="", rows=(other,))
    assert makers([operation, first, second, summary]) == {row: first, other: second}


def test_what_rows_say() -> None:
    assert row_text(tool_feedback_chunk("a", "run", '{"x":\n1}')) == 'run: {"x":1}'
    shown = row_text(tool_feedback_chunk("a", "look", "1", images=[picture(b"cat")]))
    assert shown == "look: [image/png 11 B sha256:c37c5842] 1"
    assert row_text(ChunkRow("odd", {"x": 1})) == "{'x': 1}"
    assert row_text(ChunkRow("system", {"content": "be\nkind"})) == "be kind"


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Completed(), ""),
        (Completed(OutputValue(1)), ""),
        (Completed(OutputMissing("no number")), "completed without its typed answer: no number"),
        (NeedsDecision(UUID(int=2), ("a", "b")), "a b"),
        (NeedsInput(UUID(int=2), "which\none?"), "which one?"),
    ],
    ids=repr,
)
def test_outcomes(outcome: Any, text: str) -> None:
    assert outcome_text(outcome) == text


FOLLOWED = """\
  0 user        go
                Hello wor
  1 assistant   Hello world
                gpt-5-mini, 100 + 10 tokens, $0.01
                → tool …
                ← tool: done, 1 ms
  2 tool_result tool: result of a
                check tests: passed
                ! failed: it broke
                the run goes on
  3 user        thanks
state  completed
"""


def test_the_last_rows_are_displayed(rath: Rath, sessions: Path) -> None:
    log = LogMaker()
    for number in range(20):
        log.said(f"row {number}")
    save(sessions, log.ended())
    lines = rath("tail", str(log.session)).stdout.splitlines()
    assert lines[0] == " 10 user        row 10"
    assert len(lines) == 11
    assert rath("tail -n 2", str(log.session)).stdout.splitlines()[0].endswith("row 18")
    assert rath("tail -n 0", str(log.session)).stdout == "state  completed\n"


def test_what_was_streamed_before_it_was_cut_off_is_displayed(rath: Rath, family: Family) -> None:
    assert rath("tail 77777777").stdout.splitlines()[2:] == [
        "                I am th",
        "state  needs_decision",
    ]


def test_a_session_that_nobody_writes_is_not_waited_for(rath: Rath, family: Family) -> None:
    result = rath("tail -f 77777777", ends=Exit.ANSWERED)
    assert result.stdout.endswith("state  needs_decision\n")


def write_the_rest(log: LogMaker, store: FileStore) -> Iterator[None]:
    """Write a run step by step, while somebody follows it."""
    writer = store.reopen(log.session, keep=len(log.data))
    yield
    steps: list[Callable[[], object]] = [
        lambda: log.streamed("Hello "),
        lambda: log.streamed("wor"),
        lambda: log.answered("Hello world"),
        lambda: log.intended("a"),
        lambda: log.round("a"),
        lambda: log.add(
            log.entry_line(
                Verdict(
                    operation=log.operation,
                    name="tests",
                    judge="x",
                    passed=True,
                    score=None,
                    report="",
                    workspace_digest=None,
                )
            )
        ),
        log.failed,
        lambda: log.add(Reopened(log.now())),
        lambda: log.said("thanks"),
        log.ended,
    ]
    for step in steps:
        n_before = len(log.data)
        step()
        writer.append(log.data[n_before:])
        yield
    writer.finish()


def url_of(store: FileStore) -> str:
    """Return a URL under which the command finds this very store."""
    name = f"store{uuid4().hex}"
    stores.register(name, lambda _: store)
    return f"{name}://"


class Stepped(FileStore):
    """A store whose log grows by one step whenever its reader has read all."""

    def __init__(self, directory: Path, log: LogMaker) -> None:
        super().__init__(directory)
        self._steps = write_the_rest(log, FileStore(directory))
        next(self._steps)

    def follow(self, session: UUID, start: int) -> Iterator[bytes]:
        for _ in self._steps:
            log = self.read(session)
            assert log is not None
            if data := log.data[start:]:
                start = len(log.data)
                yield data


def followed(log: LogMaker, sessions: Path, rath: Rath, *options: str) -> tuple[int, str]:
    save(sessions, log, is_finished=False)
    store = Stepped(sessions, log)
    result = rath("tail -f", str(log.session), "--store", url_of(store), *options)
    return result.exit_code, result.stdout


def test_each_step_of_a_run_is_displayed_as_it_comes(rath: Rath, sessions: Path) -> None:
    log = LogMaker().begun().said("go")
    assert followed(log, sessions, rath) == (Exit.ANSWERED, FOLLOWED)


def test_a_program_gets_a_line_of_json_for_each_step(rath: Rath, sessions: Path) -> None:
    log = LogMaker().begun().said("go")
    status, stdout = followed(log, sessions, rath, "--json")
    told = [json.loads(line) for line in stdout.splitlines()]
    names = [each["entry"] if each["event"] == "entry" else each["event"] for each in told]
    assert status == Exit.ANSWERED
    assert names == [
        "row", "text", "text", "row", "model_call", "tool_start", "tool_end", "row", "verdict",
        "failed", "resumed", "row", "state",
    ]  # fmt: skip
    assert [each["index"] for each in told if each["event"] == "row"] == [0, 1, 2, 3]
    assert told[1]["text"] + told[2]["text"] == "Hello wor"
    assert told[-1] == {"event": "state", "state": "completed"}


def test_ctrl_c_ends_it_quietly(rath: Rath, sessions: Path) -> None:
    class Interrupted(FileStore):
        def follow(self, session: UUID, start: int) -> Iterator[bytes]:
            log = self.read(session)
            assert log is not None
            yield b""
            raise KeyboardInterrupt

    save(sessions, log := LogMaker().begun().said("go").streamed("so far"), is_finished=False)
    rath("tail -f", str(log.session), "--store", url_of(Interrupted(sessions)), ends=130, err="")


def test_a_process_follows_another_one_that_writes(sessions: Path, project: Path) -> None:
    log = LogMaker().begun().said("go")
    store = FileStore(sessions)
    writer = store.create(log.session)
    writer.append(log.data)
    command = [sys.executable, "-m", "rath", "tail", "-f", str(log.session)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=project) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "  0 user        go\n"
        n_before = len(log.data)
        writer.append(log.answered("hello").data[n_before:])
        assert process.stdout.readline() == "  1 assistant   hello\n"
        assert "gpt-5-mini" in process.stdout.readline()
        n_before = len(log.data)
        writer.append(log.ended().data[n_before:])
        writer.finish()
        assert process.stdout.readline() == "state  completed\n"
    assert process.returncode == 0


def test_an_interrupted_process_says_nothing(sessions: Path, project: Path) -> None:
    log = LogMaker().begun().said("go")
    writer = FileStore(sessions).create(log.session)
    writer.append(log.data)
    command = [sys.executable, "-m", "rath", "tail", "-f", str(log.session)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=project,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "  0 user        go\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == ""
    writer.abandon()
    assert process.returncode == 130


def test_a_log_that_becomes_damaged_while_it_is_followed(rath: Rath, sessions: Path) -> None:
    class Damaging(FileStore):
        def follow(self, session: UUID, start: int) -> Iterator[bytes]:
            yield b'{"record_type": "nonsense"}\n'

    save(sessions, log := LogMaker().begun().said("go"), is_finished=False)
    result = rath("tail -f", str(log.session), "--store", url_of(Damaging(sessions)))
    assert result.exit_code == Exit.DAMAGED
    assert "no checksum at its end" in result.stderr


def test_the_tail_of_a_damaged_log_is_what_can_be_believed(rath: Rath, sessions: Path) -> None:
    save(sessions, log := LogMaker().said("fine").said("parser").ended())
    damage(sessions, log)
    result = rath("tail", str(log.session), ends=Exit.DAMAGED)
    assert result.stdout == "  0 user        fine\n"
