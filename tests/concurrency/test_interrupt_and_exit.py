"""Ctrl-C and interpreter exit in the middle of work, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rath.session import Session
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


def spawn(body: str, **environ: str) -> subprocess.Popen[str]:
    code = textwrap.dedent(PRELUDE) + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def interrupt_when_ready(process: subprocess.Popen[str]) -> None:
    """Send Ctrl-C when the program says that it waits."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)


def ended(process: subprocess.Popen[str], status: int = 0) -> tuple[str, str]:
    """Wait for the end of a program, and return what it said on stdout and stderr."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == status, err
    return out, err


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
    interrupt_when_ready(process)
    assert ended(process)[0].strip() == "Cancelled"


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
    interrupt_when_ready(process)
    ended(process)
    with open(pid_file) as file:
        assert_gone(int(file.read()))


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("1 / 0", 1),
        ("sys.exit(3)", 3),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("try: sys.exit(3)\n        finally: print('bye')", 3),
        ("try: sys.exit(3)\n        except SystemExit: raise", 3),
    ],
    ids=["error", "status", "interrupt", "status and finally", "status raised again"],
)
def test_an_end_by_failure_cancels_what_runs_and_names_it(
    tmp_path: Path, end: str, status: int
) -> None:
    pid_file = tmp_path / "pid"
    process = spawn(f"""
        import os
        out = start([tool_call("run_shell_command",
                               {{"cmd": "echo $$ > {pid_file}; exec sleep 60"}}), "x"])
        while not (os.path.exists({str(pid_file)!r}) and open({str(pid_file)!r}).read()):
            time.sleep(0.01)
        print(str(out.id).split("-")[0], flush=True)
        {end}
    """)
    out, err = ended(process, status)
    assert f"cut off: session {out.split()[0]}" in err
    assert "rath.at_exit(" in err
    assert_gone(int(pid_file.read_text()))


def test_an_end_by_failure_leaves_a_tool_that_cannot_be_killed() -> None:
    process = spawn("""
        entered = threading.Event()
        class Stay(Hold):
            def __call__(self, session, arguments):
                entered.set()
                time.sleep(60)
        Hold = Stay
        out = start([tool_call("hold"), "x"])
        entered.wait()
        sys.exit(1)
    """)
    assert "cut off" in ended(process, 1)[1]


@pytest.mark.parametrize(
    ("setting", "prelude"),
    [({}, "import rath; rath.at_exit('cancel')"), ({"OPENRATH_AT_EXIT": "cancel"}, "")],
    ids=["call", "variable"],
)
def test_a_normal_end_cancels_where_that_is_the_policy(
    setting: dict[str, str], prelude: str
) -> None:
    process = spawn(
        f"""
        {prelude}
        called = threading.Event()
        def stay(request):
            called.set()
            time.sleep(60)
        out = start([stay])
        called.wait()
        """,
        **setting,
    )
    assert "cut off: session" in ended(process)[1]


@pytest.mark.parametrize(
    ("setting", "message"),
    [("rath.at_exit('wait')", "rath.at_exit() says 'wait'"),
     ("os.environ['OPENRATH_AT_EXIT'] = 'wait'; start(['x'])", "OPENRATH_AT_EXIT says 'wait'")],
    ids=["call", "variable"],
)  # fmt: skip
def test_a_policy_that_is_none_is_refused_in_the_program(setting: str, message: str) -> None:
    process = spawn(f"import os, rath\n{setting}")
    assert f"ValueError: {message}; expected 'finish' or 'cancel'" in ended(process, 1)[1]


LATE = """
def at_the_end(answer="late"):
    # Only once the interpreter ends is there an answer.
    def turn(request):
        while True:
            time.sleep(0.001)
            frame = sys._current_frames()[threading.main_thread().ident]
            while frame is not None and frame.f_code.co_name != "_shutdown":
                frame = frame.f_back
            if frame is not None:
                print("answered", flush=True)
                return answer
    return turn
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit()",
        "sys.exit(0)",
        # It was caught, so the program went on.
        "try:\n    sys.exit(3)\nexcept SystemExit:\n    pass",
        "import asyncio\nasyncio.run(asyncio.sleep(0))",
    ],
    ids=["last line", "exit", "exit 0", "caught exit", "asyncio"],
)
def test_a_normal_end_finishes_what_runs_and_what_hangs_on_it(tmp_path: Path, end: str) -> None:
    process = spawn(
        LATE
        + textwrap.dedent("""
        import rath
        from rath import flow
        from rath.memory import MemoryStoreSpec
        rath.autosave()
        client = ScriptedClient([at_the_end(), "later"])
        agent = flow.Agent("x", client.provider, memory="local", system_tools=False)
        first = agent(Session.from_user_message("go"))
        agent.commit_memory(first)
        out = agent(first.fork().merge(Session.from_user_message("more")))
        print(first.id, out.id, flush=True)
        del first, out
        """)
        + textwrap.dedent(end),
        OPENRATH_HOME=str(tmp_path),
    )
    out, err = ended(process)
    assert complaints(err) == []
    ids, answered = out.splitlines()
    assert answered == "answered"
    store = str(tmp_path / "sessions")
    texts = [Session.load(id, store=store).text() for id in ids.split()]
    assert texts == ["late", "later"]
    assert "late" in "".join(
        path.read_text() for path in (tmp_path / "memory").rglob("messages.json")
    )


