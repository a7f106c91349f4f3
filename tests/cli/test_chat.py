"""`rath run` and `rath chat`: turns that are streamed, recorded, decided about and taken back."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rath.cli.chat import chat
from rath.cli.terminal import CommandError, Exit
from rath.session import Session
from rath.session.graph import LineageKind
from rath.session.outcome import Cancelled
from rath.session.persistence.store import FileStore
from tests.cli.conftest import Rath
from tests.support.chat_replies import Gate, event_stream, text_chunk, text_stream
from tests.support.chat_server import ChatServer

PROGRAM = '''
from rath import flow, tool, ask
from rath.testing import ScriptedClient, tool_call


@tool(approval="always")
def pay(amount: int) -> str:
    """Pay money."""
    return f"paid {{amount}}"


@tool
def pick() -> str:
    """Ask for a colour."""
    return ask("which colour?")


team = flow.Agent("You help.", ScriptedClient({turns}).provider, tools=[pay, pick])
'''

ILL = "ValueError('the model is ill')"

Team = Callable[..., None]


@pytest.fixture
def team(project: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    """Write a module `team` whose agent gives these turns, as Python writes them."""
    # Byte code of another text of the same second and length would be taken for that of this one.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(*turns: str) -> None:
        (project / "team.py").write_text(PROGRAM.format(turns=f"[{', '.join(turns)}]"))
        monkeypatch.delitem(sys.modules, "team", raising=False)

    return write


def stored(sessions: Path) -> list[Session]:
    """Return what is stored, the oldest first."""
    store = FileStore(sessions)
    found = [Session.load(each, store=store) for each in store.stamps()]
    return sorted(found, key=lambda each: (len(each.chunk_table), str(each.id)))


def test_a_run_is_streamed_and_recorded(rath: Rath, team: Team, sessions: Path) -> None:
    team("'Hello there'")
    done = rath("run", "team:team", "hi", ends=0, out="Hello there\n", err="rath explain ")
    (*_, out) = stored(sessions)
    assert out.text() == "Hello there"
    assert str(out.id) in done.stderr


def test_a_run_that_fails_names_its_record(rath: Rath, team: Team, sessions: Path) -> None:
    team(ILL, ILL)
    ill = "'team:team' raised ValueError: the model is ill\n"
    done = rath("run", "team:team", "hi", ends=Exit.WORLD, err=ill)
    (failed,) = [each for each in FileStore(sessions).stamps() if str(each) in done.stderr]
    assert f"rath show {failed}; to try again: rath resume {failed} team:team\n" in done.stderr
    rath("show", str(failed), ends=0, out="failed")
    rath("resume", str(failed), "team:team", ends=Exit.WORLD, err=ill)


WAITING = '''
import asyncio
import sys

from rath import flow, tool
from rath.testing import ScriptedClient, tool_call


@tool
async def wait() -> str:
    """Wait for ever."""
    print("begun", file=sys.stderr, flush=True)
    await asyncio.Event().wait()
    return ""


team = flow.Agent("You help.", ScriptedClient([tool_call("wait", {})]).provider, tools=[wait])
'''


def test_a_run_that_ctrl_c_ends_names_its_record(project: Path, sessions: Path) -> None:
    (project / "patient.py").write_text(WAITING)
    with subprocess.Popen(
        [sys.executable, "-m", "rath", "run", "patient:team", "hi"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=project,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
    assert process.returncode == Exit.INTERRUPTED
    (cancelled,) = [each for each in FileStore(sessions).stamps() if str(each) in told]
    assert f"to try again: rath resume {cancelled} patient:team --go-on\n" in told
    assert isinstance(Session.load(cancelled, store=FileStore(sessions)).outcome, Cancelled)


def test_an_error_amid_a_text_stands_on_a_line_of_its_own(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, refusal = Gate(), {"error": {"message": "too long", "type": "invalid_request_error"}}
    with ChatServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "test")
        monkeypatch.setenv("OPENAI_DEFAULT_MODEL", "some-model")
        server.queue(event_stream(text_chunk("Good "), gate, refusal))
        with subprocess.Popen(
            [sys.executable, "-m", "rath", "chat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=project,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"hello\n")
            process.stdin.close()
            assert process.stdout.read(5) == b"Good "
            gate.release()
            assert process.stdout.read() == b"\n"
    assert process.returncode == Exit.WORLD


def test_a_tool_is_no_workflow(rath: Rath, team: Team) -> None:
    team("'one'")
    rath("run", "team:pay", "hi", ends=Exit.MISUSE, err="is of type FunctionTool; expected a work")


def test_a_message_comes_from_standard_input(rath: Rath, team: Team, sessions: Path) -> None:
    team("'Read'")
    rath("run", "team:team", input="a long text\n", ends=0, out="Read")
    assert stored(sessions)[-1].chunk_table[0].payload["content"] == "a long text\n"


def test_a_run_continues_a_session(rath: Rath, team: Team, sessions: Path) -> None:
    team("'one'", "'two'")
    rath("run", "team:team", "first", ends=0)
    first = stored(sessions)[-1]
    rath("run", "team:team", "second", "--session", str(first.id), ends=0, out="two")
    texts = [row.payload["content"] for row in stored(sessions)[-1].chunk_table]
    assert texts == ["first", "one", "second", "two"]


def test_a_run_that_waits_says_how_to_go_on_and_ends_with_1(rath: Rath, team: Team) -> None:
    team("tool_call('pay', {'amount': 3}, id='c1')")
    rath("run", "team:team", "pay", ends=Exit.WORLD, out=("→ pay", "rath approve"))
    team("tool_call('pay', {'amount': 3}, id='c1')")
    done = rath("run", "team:team", "pay", "--json", ends=Exit.WORLD)
    facts = json.loads(done.stdout)
    assert (facts["state"], facts["waiting"][0]["call"]) == ("needs_approval", "c1")


def test_a_question_without_a_schema_is_to_be_answered_by_a_text(rath: Rath, team: Team) -> None:
    team("tool_call('pick', {}, id='c1')", "'Blue it is.'")
    rath("run", "team:team", "pick", ends=Exit.WORLD, out="rath answer --text ")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("run", "team:team"), "the message is empty"),
        (("run", "team:nobody", "hi"), "no attribute 'nobody'. Workflows there: team"),
        (("run", "team:team", "hi", "--sandbox", "locl"), "locl"),
        (("run", "team:team", "hi", "--session", "ffffffff"), "begins with 'ffffffff'"),
        (("chat", "nowhere:team"), "no module 'nowhere'"),
    ],
    ids=["no message", "no workflow", "no sandbox", "no session", "no module"],
)
def test_a_wrong_call_is_refused(
    rath: Rath, team: Team, words: tuple[str, ...], problem: str
) -> None:
    team("'never'")
    done = rath(*words, input="")
    assert done.exit_code in (Exit.MISUSE, Exit.WORLD)
    assert problem in done.stderr


def test_a_chat_is_one_line_of_sessions(rath: Rath, team: Team, sessions: Path) -> None:
    team("'one'", "'two'")
    done = rath("chat", "team:team", input="first\nsecond\n", ends=0, out=("one", "two"))
    *_, last = stored(sessions)
    assert [row.payload["content"] for row in last.chunk_table] == ["first", "one", "second", "two"]
    said = Session.load(last.parent_session_ids[0], store=FileStore(sessions))
    assert said.lineage_kind is LineageKind.OP_INPUT
    assert f"--session {last.id}" in done.stderr


def test_a_chat_goes_on_with_a_session(rath: Rath, team: Team, sessions: Path) -> None:
    team("'one'", "'two'")
    rath("chat", "team:team", input="first\n", ends=0)
    rath("chat", "team:team", "--session", str(stored(sessions)[-1].id), input="second\n", ends=0)
    assert len(stored(sessions)[-1].chunk_table) == 4


def test_undo_returns_to_the_turn_before(rath: Rath, team: Team, sessions: Path) -> None:
    team("'one'", "'two'", "'three'")
    rath("chat", "team:team", input="first\nsecond\n/undo\nthird\n", ends=0, err="stays recorded")
    rows = [
        [row.payload["content"] for row in each.chunk_table]
        for each in stored(sessions)
        if len(each.chunk_table) == 4
    ]
    assert sorted(rows) == [["first", "one", "second", "two"], ["first", "one", "third", "three"]]


def test_undo_returns_to_a_turn_before_the_session_that_is_continued(
    rath: Rath, team: Team, sessions: Path
) -> None:
    team("'one'", "'two'", "'three'")
    rath("chat", "team:team", input="first\nsecond\n/fork\n/explain\n", ends=0)
    (fork,) = [each for each in stored(sessions) if each.lineage_kind is LineageKind.OP_FORK]
    said = "/undo\n/undo\nthird\n"
    rath("chat", "team:team", "--session", str(fork.id), input=said, ends=0, out="three")
    texts = [[row.payload["content"] for row in each.chunk_table] for each in stored(sessions)]
    assert ["first", "one", "third", "three"] in texts


def test_a_fork_leaves_the_session_as_it_is(rath: Rath, team: Team, sessions: Path) -> None:
    team("'one'", "'two'")
    rath("chat", "team:team", input="first\n/fork\nsecond\n", ends=0, err="stays as it is")
    assert LineageKind.OP_FORK in {each.lineage_kind for each in stored(sessions)}
    assert len(stored(sessions)[-1].chunk_table) == 4


def test_an_approval_is_asked_for_and_the_run_goes_on(
    rath: Rath, team: Team, sessions: Path
) -> None:
    team("tool_call('pay', {'amount': 3}, id='c1')", "'It is paid.'")
    rath("chat", "team:team", input="pay\ny\n", ends=0, out=("paid 3", "It is paid."))
    assert stored(sessions)[-1].text() == "It is paid."


def test_a_call_is_denied_with_a_reason(rath: Rath, team: Team) -> None:
    team("tool_call('pay', {'amount': 3}, id='c1')", "'Then not.'")
    rath("chat", "team:team", input="pay\nn\ntoo much\n", ends=0, out=("too much", "Then not."))


def test_a_call_is_edited_and_asked_about_again_where_the_edit_does_not_fit(
    rath: Rath, team: Team
) -> None:
    team("tool_call('pay', {'amount': 3}, id='c1')", "'Done.'")
    said = 'pay\ne\n{"amount": "x"}\ne\n{"amount": 2}\n'
    rath("chat", "team:team", input=said, ends=0, out="paid 2", err="integer")


def test_a_question_of_a_tool_is_answered(rath: Rath, team: Team) -> None:
    team("tool_call('pick', {}, id='c1')", "'Blue it is.'")
    rath("chat", "team:team", input="pick\nblue\n", ends=0, out=("which colour?", "Blue it is."))


def test_what_waits_is_decided_later(rath: Rath, team: Team, sessions: Path) -> None:
    team("tool_call('pay', {'amount': 3}, id='c1')", "'Paid.'")
    rath("chat", "team:team", input="pay\nl\n", ends=0, err="it waits")
    waiting = stored(sessions)[-1]
    rath("chat", "team:team", "--session", str(waiting.id), input="y\n", ends=0, out="Paid.")


class DecidedMeanwhile:
    """Input of a person, before whom another program decides."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def isatty(self) -> bool:
        return False

    def readline(self) -> str:
        self._session.deny("c1", "no")
        return "y\n"


