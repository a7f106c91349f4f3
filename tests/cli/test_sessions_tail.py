"""`rath tail`: the end of a session, and what is written while it is followed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

from rath.cli.terminal import Exit
from rath.session.events import Reopened
from rath.session.persistence.store import FileStore, stores
from rath.session.record import Verdict
from tests.cli.conftest import Rath
from tests.support.logs import LogMaker
from tests.support.store_family import Family, damage, save

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


def test_the_last_rows_are_shown(rath: Rath, sessions: Path) -> None:
    log = LogMaker()
    for number in range(20):
        log.said(f"row {number}")
    save(sessions, log.ended())
    lines = rath("tail", str(log.session)).stdout.splitlines()
    assert lines[0] == " 10 user        row 10"
    assert len(lines) == 11
    assert rath("tail -n 2", str(log.session)).stdout.splitlines()[0].endswith("row 18")
    assert rath("tail -n 0", str(log.session)).stdout == "state  completed\n"


def test_what_was_streamed_before_it_was_cut_off_is_shown(rath: Rath, family: Family) -> None:
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


def followed(log: LogMaker, sessions: Path, rath: Rath) -> tuple[int, str]:
    save(sessions, log, is_finished=False)
    store = Stepped(sessions, log)
    result = rath("tail -f", str(log.session), "--store", url_of(store))
    return result.exit_code, result.stdout


def test_each_step_of_a_run_is_shown_as_it_comes(rath: Rath, sessions: Path) -> None:
    log = LogMaker().begun().said("go")
    assert followed(log, sessions, rath) == (Exit.ANSWERED, FOLLOWED)


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
        # A shell that starts the tests in the background has them ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
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


def test_of_a_damaged_log_is_shown_what_can_be_believed(rath: Rath, sessions: Path) -> None:
    save(sessions, log := LogMaker().said("fine").said("parser").ended())
    damage(sessions, log)
    result = rath("tail", str(log.session), ends=Exit.DAMAGED)
    assert result.stdout == "  0 user        fine\n"