def test_the_file_of_a_run_is_there_when_the_program_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    process = spawn(
        LATE
        + f"""
from pathlib import Path
start([at_the_end()], persist_path=Path({str(path)!r}))
start(["in the store"], persist=True)
""",
        OPENRATH_HOME=str(tmp_path / "home"),
    )
    assert complaints(ended(process)[1]) == []
    assert Session.load(path).text() == "late"
    store = tmp_path / "home" / "sessions"
    [stored] = [
        Session.load(path)
        for path in store.rglob("*.jsonl")
        if "run_session_loop" in path.read_text()
    ]
    assert stored.text() == "in the store"


@pytest.mark.parametrize(
    "how",
    [
        "threading.Thread(target=lambda: print(start([at_the_end()]).text())).start()",
        "import multiprocessing\ncontext = multiprocessing.get_context('fork')\n"
        "child = context.Process(target=lambda: start(['in the child']))\n"
        "child.start()\nchild.join()\nprint('late' if child.exitcode == 0 else child.exitcode)",
        "pool = ThreadPoolExecutor(1)\n"
        "ask = at_the_end()\n"
        "start([lambda request: (ask(request), pool.submit(str, 'late').result())[1]],\n"
        "      on_event=lambda delta: delta.content_delta and print(delta.content_delta))",
    ],
    ids=["thread", "child process", "thread pool in a tool"],
)
def test_a_normal_end_finishes_what_other_threads_and_processes_run(how: str) -> None:
    process = spawn(LATE + "from concurrent.futures import ThreadPoolExecutor\n" + how)
    out, err = ended(process)
    assert complaints(err) == []
    assert out.splitlines()[-1] == "late"


def test_a_child_of_multiprocessing_that_fails_cancels_what_runs() -> None:
    process = spawn("""
        import multiprocessing
        def work():
            start([lambda request: time.sleep(60)])
            raise ValueError("no")
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        print(child.exitcode)
    """)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, "1\n")
    assert "cut off: session" in err


def test_a_forked_child_does_not_wait_for_the_runs_of_its_parent() -> None:
    process = spawn("""
        import os, warnings
        go = threading.Event()
        out = start([lambda request: "late" if go.wait(60) else "never"])
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
        if child == 0:
            sys.exit(0)
        print(os.waitpid(child, 0)[1], flush=True)
        go.set()
    """)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, complaints(err)) == (0, "0\n", [])


WAITING = """
# The end of the input is no answer.
out = start([lambda request: sys.stdin.readline() or threading.Event().wait()])
print(str(out.id).split("-")[0], flush=True)
"""


HANDLER = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
AT_EXIT = "import atexit\natexit.register(print, 'exit handler')\n"


@pytest.mark.parametrize(
    ("prelude", "sent", "status", "printed"),
    [
        ("", None, 0, ""),
        (HANDLER, signal.SIGTERM, 143, ""),
        (AT_EXIT, signal.SIGINT, -signal.SIGINT, "exit handler\n"),
    ],
    ids=["answered", "termination", "interrupt"],
)
def test_a_wait_at_the_end_is_reported_and_goes_on_until_a_signal_ends_it(
    prelude: str, sent: signal.Signals | None, status: int, printed: str
) -> None:
    process = spawn(prelude + WAITING)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdin is not None
    id = process.stdout.readline().strip()
    report = process.stderr.readline()
    assert report.startswith(
        f"rath: the program is done and waits for 1 session in flight (session {id} "
    )
    assert report.endswith("; Ctrl-C ends that\n")
    if sent is None:
        process.stdin.write("go on\n")
    else:
        process.send_signal(sent)
    out, err = ended(process, status)
    assert (out, "Traceback" in err) == (printed, False)
    assert (f"cut off: session {id}" in err) == (sent is not None)
    assert sent is not None or complaints(err) == []


def test_a_daemon_thread_that_goes_on_submitting_is_not_waited_for() -> None:
    process = spawn("""
        def submit():
            while True:
                try:
                    start(["tick"]).text()
                except RuntimeError:
                    return
                ticked.set()
        ticked = threading.Event()
        threading.Thread(target=submit, daemon=True).start()
        ticked.wait()
    """)
    ended(process)


def complaints(err: str) -> list[str]:
    """What a program said on stderr, but that it waits, as it does on a busy machine."""
    return [line for line in err.splitlines() if " waits for " not in line]


def test_exit_without_work_says_nothing() -> None:
    process = spawn("""
        print(start(["hello"]).text())
    """)
    out, err = process.communicate(timeout=PATIENCE)
    assert (out, err) == ("hello\n", "")


def test_a_failure_that_nobody_read_is_logged_at_exit() -> None:
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
