"""A turn goes to another thread only where code of somebody else may block."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Before the runtime starts its threads, so that all of them are counted in.
PROGRAM = """
import json, sys, threading
from collections import Counter
from types import FrameType

from rath.flow import Agent, Provider
from rath.flow.tool import FlowToolCall
from rath.llm import RathLLMAssistantMessage, register_chat_client
from rath.session import Session
from rath.testing import ScriptedClient, tool_call

COUNTED = {"BaseEventLoop.call_soon_threadsafe": "wakes", "WorkerThreads.submit": "jobs",
           "BaseEventLoop.create_task": "tasks"}
counts = Counter()
is_on = threading.Event()

def note(frame, event, _):
    if event == "call" and is_on.is_set():
        name = COUNTED.get(frame.f_code.co_qualname)
        if name:
            counts[name] += 1

threading.setprofile(note)

class Answering:
    answers_offline = True
    provider = Provider(model="m", provider_kind="answering")

    def __init__(self, turns):
        self.script = ScriptedClient(turns)

    async def complete(self, request):
        return self.script.complete(request)

class Add(FlowToolCall):
    name = "add"
    description = "Adds."
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}

    def __call__(self, session, arguments):
        return arguments["a"] + 1

turns = json.loads(sys.argv[1])
script = [tool_call("add", {"a": 1}) if turn == "call" else turn for turn in turns] * 2
client = Answering(script)
register_chat_client("answering", lambda _: client)
agent = Agent("You answer.", client.provider, [Add()], system_tools=False)

def ask():
    assert agent(Session.from_user_message("go")).text() == "done"

ask()
is_on.set()
sys.setprofile(note)
ask()
sys.setprofile(None)
is_on.clear()
print(json.dumps(counts))
"""


def counts(*turns: str) -> dict[str, int]:
    """Wakes of event loops, jobs of worker threads and tasks of the second of two equal runs."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(turns)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    counted: dict[str, int] = json.loads(done.stdout)
    return counted


def test_a_plain_turn_wakes_a_loop_three_times() -> None:
    # To the runtime, to the loop of the client, and back.
    assert counts("done") == {"wakes": 3, "tasks": 2}


@pytest.mark.parametrize("n_calls", [1, 3])
def test_a_round_takes_one_job_and_three_more_wakes(n_calls: int) -> None:
    # To the loop of the client and back; the call of a plain tool is one job, and wakes once.
    expected = {"wakes": 3 + 3 * n_calls, "tasks": 2 + n_calls, "jobs": n_calls}
    assert counts(*["call"] * n_calls, "done") == expected
