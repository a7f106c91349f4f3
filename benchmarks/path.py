"""How much code an agent call with one shell call passes: functions and files of `rath`.

Traced in a process of its own, in all its threads, at the second call: what is imported or worked
out once does not count. The model is scripted, so the client of a vendor does not count either.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import rath
from benchmarks.endpoint import Endpoint
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, Line
from rath.flow import Agent
from rath.session import Session
from rath.testing import ScriptedClient, tool_call

_PACKAGE = str(Path(rath.__file__).parent)
_ONLY_TO_RUN_AGAIN = ("resume", "replay", "cassette", "programs", "recorded", "differences")
"""Parts of the names of modules that hold the code of runs that are resumed or replayed."""


def lines(_: Endpoint, sizes: Sizes) -> list[Line]:
    """Functions and files passed, in memory and recorded; and files of resume and replay."""
    return [*_lines("in memory", AtMost(400), AtMost(70)), *_lines("recorded", None, None)]


def _lines(mode: str, functions: AtMost | None, files: AtMost | None) -> list[Line]:
    command = [sys.executable, "-m", "benchmarks.path", mode]
    output = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    passed: list[list[str]] = json.loads(output)
    names = {file for file, _ in passed}
    again = [name for name in names if any(part in name for part in _ONLY_TO_RUN_AGAIN)]
    row = f"agent and shell call, {mode}:"
    return [
        Line(f"{row} functions", len(passed), "count", target=functions),
        Line(f"{row} files", len(names), "count", target=files),
        Line(f"{row} files of resume and replay", len(again), "count", target=AtMost(0)),
    ]


def main() -> None:
    """Print the functions that the second of two calls passes, as JSON: file and name."""
    codes: set[CodeType] = set()
    is_on = threading.Event()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and is_on.is_set():
            codes.add(frame.f_code)

    # Before the runtime starts its threads.
    threading.setprofile(note)
    call = _agent_call(is_recorded=sys.argv[1:] == ["recorded"])
    call()
    is_on.set()
    sys.setprofile(note)
    call()
    sys.setprofile(None)
    is_on.clear()
    own = (code for code in codes if code.co_filename.startswith(_PACKAGE))
    functions = [(code.co_filename[len(_PACKAGE) + 1 :], code.co_qualname) for code in own]
    print(json.dumps(sorted(functions)))


def _agent_call(*, is_recorded: bool) -> Callable[[], None]:
    shell = tool_call("run_shell_command", {"cmd": "echo ready"})
    client = ScriptedClient([shell, "It is ready.", shell, "It is ready."])
    agent = Agent("You look after a machine.", client.provider, persist=is_recorded)

    def call() -> None:
        answer = agent(Session.from_user_message("Is it ready?").to("local"))
        assert answer.text() == "It is ready."

    return call


if __name__ == "__main__":
    main()