def test_what_another_program_decides_about_is_not_decided_twice(
    rath: Rath, team: Team, sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team("tool_call('pay', {'amount': 3}, id='c1')", "'Not paid.'")
    rath("chat", "team:team", input="pay\nl\n", ends=0, err="later: rath chat team:team --session")
    (*_, waiting) = stored(sessions)
    typed = DecidedMeanwhile(Session.load(waiting.id, store=FileStore(sessions)))
    again = f"rath chat team:team --session {waiting.id}"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", typed)
        with pytest.raises(CommandError) as refused:
            chat("team:team", session=str(waiting.id))
    assert "nothing was added" in str(refused.value)
    assert str(refused.value).endswith(f"to go on from there: {again}")
    rath(again.removeprefix("rath "), input="", ends=0, out="Not paid.")


class Interrupting:
    """Input of a person who presses Ctrl-C at the first question, and then types lines."""

    def __init__(self, *lines: str) -> None:
        self._lines = [*lines, ""]
        self._is_first = True

    def isatty(self) -> bool:
        return False

    def readline(self) -> str:
        if self._is_first:
            self._is_first = False
            raise KeyboardInterrupt
        return self._lines.pop(0)


def test_ctrl_c_while_a_session_goes_on_keeps_the_chat(
    rath: Rath,
    team: Team,
    sessions: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    team("'one'", "tool_call('pay', {'amount': 3}, id='c1')", "'two'")
    rath("chat", "team:team", input="first\npay\nl\n", ends=0)
    (*_, waiting) = stored(sessions)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", Interrupting("second\n", "/undo\n", "third\n"))
        chat("team:team", session=str(waiting.id))
    told = capfd.readouterr().err
    assert "cancelled; the conversation is as before" in told
    assert f"rath resume {waiting.id} MODULE:WORKFLOW" in told
    texts = [[row.payload["content"] for row in each.chunk_table] for each in stored(sessions)]
    assert ["first", "one", "third", "two"] in texts


def test_a_turn_that_waited_is_undone_at_once(rath: Rath, team: Team, sessions: Path) -> None:
    team("'one'", "tool_call('pay', {'amount': 3}, id='c1')", "'paid'", "'two'")
    rath("chat", "team:team", input="first\npay\nl\n", ends=0)
    (*_, waiting) = stored(sessions)
    said = "y\n/undo\nthird\n"
    rath("chat", "team:team", "--session", str(waiting.id), input=said, ends=0, out="two")
    texts = [[row.payload["content"] for row in each.chunk_table] for each in stored(sessions)]
    assert ["first", "one", "third", "two"] in texts


@pytest.mark.parametrize("provider", [None, {"provider_kind": "opneai", "model": "m"}])
def test_a_default_model_that_cannot_be_used_is_named(
    rath: Rath, home: Path, provider: dict[str, str] | None
) -> None:
    llm = {"default_provider": "main", "providers": {"main": provider} if provider else {}}
    config = home / ".openrath" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps({"version": 1, "llm": llm}))
    config.chmod(0o600)
    said = "unknown provider_kind 'opneai'" if provider else "error: no LLM provider named 'main'."
    rath("chat", input="hi\n", ends=Exit.WORLD, err=said)


class FullDisk:
    """A disk that is full while the second of three messages is answered; and who types them."""

    def __init__(self) -> None:
        self._lines = ["first\n", "second\n", "third\n", ""]
        self._fsync = os.fsync

    def isatty(self) -> bool:
        return False

    def readline(self) -> str:
        return self._lines.pop(0)

    def fsync(self, file: int) -> None:
        if len(self._lines) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._fsync(file)


@pytest.mark.parametrize(("turns", "status"), [(("'one'", ILL), 1), ((ILL, "'two'"), 0)])
def test_a_script_learns_whether_its_last_turn_failed(
    rath: Rath, team: Team, turns: tuple[str, str], status: int
) -> None:
    team(*turns)
    rath("chat", "team:team", input="first\nsecond\n\n", ends=status, err="the model is ill")


def test_a_full_disk_loses_nothing_of_a_chat(
    team: Team,
    sessions: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    team("'one'", "'two'", "'three'", "'four'")
    disk = FullDisk()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", disk)
        patch.setattr(os, "fsync", disk.fsync)
        chat("team:team")
    told = capfd.readouterr().err
    assert "No space left on device" in told
    assert "Free space there, and do it again\nthe conversation is as before" in told
    texts = [row.payload["content"] for row in stored(sessions)[-1].chunk_table]
    assert (texts[:3], len(texts)) == (["first", "one", "third"], 4)


def test_explain_and_view_tell_of_the_last_turn(rath: Rath, team: Team, project: Path) -> None:
    team("'one'")
    said = "/explain\nfirst\n/explain\n/view\n/nonsense\n/help\n/quit\nnever said\n"
    done = rath("chat", "team:team", input=said, ends=0)
    assert "nothing was said yet" in done.stderr
    assert "no command /nonsense" in done.stderr
    assert "never said" not in done.output
    assert list(project.glob("session-*.html"))


def test_a_failed_turn_leaves_the_conversation_as_it_was(
    rath: Rath, team: Team, sessions: Path
) -> None:
    team("'one'", "RuntimeError('the model is ill')", "'two'")
    said = "first\nsecond\nthird\n"
    rath("chat", "team:team", input=said, ends=0, out="two", err="the model is ill")
    texts = [row.payload["content"] for row in stored(sessions)[-1].chunk_table]
    assert texts == ["first", "one", "third", "two"]


def test_without_a_workflow_the_configured_model_answers(
    rath: Rath, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ChatServer(lambda _: text_stream("Good ", "day.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "test")
        monkeypatch.setenv("OPENAI_DEFAULT_MODEL", "some-model")
        rath("chat", input="hello\n", ends=0, out="Good day.\n")


def test_output_of_a_model_sends_no_commands_to_the_terminal(rath: Rath, team: Team) -> None:
    team(r"'\x1b]0;title\x07red'")
    done = rath("chat", "team:team", input="hi\n", ends=0)
    assert "\x1b" not in done.stdout
