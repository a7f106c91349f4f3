"""Cancelled file tools: they change nothing later, or tell what they changed."""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial
from pathlib import Path

import pytest

from rath._async.runtime import runtime
from rath.backend import (
    BackendSandbox,
    BackendTool,
    BackendToolFilesEdit,
    BackendToolFilesWrite,
    observe_effects,
)
from rath.backend.effects import EffectLog
from rath.backend.host.changes import tree_at
from rath.backend.host.files import Abandoned, CommitPoint, run_host_tool
from rath.backend.host.paths import Workspace
from tests.support.waiting import wait_until
from tests.support.workspaces import content_of, put, wait_for

WRITE = BackendToolFilesWrite("a", "new")
DEEP = BackendToolFilesWrite("below/a", "new")
EDIT = BackendToolFilesEdit("a", "old", "new")
BOTH = pytest.mark.parametrize("op", [WRITE, EDIT], ids=["write", "edit"])


class Held:
    """Stops the renames of this process at their begin, until they may go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.may_go_on = threading.Event()

    def replace(self, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        self.reached.set()
        assert self.may_go_on.wait(50)
        really(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)


really = os.replace


@BOTH
def test_a_tool_that_was_given_up_changes_nothing(
    sandbox: BackendSandbox, workspace: Path, op: BackendTool
) -> None:
    put(sandbox, "a", "old")
    still = tree_at(str(workspace)).activity.still

    async def cancel_and_freeze() -> EffectLog:
        # As while a scan runs: it waits for that before it changes anything.
        with observe_effects() as effects, still:
            running = asyncio.ensure_future(sandbox.adispatch(op))
            await runtime().call_in_worker(partial(wait_until_begun, workspace))
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        return effects

    effects = wait_for(cancel_and_freeze)
    frozen = sandbox.freeze()
    put(sandbox, "other", "waits for the worker of the first one")
    assert (list(effects), (workspace / "a").read_text()) == ([], "old")
    assert list(wait_for(frozen.amanifest)) == ["a"]
    assert content_of(frozen, "a") == b"old"


def wait_until_begun(workspace: Path) -> None:
    wait_until(lambda: any(each.startswith(".rath_write_") for each in os.listdir(workspace)))


@BOTH
def test_a_tool_that_changes_the_file_just_now_is_waited_for(
    sandbox: BackendSandbox, workspace: Path, op: BackendTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(sandbox, "a", "old")
    held = Held()
    monkeypatch.setattr(os, "replace", held.replace)

    async def cancel() -> EffectLog:
        loop = asyncio.get_running_loop()
        with observe_effects() as effects:
            running = asyncio.ensure_future(sandbox.adispatch(op))
            await loop.run_in_executor(None, held.reached.wait)
            for _ in range(2):
                running.cancel()
                await asyncio.sleep(0)
                assert not running.done()
            held.may_go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await running
        return effects

    effects = wait_for(cancel)
    assert [(each.path, each.kind) for each in effects] == [("a", "changed")]
    assert (workspace / "a").read_text() == "new"


def test_nothing_begins_that_was_given_up_before(workspace: Path) -> None:
    landing = CommitPoint()
    assert landing.abandon()
    with pytest.raises(Abandoned):
        run_host_tool(Workspace.at(str(workspace)), DEEP, landing)
    assert list(workspace.iterdir()) == []


def test_what_is_decided_cannot_be_given_up() -> None:
    landing = CommitPoint()
    landing.pass_by()
    assert not landing.abandon()
    landing.check()
