"""Replies to what waits in a store, and runs that go on or are replayed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rath as rath_package
from rath import autosave, flow
from rath._async.deferred import Deferred
from rath._core.vector import Vector
from rath.cli.runs import load_workflow
from rath.cli.terminal import CommandError, Exit
from rath.errors import PersistenceError, ProviderServerError
from rath.session import Session
from rath.session.outcome import Completed
from rath.session.persistence.store import FileStore
from rath.testing import ScriptedClient, tool_call
from tests.cli.conftest import Rath
from tests.cli.test_explain import V1, keep, with_other_digest
from tests.session.approvals.test_inside_calls import Helper, agent_of, boss_of
from tests.session.resume.test_programs import cancelled_inside, waiting_tool
from tests.support.approvals import Noting, calls_of, decisions, go, results, waiting
from tests.support.cut_off import cut_off as shortened
from tests.support.sessions import FunctionTool, run


@pytest.fixture
def stored(project: Path) -> Session:
    """Three calls that wait for approvals."""
    assert project.exists()
    return waiting(1, 2, 3, persist=True)


def test_calls_are_approved_denied_and_edited_and_the_run_goes_on(
    rath: Rath, stored: Session
) -> None:
    ident = str(stored.id)
    done = rath("approve", ident, "c1", "--by", "ada", ends=Exit.ANSWERED)
    assert done.stdout.startswith(f"approved c1 of session {ident[:8]} by ada\n  f {{")
    assert "2 calls still to decide" in done.stdout
    assert f"rath deny {ident} c2 REASON" in done.stdout
    done = rath("deny", ident[:8], "c2", "too early", ends=Exit.ANSWERED)
    assert done.stdout.startswith(f"denied c2 of session {ident[:8]} by ann: too early\n")
    done = rath("edit", ident, "c3", '{"n": 7}', ends=Exit.ANSWERED)
    assert f"\n  rath resume {ident} MODULE:WORKFLOW\n" in done.stdout
    told = rath("show", ident, out="? nothing waits any more; to resume:\n").stdout
    assert told.endswith(f"      rath resume {ident} MODULE:WORKFLOW\n")
    tool = Noting()
    out = go(["done"], tool, user=Session.load(ident))
    assert sorted(tool.calls) == [1, 7]
    assert results(out)[1][1]["message"].endswith("too early")
    assert [each.by for each in decisions(out)] == ["ada", "ann", "ann"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("approve", "c9"), "no call 'c9' waits for an approval; what waits: c1 waits"),
        (("approve",), "3 calls wait for an approval; give the id of one: c1 waits"),
        (("edit", "c1", "[1]"), "must be a JSON object"),
        (("edit", "c1", "{"), "is no JSON"),
        (("edit", "c1", '{"n": "x"}'), "'x' is not of type 'integer'"),
        (("answer", "c1", "1"), "'c1' waits for an approval, not for an answer: c1 waits"),
        (("answer", "c1", "red"), "for a text give --text"),
    ],
    ids=["unknown", "several", "a list", "no JSON", "schema", "no question", "a bare word"],
)
def test_what_cannot_be_reported_is_refused_with_status_2(
    arguments: tuple[str, ...], said: str, rath: Rath, stored: Session
) -> None:
    verb, *more = arguments
    done = rath(verb, str(stored.id), *more, ends=Exit.MISUSE)
    assert said in " ".join(done.output.split())
    assert decisions(Session.load(stored.id)) == []


def test_show_marks_the_decision_in_force_where_several_were_taken(
    rath: Rath, stored: Session
) -> None:
    stored.deny("c1", "no").approve("c1").approve("c2")
    taken = [each for each in rath("show", str(stored.id)).stdout.splitlines() if "decided" in each]
    assert [each.strip(" ·") for each in taken] == [
        "replaced: ann decided: deny c1: no",
        "in force: ann decided: approve c1",
        "ann decided: approve c2",
    ]


@pytest.mark.parametrize("verb", ["approve", "deny"])
def test_the_only_call_that_waits_needs_no_id(verb: str, rath: Rath, project: Path) -> None:
    assert project.exists()
    session = waiting(1, persist=True)
    rath(verb, str(session.id), ends=Exit.ANSWERED, out="c1 of session")
    assert [each.choice for each in decisions(Session.load(session.id))] == [verb]
    rath(verb, str(session.id), ends=Exit.MISUSE, err="nothing waits in this session")


def test_a_reply_that_does_not_fit_names_the_command_that_does(rath: Rath, project: Path) -> None:
    assert project.exists()
    tool = Noting(work=lambda _: rath_package.ask("which one?"), approval="never")
    session = go([calls_of(1)], tool, persist=True)
    rath("deny", str(session.id), "c1", ends=Exit.MISUSE, err="'c1' waits for an answer, not for")
    err = (
        "what waits:\n  c1 asks: which one? (f ",
        f"\n    rath answer --text {session.id} c1 VALUE\n",
    )
    rath("deny", str(session.id), ends=Exit.MISUSE, err=err)


def test_calls_of_one_id_are_named_by_their_index(rath: Rath, project: Path) -> None:
    assert project.exists()
    turn = tool_call("f", {"n": 1}, tool_call("f", {"n": 2}, id="same"), id="same")
    session = go([turn], Noting(), persist=True)
    done = rath("approve", str(session.id), "same", ends=Exit.MISUSE)
    assert "--index 0, --index 1" in done.output
    assert rath("approve", str(session.id), "same", "--index", "1").exit_code == Exit.ANSWERED
    assert [each.waits for each in Session.load(session.id).open_calls] == [True, False]


@pytest.mark.parametrize("name", ["-x", "--by", "it's $HOME"])
def test_a_call_of_any_id_is_approved_by_that_id(rath: Rath, project: Path, name: str) -> None:
    assert project.exists()
    session = go([tool_call("f", {"n": 1}, id=name)], Noting(), persist=True)
    told = rath("show", str(session.id)).output.splitlines()
    (line,) = [each.strip() for each in told if "rath approve" in each]
    assert rath(*shlex.split(line)[1:]).exit_code == Exit.ANSWERED
    assert [each.waits for each in Session.load(session.id).open_calls] == [False]


@pytest.mark.parametrize(
    ("words", "expected"),
    [(("3",), 3), (('"red"',), "red"), (("red", "--text"), "red"), (("[1, 2]",), [1, 2])],
    ids=["number", "text", "bare text", "list"],
)
def test_a_question_is_answered(
    words: tuple[str, ...], expected: Any, rath: Rath, project: Path
) -> None:
    assert project.exists()
    tool = Noting(work=lambda _: {"said": rath_package.ask("what?")}, approval="never")
    session = go([calls_of(1)], tool, persist=True)
    value, *more = words
    assert rath("answer", str(session.id), "c1", value, *more).exit_code == Exit.ANSWERED
    out = go(["done"], tool, user=Session.load(session.id))
    assert results(out) == [("c1", {"said": expected})]


def test_show_tells_what_is_asked_and_how_to_answer(rath: Rath, project: Path) -> None:
    assert project.exists()
    tool = Noting(work=lambda _: rath_package.ask("which one?", {"type": "integer"}))
    session = go([calls_of(1)], tool, persist=True)
    told = rath("show", str(session.id)).output
    assert "? c1 waits for an approval" in told
    assert f"rath deny {session.id} c1 REASON" in told
    assert rath("approve", str(session.id), "c1").exit_code == Exit.ANSWERED
    go([], tool, user=Session.load(session.id))
    told = rath("show", str(session.id)).output
    assert "needs_input: which one?" in told
    assert "? c1 asks: which one?" in told
    assert f"rath answer {session.id} c1 VALUE" in told
    (waits,) = json.loads(rath("show", str(session.id), "--json").output)["waiting"]
    assert (waits["question"], waits["schema"]) == ("which one?", {"type": "integer"})


def test_show_writes_out_escapes_that_stand_in_a_question(rath: Rath, project: Path) -> None:
    assert project.exists()
    tool = Noting(work=lambda _: rath_package.ask("\x1b]0;a\x07 \x9b31mred?"), approval="never")
    session = go([calls_of(1)], tool, persist=True)
    told = rath("show", str(session.id), ends=Exit.ANSWERED).output
    assert {char for char in told if not char.isprintable()} == {"\n"}
    assert told.count(r"\x1b]0;a\x07 \x9b31mred?") == 3


def test_what_waits_inside_a_call_is_reported_by_the_id_of_the_outer_session(
    rath: Rath, project: Path
) -> None:
    assert project.exists()
    tool = Noting()
    boss = boss_of(Helper(agent_of("helper", [calls_of(1), "helper is done"], tool)))
    with autosave():
        out = boss(Session.from_user_message("go")).synchronize()
        assert "c1 waits for an approval" in rath("show", str(out.id)).output
        assert rath("approve", str(out.id), "c1").exit_code == Exit.ANSWERED
        assert boss(Session.load(out.id)).outcome == Completed()
    assert tool.calls == [1]


def test_show_tells_of_a_call_whose_end_is_not_known(rath: Rath, project: Path) -> None:
    assert project.exists()
    whole = go([calls_of(1), "done"], Noting(approval="never"))
    session = shortened(whole, 0, begun=[0])
    session.save()
    told = " ".join(rath("show", str(session.id)).output.split())
    assert "c1 waits for a decision: f" in told
    assert f"rath resume {session.id} MODULE:WORKFLOW --decide c1=CHOICE" in told


PROGRAM = """
import os
import sys
from pathlib import Path

