"""Commands end when they must, whole, and are given nothing that is not theirs."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rath.backend import (
    BackendToolCodeRun,
    BackendToolCommandRun,
    CommandResult,
    ToolExecutionFailure,
)
from tests.support.attacked import CANARY, HOST_BACKENDS, Target, attacked, said
from tests.support.waiting import PATIENCE

GHOST = f"sleep 47.{os.getpid()}"
"""Like that of nobody else: these tests may run side by side in several processes."""


@pytest.fixture(params=HOST_BACKENDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    with attacked(request.param, tmp_path) as opened:
        yield opened


STAYING = {
    "child": f"({GHOST}) & sleep 30",
    "child-of-a-child": f"(({GHOST}) &) & sleep 30",
    "session-of-its-own": f"setsid bash -c '{GHOST}' & sleep 30",
    "daemon": f"(setsid bash -c '(setsid bash -c \"{GHOST}\" &) &' &) ; sleep 30",
    "nohup": f"nohup bash -c '{GHOST}' >/dev/null 2>&1 & disown; sleep 30",
    "deaf-to-sigterm": f"trap '' TERM INT HUP; {GHOST}; sleep 30",
    "deaf-child": f"setsid bash -c 'trap \"\" TERM HUP INT; {GHOST}' & sleep 30",
    "stopped-and-continued": f"setsid bash -c '{GHOST}' & kill -STOP $!; kill -CONT $!; sleep 30",
    "closed-output": f"exec >&- 2>&-; ({GHOST}) & sleep 30",
}


@pytest.mark.parametrize("line", STAYING.values(), ids=STAYING.keys())
def test_nothing_outlives_a_deadline(target: Target, line: str) -> None:
    ended = target.shell(line, timeout=0.3)
    assert isinstance(ended, ToolExecutionFailure)
    assert ended.kind == "timeout"
    assert left_of(GHOST) == []


def test_a_thousand_children_end_with_their_command(target: Target) -> None:
    line = f"for i in $(seq 300); do setsid {GHOST} & done; wait"
    assert isinstance(target.shell(line, timeout=1.5), ToolExecutionFailure)
    assert left_of(GHOST) == []


def test_a_child_that_holds_the_output_open_does_not_hold_the_result(target: Target) -> None:
    result = target.shell("sleep 300 & echo done", timeout=50)
    assert isinstance(result, CommandResult)
    assert result.stdout == b"done\n"


def test_a_command_that_kills_its_parent_is_reported_and_disturbs_nobody(target: Target) -> None:
    target.shell("kill -9 $PPID; sleep 0.2; echo alive")
    again = target.shell("echo still here")
    assert isinstance(again, CommandResult)
    assert again.stdout == b"still here\n"


def test_a_flood_of_output_is_bounded(target: Target) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = target.shell("head -c 300M /dev/zero")
    assert isinstance(result, CommandResult)
    assert len(result.stdout) < 2 << 20
    assert b"left out" in result.stdout
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 200 << 10


def test_output_without_an_end_ends_with_the_deadline(target: Target) -> None:
    ended = target.shell("yes", timeout=0.5)
    assert isinstance(ended, ToolExecutionFailure)
    assert ended.kind == "timeout"


def test_code_without_an_end_ends_with_the_deadline(target: Target) -> None:
    ended = target.run(BackendToolCodeRun("while True: pass", timeout=0.5))
    assert isinstance(ended, ToolExecutionFailure)
    assert ended.kind == "timeout"


@pytest.mark.parametrize(
    "name", ["OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "LD_PRELOAD_CANARY", "PYTHONSTARTUP"]
)
def test_no_variable_of_ours_is_seen(
    target: Target, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, CANARY)
    assert CANARY not in said(target.shell("env; export -p; set"))
    code = "import os; print(dict(os.environ))"
    assert CANARY not in said(target.run(BackendToolCodeRun(code)))


def test_its_input_is_empty(target: Target) -> None:
    result = target.shell('cat; read line; echo "got $line"')
    assert isinstance(result, CommandResult)
    assert result.stdout == b"got \n"


def test_it_has_no_terminal(target: Target) -> None:
    result = target.shell("(echo stolen > /dev/tty) 2>/dev/null || echo none; tty || true")
    assert isinstance(result, CommandResult)
    assert b"none" in result.stdout


def test_no_descriptor_of_ours_is_inherited(target: Target) -> None:
    with target.secret.open() as held:
        os.set_inheritable(held.fileno(), True)
        shown = said(target.shell("ls -l /proc/self/fd; cat <&" + str(held.fileno())))
    assert CANARY not in shown
    assert "secret.txt" not in shown


@pytest.mark.parametrize("cwd", ["..", "/", "../outside", "link"])
def test_it_starts_in_no_directory_outside(target: Target, cwd: str) -> None:
    (target.workspace / "link").symlink_to(target.outside)
    result = target.run(BackendToolCommandRun("pwd; ls", cwd=cwd))
    assert isinstance(result, ToolExecutionFailure)
    assert result.kind == "path_outside_workspace"


@pytest.mark.parametrize(
    "call",
    [BackendToolCommandRun([]), BackendToolCommandRun(["no-such-program-7f3a91"]),
     BackendToolCommandRun(["echo", "a\0b"]), BackendToolCommandRun(["x" * 200_000]),
     BackendToolCommandRun("true", env={"A=B": "x"}),
     BackendToolCommandRun("true", env={"A": "\0"})],
    ids=["empty", "missing", "zero", "too-long", "odd-name", "zero-in-a-variable"],
)  # fmt: skip
def test_a_command_that_cannot_start_is_reported(
    target: Target, call: BackendToolCommandRun
) -> None:
    result = target.run(call)
    failed = isinstance(result, ToolExecutionFailure) or (
        isinstance(result, CommandResult) and result.exit_code != 0
    )
    assert failed
    assert isinstance(target.shell("true"), CommandResult)


def left_of(command: str) -> list[int]:
    """Return the processes that run `command` still, when those that were killed have gone."""
    deadline = time.monotonic() + PATIENCE
    while (found := running(command)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def running(command: str) -> list[int]:
    """Return the processes of this host with that command line."""
    found: list[int] = []
    for entry in os.listdir("/proc") if sys.platform == "linux" else []:
        try:
            line = Path("/proc", entry, "cmdline").read_text() if entry.isdigit() else ""
        except OSError:
            continue
        if line.rstrip("\0").split("\0") == command.split():
            found.append(int(entry))
    return found
