"""Transcripts that several processes read: none is lost, none is read twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import rath
from tests.memory.adapters.local.extraction.conftest import (
    OOLONG,
    SAID,
    answer,
    commit,
    model,
    notes_in,
    opened,
    record_at,
    refused,
    resume,
)

Start = Callable[[str], "subprocess.Popen[str]"]

PROGRAM = f"""
import sys, threading, time
from rath.memory import MemoryOpCommit, MemoryStoreSpec, get
from rath.testing import ScriptedClient

asked = threading.Event()

class Model:
    def __init__(self, wait):
        self.wait = wait

    def complete(self, request):
        print("asked", flush=True)
        asked.set()
        self.wait()
        return ScriptedClient([{answer(OOLONG)!r}]).complete(request)

def opened(wait):
    options = {{"path": sys.argv[1], "chat": Model(wait)}}
    return get("local").open(MemoryStoreSpec(options=options)).acquire()

def commit(store):
    result = store.dispatch(MemoryOpCommit("s", {SAID!r}))
    assert result.extracted_count == -1, result
"""
AT_EXIT = """
def until_the_end():
    names = set()
    while "_shutdown" not in names:
        time.sleep(0.001)
        names, frame = set(), sys._current_frames()[threading.main_thread().ident]
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back

store = opened(until_the_end); commit(store)
"""
NEVER = "store = opened(threading.Event().wait); commit(store)\n"
RELEASE = "store.release()\n"
STAY = "sys.stdin.read()\n"
RESUME = "store = opened(sys.stdin.readline); asked.wait(); store.backend.close(store)\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Directory of the store."""
    return tmp_path.resolve() / "store"


@pytest.fixture
def start(root: Path) -> Iterator[Start]:
    """Runs programs in processes of their own, which are gone at the end."""
    with ExitStack() as ending:

        def run(code: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM + code, str(root)],
                env={**os.environ, "PYTHONPATH": str(Path(rath.__file__).parents[1])},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            ending.enter_context(process)
            ending.callback(process.kill)
            return process

        yield run


def wait_until_asked(process: subprocess.Popen[str]) -> None:
    """Wait until a process has asked its model."""
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"


def test_a_process_that_is_killed_leaves_its_transcript_to_the_next(
    root: Path, start: Start
) -> None:
    process = start(NEVER + STAY)
    wait_until_asked(process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (record_at(root)["state"], record_at(root)["attempts"]) == ("pending", 1)
    resume(root, model())
    assert (record_at(root)["state"], record_at(root)["attempts"]) == ("done", 2)
    assert len(notes_in(root)) == 1


@pytest.mark.parametrize("end", ["", RELEASE], ids=["left open", "released"])
def test_a_process_that_ends_well_lets_its_model_finish(root: Path, start: Start, end: str) -> None:
    process = start(AT_EXIT + end)
    out, err = process.communicate()
    assert (process.returncode, out) == (0, "asked\n")
    assert "cut off" not in err
    assert record_at(root)["state"] == "done"
    assert len(notes_in(root)) == 1


@pytest.mark.parametrize("end", ["", RELEASE], ids=["left open", "released"])
def test_a_process_that_fails_leaves_a_slow_model_to_the_next(
    root: Path, start: Start, end: str
) -> None:
    process = start(NEVER + end + "sys.exit(1)\n")
    _, told = process.communicate()
    assert process.returncode == 1
    assert "cut off: learning from session s; the next opening of its memory goes on." in told
    assert len(told.splitlines()) == 1
    assert (record_at(root)["state"], record_at(root)["attempts"]) == ("pending", 0)


def test_a_transcript_is_read_by_one_process_at_a_time(root: Path, start: Start) -> None:
    with opened(root, model("no array")) as store:
        refused(store)
    process = start(RESUME)
    wait_until_asked(process)
    chat = model()
    resume(root, chat)
    assert chat.requests == []
    assert process.communicate("go on\n") == ("", "")
    assert record_at(root)["state"] == "done"


def test_a_commit_is_complete_wherever_its_process_dies(root: Path) -> None:
    with opened(root) as store:
        place = root / str(commit(store).archived_uri).removeprefix("memory://")
    (place / "extraction.json").write_text('{"state": "pending", "attempts": 0}')
    (place / "messages.json").unlink()
    chat = model()
    resume(root, chat)
    assert chat.requests == []
    assert record_at(root)["state"] == "pending"
