"""Commands without a supervisor: their process group is ended, and their start told."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
from pathlib import Path

import pytest

from rath._async.runtime import runtime
from rath.backend.host.process import Capture, GroupCommand, finish

ENV = {"PATH": os.defpath}


async def start(line: str, stdout: Capture, *, stdin: int | None = None) -> GroupCommand:
    descriptors = [stdout.writer, stdout.writer]
    if stdin is not None:
        descriptors.append(stdin)
    command = await GroupCommand.start(
        ["sh", "-c", line], cwd="/", env=ENV, descriptors=descriptors
    )
    stdout.close_writer()
    return command


def test_a_command_tells_output_and_exit_code() -> None:
    async def run() -> tuple[int, bytes]:
        stdout = Capture()
        command = await start("echo out; exit 3", stdout)
        await command.ended
        await finish(stdout)
        stdout.drop()
        return command.exit_code, stdout.text()

    assert runtime().run(run, label="a command") == (3, b"out\n")


def test_a_command_reads_what_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("given")

    async def run() -> bytes:
        stdout = Capture()
        stdin = os.open(tmp_path / "input", os.O_RDONLY)
        command = await start("cat", stdout, stdin=stdin)
        os.close(stdin)
        await command.ended
        await finish(stdout)
        stdout.drop()
        return stdout.text()

    assert runtime().run(run, label="a command") == b"given"


def test_a_program_that_is_missing_is_an_error_that_names_it() -> None:
    async def run() -> None:
        stdout = Capture()
        try:
            await GroupCommand.start(["missing"], cwd="/", env=ENV, descriptors=[stdout.writer] * 2)
        finally:
            stdout.drop()

    with pytest.raises(FileNotFoundError, match="missing"):
        runtime().run(run, label="a command")


@pytest.mark.parametrize("line", ["sleep 60", "trap '' TERM; sleep 60; sleep 60"])
def test_ending_a_command_ends_its_group(line: str) -> None:
    async def run() -> tuple[int, bool]:
        stdout = Capture()
        command = await start(f"(sleep 60; true) & {line}", stdout)
        await command.end()
        ended = stdout.read_on()
        await asyncio.wait([ended], timeout=50)
        stdout.drop()
        return command.exit_code, ended.done()

    code, all_gone = runtime().run(run, label="a command")
    assert code in (-signal.SIGTERM, -signal.SIGKILL)
    assert all_gone


def test_what_a_command_left_in_its_group_is_ended() -> None:
    async def run() -> bool:
        stdout = Capture()
        command = await start("sleep 60 & true", stdout)
        await command.ended
        ended = stdout.read_on()
        await asyncio.wait([ended], timeout=50)
        stdout.drop()
        return ended.done()

    assert runtime().run(run, label="a command")


@pytest.mark.skipif(shutil.which("setsid") is None, reason="needs setsid")
def test_what_sits_in_the_background_may_make_a_session_of_its_own(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")

    async def run() -> bytes:
        stdout = Capture()
        command = await start(f"setsid sh -c 'read go < {tmp_path}/go; echo $go' &", stdout)
        await command.ended
        # Opening it waits for the one who reads: it is there.
        await runtime().call_in_worker(lambda: (tmp_path / "go").write_text("on\n"))
        await finish(stdout)
        stdout.drop()
        return stdout.text()

    assert runtime().run(run, label="a command") == b"on\n"


def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(tmp_path / "alive", os.O_WRONLY)

    async def run() -> None:
        started = GroupCommand.start(
            ["sleep", "60"], cwd="/", env=ENV, descriptors=[writer, writer]
        )
        command = await started
        try:
            await asyncio.get_running_loop().create_future()  # the start was faster
        finally:
            await command.end()

    running = runtime().submit(run, label="a command")
    runtime().cancel(running)
    assert isinstance(running.future.exception(), asyncio.CancelledError)
    os.close(writer)
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    assert poller.poll(10_000)
    assert os.read(reader, 1) == b""
    os.close(reader)
