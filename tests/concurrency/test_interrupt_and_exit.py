"""Ctrl-C and interpreter exit in the middle of work, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE, wait_until

PRELUDE = """
import sys, threading, time
from rath.llm import RathLLMStreamDelta
from rath.session import Session, run_session_loop
from rath.testing import ScriptedClient, tool_call
from rath.flow.tool import FlowToolCall

def ready():
    # Ctrl-C is meant for the wait: one that comes a moment before would hit the program.
    names = set()
    while not {"text", "wait"} <= names:
        time.sleep(0.001)
        names, frame = set(), sys._current_frames()[threading.main_thread().ident]
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
    print("ready", flush=True)

class Hold(FlowToolCall):
    name = "hold"
    parameters = {"type": "object"}
    def __call__(self, session, arguments):
        ready()
        time.sleep(60)

def start(turns, **options):
    client = ScriptedClient(turns)
    user = Session.from_user_message("go").to("local")
    agent = Session.from_agent_prompt("x")
    return run_session_loop(user, agent, agent_provider=client.provider, tools=[Hold()], **options)

def stuck(request):
    ready()
    time.sleep(60)
"""


def spawn(body: str) -> subprocess.Popen[str]:
    code = textwrap.dedent(PRELUDE) + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )


@pytest.mark.parametrize(
    "start",
    [
        'start([tool_call("hold"), "x"])',
        "start([stuck])",
        "start([stuck], on_event=lambda delta: None)",
        'start(["x"], on_event=lambda delta: stuck(None))',
    ],
    ids=["tool", "model call", "stream", "callback"],
)
def test_ctrl_c_in_the_middle_ends_the_wait_and_the_run(start: str) -> None:
    process = spawn(f"""
        out = {start}
        try:
            out.text()
        except KeyboardInterrupt:
            print(type(out.outcome).__name__, flush=True)
            sys.exit(0)
    """)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert out.strip() == "Cancelled"


def test_ctrl_c_kills_the_child_process_of_a_command(tmp_path: object) -> None:
    pid_file = os.path.join(str(tmp_path), "pid")
    process = spawn(f"""
        out = start([tool_call("run_shell_command",
                               {{"cmd": "echo $$ > {pid_file}; exec sleep 60"}}), "x"])
        import os
        def tell():
            while not (os.path.exists({pid_file!r}) and open({pid_file!r}).read()):
                time.sleep(0.01)
            ready()
        threading.Thread(target=tell, daemon=True).start()
        try:
            out.text()
        except KeyboardInterrupt:
            sys.exit(0)
    """)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    with open(pid_file) as file:
        assert_gone(int(file.read()))


def test_exit_with_work_in_flight_is_quick_and_names_what_was_cut_off(tmp_path: object) -> None:
    pid_file = os.path.join(str(tmp_path), "pid")
    process = spawn(f"""
        import os
        out = start([tool_call("run_shell_command",
                               {{"cmd": "echo $$ > {pid_file}; exec sleep 60"}}), "x"])
        while not (os.path.exists({pid_file!r}) and open({pid_file!r}).read()):
            time.sleep(0.01)
        print(str(out.id).split("-")[0], flush=True)
    """)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert f"session {out.strip()}" in err
    assert ".text() or .synchronize()" in err
    with open(pid_file) as file:
        assert_gone(int(file.read()))


def test_exit_with_a_tool_that_cannot_be_killed() -> None:
    process = spawn("""
        out = start([tool_call("hold"), "x"])
        time.sleep(0.3)
    """)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert "cut off" in err


def test_exit_without_work_says_nothing() -> None:
    process = spawn("""
        print(start(["hello"]).text())
    """)
    out, err = process.communicate(timeout=PATIENCE)
    assert (out, err) == ("hello\n", "")


def test_a_failure_that_nobody_read_is_said_at_exit() -> None:
    process = spawn("""
        import logging
        logging.basicConfig()
        out = start([ValueError("boom")])
        while out.is_pending:
            time.sleep(0.01)
    """)
    _, err = process.communicate(timeout=PATIENCE)
    assert err.count("nobody read its result") == 1


def assert_gone(pid: int) -> None:
    # A dead process may wait for its new parent to look.
    wait_until(lambda: state_of(pid) in {"gone", "Z"}, f"process {pid} is gone")


def state_of(pid: int) -> str:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "gone"
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone" if Path("/proc/self").exists() else "alive"
