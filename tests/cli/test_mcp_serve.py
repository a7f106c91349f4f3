"""`rath mcp serve`: what is said before anything is served."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.cli.conftest import Rath

AGENTS = """
from rath.flow import Agent, Workflow
from rath.testing import ScriptedClient

agent = Agent("x", ScriptedClient([]).provider)
number = 7

def make():
    return agent

def broken():
    raise ValueError("no such flavour")
"""


@pytest.fixture(autouse=True)
def agents(project: Path) -> Path:
    file = project / "served_agents.py"
    file.write_text(AGENTS)
    return file


WRONG = {
    "no attribute": (["served_agents"], "names no workflow; expected MODULE:ATTRIBUTE"),
    "no module": (["nowhere_at_all:agent"], "no module 'nowhere_at_all'"),
    "no file": (["nowhere/agents.py:agent"], "no file 'nowhere/agents.py'"),
    "no such attribute": (["served_agents:agnt"], "no attribute 'agnt'. Did you mean 'agent'?"),
    "no workflow": (["served_agents:number"], "is a int; expected a workflow or an agent"),
    "an error of its own": (["served_agents:broken"], "no such flavour"),
    "everybody": (["served_agents:agent", "--host", "0.0.0.0"], "lets everybody on that network"),
    "no token": (["served_agents:agent", "--token-env", "NOT_SET"], "'NOT_SET' of --token-env"),
    "a port": (["served_agents:agent", "--port", "-1"], "port -1 is out of range"),
    "a name": (["served_agents:agent", "--name", "a b"], "cannot be the name of a tool"),
}


@pytest.mark.parametrize(("arguments", "problem"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_served_is_said(rath: Rath, arguments: list[str], problem: str) -> None:
    done = rath("mcp serve --http", *arguments, ends=2)
    assert problem in " ".join(done.stderr.split())


def test_a_file_with_the_name_of_a_module_is_refused(rath: Rath, project: Path) -> None:
    (project / "json.py").write_text("agent = 1\n")
    done = rath("mcp serve --http json.py:agent", ends=2)
    assert "has the name of another module" in " ".join(done.stderr.split())


def test_a_port_that_is_taken_is_a_problem(rath: Rath, project: Path) -> None:
    agents = project / "agents_on_a_port.py"
    agents.write_text(AGENTS)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = rath("mcp serve --http", f"{agents}:make", "--port", port)
    assert done.exit_code == 1
    assert "in use" in done.stderr
