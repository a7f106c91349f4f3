"""`rath resume` and `rath replay`: going on with what is stored, and running it again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rath import autosave, flow
from rath._async.deferred import Deferred
from rath._core.vector import Vector
from rath.cli.runs import load_workflow
from rath.cli.terminal import Exit, Misuse
from rath.errors import PersistenceError, ProviderServerError
from rath.session import Session
from rath.session.persistence.store import FileStore
from rath.testing import ScriptedClient, tool_call
from tests.cli.conftest import Rath
from tests.cli.test_explain import V1, keep, with_other_digest
from tests.session.resume.test_programs import cancelled_inside, waiting_tool
from tests.support.sessions import FunctionTool, run

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


def test_what_is_another_than_it_was_is_told(rath: Rath, cut_off: str) -> None:
    # Every script is a provider of its own kind.
    first = rath("resume", cut_off, "crew:team", "--check", ends=Exit.ANSWERED)
    assert first.stdout.startswith(f"{cut_off}: 1 difference\n  provider_kind is 'scripted-")
    sys.modules["crew"].team.worker.tools = []
    told = json.loads(rath("resume", cut_off, "crew:team", "--check", "--json").stdout)
    assert [(each["kind"], each.get("name")) for each in told["differences"]] == [
        ("ToolDiffers", "send"),
        ("ProviderDiffers", None),
    ]
    rath("resume", cut_off, "crew:team", "--check", out="2 differences\n  tool 'send' is not there")


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
    ("name", "said"),
    [
        ("crew", "expected MODULE:ATTRIBUTE"),
        (":team", "expected MODULE:ATTRIBUTE"),
        ("no_such_crew:team", "no module 'no_such_crew'"),
        ("crew:taem", "no attribute 'taem'. Did you mean 'team'?"),
        ("crew:number", "is a int; expected a workflow"),
    ],
)
def test_a_name_of_no_workflow_is_a_wrong_call(program: Path, name: str, said: str) -> None:
    with pytest.raises(Misuse, match=re.escape(said)):
        load_workflow(name)


def test_a_class_is_called_for_its_workflow(program: Path) -> None:
    assert isinstance(load_workflow("crew:Team"), flow.Workflow)


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
def test_what_a_program_raises_is_told_in_one_line(
    program: Path, code: str, attribute: str, said: str
) -> None:
    (program / "needy.py").write_text(f"{code}\n")
    sys.modules.pop("needy", None)
    with pytest.raises(Misuse, match=f"'needy:{attribute}' raised {said}|'needy' raised {said}"):
        load_workflow(f"needy:{attribute}")


def test_what_a_workflow_raises_when_it_goes_on_is_told_in_one_line(
    rath: Rath, program: Path, cut_off: str
) -> None:
    code = PROGRAM.replace("return self.worker(session)", "raise KeyError('mine')")
    (program / "crew.py").write_text(code)
    done = rath("resume", cut_off, "crew:team", "--decide", "c=retry", ends=Exit.MISUSE)
    assert re.search(r"'crew:team' raised KeyError: 'mine' \(.*crew.py:\d+\)", done.stderr)
    assert "Traceback" not in done.stderr


def test_what_a_program_says_of_rath_is_told_as_it_is(program: Path) -> None:
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


def test_what_was_not_recorded_is_not_said_to_be_the_same(rath: Rath) -> None:
    rath("replay", str(V1 / "tools.jsonl"), ends=Exit.MISSING, out="", err="version 1")


def test_a_replay_that_differs_is_a_problem(rath: Rath, tmp_path: Path) -> None:
    out = run(["done"]).synchronize()
    other = Session.from_body(
        Deferred.of(replace(out.body.result(), record=Vector(map(with_other_digest, out.record)))),
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
