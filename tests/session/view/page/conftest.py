"""A run that goes on as long as a test wants, and a server that follows it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from rath._async.runtime import runtime
from rath.session import Session, run_session_loop
from rath.session.persistence.store import default_store
from rath.testing import ScriptedClient, tool_call
from tests.support.api import Feed, LiveServer
from tests.support.sessions import FunctionTool
from tests.support.waiting import PATIENCE


@dataclass(slots=True)
class SlowRun:
    """A stored run whose tool waits until it may go on."""

    session: Session
    begun: threading.Event
    may_go_on: threading.Event


@dataclass(slots=True)
class Served:
    """A server that follows a run, and what it has told."""

    address: str
    ends: queue.Queue[str]
    """How the session stood when its run was over."""

    end: Callable[[float], object]
    """Wait for the end of the server, at most so many seconds."""


@pytest.fixture
def slow_run() -> Generator[SlowRun]:
    """A run of two rounds that waits in the first one."""
    begun, may_go_on = threading.Event(), threading.Event()

    def wait(_: Session, arguments: Mapping[str, Any]) -> object:
        begun.set()
        may_go_on.wait(PATIENCE)
        return {"waited": True, **arguments}

    client = ScriptedClient([tool_call("wait", {}, content="I wait."), "The wait is over."])
    session = run_session_loop(
        Session.from_user_message("Wait, then say so."),
        Session.from_agent_prompt("You wait."),
        agent_provider=client.provider,
        tools=[FunctionTool("wait", wait)],
        system_tools=False,
        persist=True,
    )
    assert begun.wait(PATIENCE)
    yield SlowRun(session, begun, may_go_on)
    may_go_on.set()
    session.synchronize()


@contextmanager
def serving(session: Session, *, beat: float = 15) -> Generator[Served]:
    """Follow a stored session as long as the block lasts."""
    ready: queue.Queue[str] = queue.Queue()
    ends: queue.Queue[str] = queue.Queue()
    server = LiveServer(Feed(default_store(), session.id), title="followed", beat=beat)
    serve = partial(server.aserve, ready.put, ends.put)
    running = runtime().submit(serve, label="a live page under test")
    try:
        yield Served(_first_of(ready, running.future.result), ends, running.future.result)
    finally:
        runtime().cancel(running)


def _first_of(ready: queue.Queue[str], result: Callable[..., object]) -> str:
    try:
        return ready.get(timeout=PATIENCE)
    except queue.Empty:
        raise AssertionError(f"the server did not start: {result(0)}") from None
