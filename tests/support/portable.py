"""What programs of users declare and send to other processes, and a process that receives it."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rath
from rath import flow
from rath.backend.abc import BackendSandbox
from rath.backend.tool_types import BackendToolCommandRun
from rath.flow.hooks import HookHandle
from rath.flow.tool import FlowToolCall
from rath.llm import Provider
from rath.memory import MemoryOpRead, MemoryStore
from rath.session import Session


@rath.tool(name="plus", effects="read_only", timeout=7)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


times = rath.tool(name="times", parallel_safe=True)(multiply)


class Desk:
    """An object with tools."""

    def __init__(self, city: str) -> None:
        self.city = city

    @rath.tool
    def lookup(self, street: str) -> str:
        """Find a street."""
        return f"{street}, {self.city}"

    @rath.tool
    @classmethod
    def named(cls, title: str) -> str:
        """Say the class."""
        return f"{title} of {cls.__name__}"


@rath.tool
class Scale:
    """Multiplies by a factor."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, number: int) -> int:
        return self.factor * number


class Shout(FlowToolCall):
    """A tool as a class of its own."""

    def __init__(self, word: str) -> None:
        self.word = word

    @property
    def name(self) -> str:
        return "shout"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"type": "object", "properties": {}}

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return self.word.upper()


class Team(flow.Workflow):
    """Two agents, one after the other."""

    handle: HookHandle

    def __init__(self, provider: Provider, *tools: FlowToolCall) -> None:
        super().__init__("a team")
        self.first = flow.Agent("first prompt", provider, tools, system_tools=False)
        self.second = flow.Agent("second prompt", provider, system_tools=False)

    def forward(self, session: Session) -> Session:
        return self.second(self.first(session))


def shout(_: flow.Workflow, session: Session) -> Session:
    """Say what the user says more loudly; a hook."""
    return Session.from_user_message(f"{session.chunk_table.rows[-1].payload['content']} loudly")


def use(thing: Any, text: str) -> object:
    """Return what shows that a thing works here."""
    match thing:
        case Session():
            return [row.kind_name for row in thing.chunk_table], thing.text(), str(thing.id)
        case flow.Selector():
            one, two = flow.EmptyWorkflow("one"), flow.EmptyWorkflow("two")
            return thing.forward(Session.from_user_message(text), one, two).description
        case flow.AgentParam():
            return thing.agent_session.chunk_table.rows[0].payload["content"], thing.provider.model
        case flow.CompiledWorkflow() | flow.Workflow():
            return thing(Session.from_user_message(text)).text()
        case FlowToolCall():
            options = (thing.name, thing.effects, thing.timeout, thing.parallel_safe)
            called = thing(Session.from_user_message("x"), eval(text))
            return options, asyncio.run(called) if asyncio.iscoroutine(called) else called
        case MemoryStore():
            return str(thing.dispatch(MemoryOpRead(text)))
        case BackendSandbox():
            return str(thing.dispatch(BackendToolCommandRun(text)))
        case _:
            return repr(thing)


def in_another_process(data: bytes, text: str = "", *, env: Mapping[str, str] | None = None) -> Any:
    """Unpickle in a fresh process, use what comes out, and return what that gave."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.portable", text],
        input=data,
        capture_output=True,
        check=False,
        env={**os.environ, **(env or {})},
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


if __name__ == "__main__":
    from tests.support import portable

    sys.stdout.buffer.write(
        pickle.dumps(portable.use(pickle.loads(sys.stdin.buffer.read()), sys.argv[1]))
    )


class Holder(flow.Workflow):
    """A workflow with attributes of its own."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        vars(self).update(attributes)

    def forward(self, session: Session) -> Session:
        return session