from rath import flow
from rath.flow.tool import FlowToolCall
from rath.session import Session
from rath.testing import ScriptedClient, tool_call


class Send(FlowToolCall):
    name = "send"
    parameters = {"type": "object"}

    def __call__(self, session, arguments):
        if not Path("calm").exists():
            os._exit(9)
        return "sent"


class Other(flow.Workflow):
    def forward(self, session):
        return session


class Team(flow.Workflow):
    def __init__(self, turns=("all is done",)):
        super().__init__()
        model = ScriptedClient(turns).provider
        self.worker = flow.Agent("You work.", model, tools=[Send()], system_tools=False)

    def forward(self, session):
        return self.worker(session)


class Pair(Team):
    def __init__(self, turns=("all is done", "and told")):
        super().__init__(turns)
        model = self.worker.agent.provider
        self.teller = flow.Agent("You tell.", model, system_tools=False)

    def forward(self, session):
        return self.teller(self.worker(session).fork())


team, pair = Team(), Pair()
number = 1
if __name__ == "__main__":
    user = Session.from_user_message("send it")
    made = {"team": Team, "pair": Pair}[sys.argv[1]]
    made([tool_call("send", id="c"), "never"])(user).synchronize()
"""


@pytest.fixture
def program(project: Path) -> Iterator[Path]:
    """A program in the working directory, which nothing has imported."""
    (project / "crew.py").write_text(PROGRAM)
    before = list(sys.path)
    yield project
    sys.path[:] = before
    sys.modules.pop("crew", None)


@pytest.fixture
def cut_off(program: Path) -> str:
    """A session whose process died inside a call that cannot be repeated."""
    return died(program, "team")


def died(program: Path, which: str) -> str:
    """Run a workflow of the program until it dies inside a call, and return that session."""
    done = subprocess.run(
        [sys.executable, "crew.py", which],
        cwd=program,
        env={**os.environ, "OPENRATH_PERSIST": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        timeout=60,
    )
    assert done.returncode == 9
    (log,) = program.parent.rglob("*.jsonl.__partial__")
    return log.name.partition(".")[0]


def test_a_run_that_waits_names_the_call_and_goes_on_once_it_is_decided(
    rath: Rath, cut_off: str
) -> None:
    waits = rath("resume", cut_off, "crew:team", ends=Exit.WORLD, out="needs_decision")
    assert "--decide c=retry, skip or done" in waits.stdout
    told = json.loads(rath("resume", cut_off, "crew:team", "--json").stdout)
    assert told["calls"] == [{"call": "c", "tool": "send", "waits_for": "decision"}]
    done = rath("resume", cut_off, "crew:team", "--decide", "c=skip", ends=Exit.ANSWERED)
    assert done.stdout.startswith(f"{cut_off}: completed, 4 rows")
    assert "  all is done\n" in done.stdout
    again = rath("resume", cut_off, "crew:team", "--json")
    assert json.loads(again.stdout)["state"] == "completed"


def test_what_passes_on_that_a_call_waits_names_it_and_is_resumed_in_its_place(
    rath: Rath, program: Path
) -> None:
    cut_off = died(program, "pair")
    waits = rath("resume", cut_off, "crew:pair", ends=Exit.WORLD)
    last = waits.stdout.partition(":")[0]
    assert f"  because of session {cut_off}\n" in waits.stdout
    assert "--decide c=retry, skip or done" in waits.stdout
    told = json.loads(rath("resume", last, "crew:pair", "--json").stdout)
    assert (told["session"], told["stopped"]) == (last, cut_off)
    assert told["calls"] == [{"call": "c", "tool": "send", "waits_for": "decision"}]
    done = rath("resume", last, "crew:pair", "--decide", "c=skip", ends=Exit.ANSWERED)
    assert done.stdout.startswith(f"{last}: completed")
    assert "  and told\n" in done.stdout


def test_what_was_cancelled_goes_on_only_where_that_is_asked_for(rath: Rath, program: Path) -> None:
    with autosave():
        out = cancelled_inside(*waiting_tool("idempotent"))
    (program / "loners.py").write_text(
        "from rath import flow\nfrom rath.testing import ScriptedClient\n"
        "from tests.support.sessions import FunctionTool\n"
        "quick = FunctionTool('wait', lambda *_: 'at last')\nquick.effects = 'idempotent'\n"
        "one = flow.Agent('one', ScriptedClient(['done']).provider, [quick])\n"
    )
    kept = rath("resume", str(out.id), "loners:one", ends=Exit.WORLD)
    assert "it was cancelled; --go-on goes on with it" in kept.stdout
    done = rath("resume", str(out.id), "loners:one", "--go-on")
    sys.modules.pop("loners", None)
    assert done.exit_code == Exit.ANSWERED, done.output
    assert done.stdout.startswith(f"{out.id}: completed")


def test_what_nobody_knows_of_a_run_that_was_cut_off_is_explained(rath: Rath, cut_off: str) -> None:
    done = rath("explain", cut_off, ends=Exit.ANSWERED)
    assert "turn 1 · send (c): no result; whether it took effect" in " ".join(done.stdout.split())


def test_a_program_that_does_something_else_is_a_problem(rath: Rath, cut_off: str) -> None:
    crew: Any = load_workflow("crew:team")
    model = ScriptedClient(["no"]).provider
    crew.worker = flow.Agent("You do something else.", model, tools=crew.worker.tools)
    rath(
        "resume", cut_off, "crew:team", "--decide", "c=skip", ends=Exit.WORLD, err="the record says"
    )


def test_a_decision_that_says_nothing_is_a_wrong_call(rath: Rath, cut_off: str) -> None:
    wrong = ["c", "c=maybe", "=skip", "x=skip"]
    codes = [rath("resume", cut_off, "crew:team", "--decide", each).exit_code for each in wrong]
    assert codes == [Exit.MISUSE] * 4


def test_what_is_another_than_it_was_is_reported(rath: Rath, cut_off: str) -> None:
    # Every script is a provider of its own kind.
    first = rath("resume", cut_off, "crew:team", "--check", ends=Exit.ANSWERED)
    assert first.stdout.startswith(f"{cut_off}: 1 difference\n  provider_kind is 'scripted-")
    sys.modules["crew"].team.worker.tools = []
    told = json.loads(rath("resume", cut_off, "crew:team", "--check", "--json").stdout)
    assert [(each["kind"], each.get("name")) for each in told["differences"]] == [
        ("ToolDiffers", "send"),
        ("ProviderDiffers", None),
    ]
    rath(
        "resume",
        cut_off,
        "crew:team",
        "--check",
        out="2 differences\n  tool 'send' is not there any",
    )


def test_another_workflow_is_a_wrong_call(rath: Rath, cut_off: str) -> None:
    assert rath("resume", cut_off, "crew:Other").exit_code == Exit.MISUSE
    assert rath("resume", cut_off, "crew:Other", "--check").exit_code == Exit.MISUSE


def test_a_session_that_was_made_outside_of_a_workflow_goes_on_with_its_agent(
    rath: Rath, program: Path, tmp_path: Path
) -> None:
    failing = ScriptedClient([tool_call("f"), ProviderServerError("down", status=503)])
    tool = FunctionTool("f", lambda *_: 1)
    with autosave():
        out = run([], tool, agent_provider=failing.provider)
        with pytest.raises(ProviderServerError):
            out.synchronize()
    (program / "agents.py").write_text(
        "from rath import flow\nfrom rath.testing import ScriptedClient\n"
        "agent = flow.Agent('You are a test.', ScriptedClient(['at last']).provider,"
        " system_tools=False)\n"
    )
    done = rath("resume", str(out.id), "agents:agent")
    sys.modules.pop("agents", None)
    assert done.exit_code == Exit.ANSWERED, done.output
    assert "at last" in done.stdout


def test_a_session_that_has_ended_waits_for_nothing(
    rath: Rath, program: Path, tmp_path: Path
) -> None:
    done = rath("resume", keep(run(["done"]), tmp_path)[0], "crew:team", "--store", str(tmp_path))
    assert done.exit_code == Exit.MISUSE
    assert "waits for nothing" in done.stderr


@pytest.mark.parametrize(
    ("code", "attribute", "said"),
    [
        ("import not_there_at_all", "x", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("1 / 0", "x", r"ZeroDivisionError: division by zero \(.*needy.py:1\)"),
        ("def (", "x", "SyntaxError: .*needy.py, line 1"),
        ("raise SystemExit(0)", "x", "SystemExit: 0"),
        ("def x(n): ...", "x", "TypeError: x.. missing 1 required"),
        ("def x():\n    raise KeyError('k')", "x", "KeyError: 'k' .*needy.py:2"),
    ],
)
def test_what_a_program_raises_is_reported_in_one_line(
    program: Path, code: str, attribute: str, said: str
) -> None:
    (program / "needy.py").write_text(f"{code}\n")
    sys.modules.pop("needy", None)
    said = f"'needy:{attribute}' raised {said}|'needy' raised {said}"
    with pytest.raises(CommandError, match=said) as raised:
        load_workflow(f"needy:{attribute}")
    assert raised.value.exit_code == Exit.WORLD


def test_what_a_workflow_raises_when_it_goes_on_is_reported_in_one_line(
    rath: Rath, program: Path, cut_off: str
) -> None:
    code = PROGRAM.replace("return self.worker(session)", "raise KeyError('mine')")
    (program / "crew.py").write_text(code)
    done = rath("resume", cut_off, "crew:team", "--decide", "c=retry", ends=Exit.WORLD)
    assert re.search(r"'crew:team' raised KeyError: 'mine' \(.*crew.py:\d+\)", done.stderr)
    assert "Traceback" not in done.stderr


def test_what_a_program_says_of_rath_is_reported_as_it_is(program: Path) -> None:
    (program / "keyless.py").write_text(
        "from rath.errors import PersistenceError\nraise PersistenceError('no room')\n"
    )
    with pytest.raises(PersistenceError, match="no room"):
        load_workflow("keyless:x")


def test_a_session_is_replayed_from_its_record(rath: Rath, tmp_path: Path) -> None:
    asked = keep(run(["done"]), tmp_path)
    done = rath("replay", *asked, ends=Exit.ANSWERED)
    assert "rows, record and requests are the same" in " ".join(done.stdout.split())
    told = json.loads(rath("replay", *asked, "--json").stdout)
    assert (told["session"], told["state"], told["waits"]) == (asked[0], "completed", False)


def test_unrecorded_data_is_not_called_equal(rath: Rath) -> None:
    rath("replay", str(V1 / "tools.jsonl"), ends=Exit.MISSING, out="", err="version 1")


def test_a_replay_that_differs_is_a_problem(rath: Rath, tmp_path: Path) -> None:
    out = run(["done"]).synchronize()
    other = Session.from_body(
        Deferred.of(
            replace(out.core.body.result(), record=Vector(map(with_other_digest, out.record)))
        ),
        out.provenance,
        id=out.id,
    )
    rath("replay", *keep(other, tmp_path), ends=Exit.WORLD, err="expected")


def test_a_session_goes_on_from_a_row_on_another_course(rath: Rath, tmp_path: Path) -> None:
    client = ScriptedClient(["done", "on another course"])
    asked = keep(run([], agent_provider=client.provider), tmp_path)
    done = rath("replay", *asked, "--at", "1", "--prompt", "and now?", ends=Exit.ANSWERED)
    assert "went on from row 1, 3 rows\n  on another course\n" in done.stdout
    made = Session.load(done.stdout.partition(":")[0], store=FileStore(tmp_path))
    assert made.text() == "on another course"


def test_what_a_run_raises_on_its_other_course_is_no_wrong_call(rath: Rath, tmp_path: Path) -> None:
    client = ScriptedClient(["done", ValueError("the model is broken")])
    asked = keep(run([], agent_provider=client.provider), tmp_path)
    done = rath("replay", *asked, "--at", "1", "--prompt", "and now?")
    assert done.exit_code != Exit.MISUSE
    assert "the model is broken" in str(done.exception)


@pytest.mark.parametrize("more", [("--prompt", "x"), ("--provider", "x")])
def test_another_course_needs_a_row(rath: Rath, tmp_path: Path, more: tuple[str, str]) -> None:
    rath("replay", *keep(run(["done"]), tmp_path), *more, ends=Exit.MISUSE, err="--at")


@pytest.mark.parametrize("more", [("--at", "9"), ("--at", "1", "--provider", "nobody")])
def test_a_row_or_provider_that_there_is_not_is_a_wrong_call(
    rath: Rath, tmp_path: Path, more: tuple[str, ...]
) -> None:
    rath("replay", *keep(run(["done"]), tmp_path), *more, ends=Exit.MISUSE)
