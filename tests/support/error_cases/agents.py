"""Errors around agents, tools, hooks and workflows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import rath
from rath import flow
from rath.flow.tool import FlowToolCall
from rath.session import Session
from rath.session.content import ToolFeedback
from rath.testing import ScriptedClient, tool_call
from tests.support.error_cases import ErrorCase, Machine, odd, user


@rath.tool
def double(n: int) -> int:
    """Double a whole number."""
    return 2 * n


@rath.tool
def divide(a: int, b: int) -> float:
    """Divide one number by another."""
    return a / b


class Broken(flow.Workflow):
    """A workflow that forgets to return."""

    def forward(self, session: Session) -> Session:
        nothing: Session = odd(None)
        return nothing


def _read(machine: Machine, call: Any, *tools: FlowToolCall, **options: Any) -> str:
    """Return what the model reads of the result of a tool call."""
    agent = machine.scripted(call, "Done.", tools=list(tools), **options)
    out = agent(user())
    return next(
        row.content.body for row in out.chunk_table if isinstance(row.content, ToolFeedback)
    )


def _tool(function: object, **options: object) -> object:
    make = odd(rath.tool)
    return make(**options)(function) if options else make(function)


def _without_hint(n: int) -> str:
    return str(n)


_without_hint.__annotations__ = {"return": str}


def _many(*numbers: int) -> int:
    return sum(numbers)


def _one_by_one(n: int) -> Iterator[int]:
    yield n


async def _wait(session: Session) -> None:
    """Do nothing, later."""


def _hooked(machine: Machine) -> object:
    agent = machine.scripted("Hello.")
    agent.register_forward_pre_hook(odd(_wait))
    return agent(user()).text()


def _state(machine: Machine, content: str) -> object:
    return rath.load(machine.file("state.json", content))


def _mismatch(machine: Machine) -> object:
    agent = machine.scripted("Hello.")
    agent.load_state_dict({"unknown": "text"})
    return None


CASES = [
    ErrorCase(
        cause="A workflow was called with a text.",
        cure="Wrap it: `Session.from_user_message(...)`.",
        meet=lambda m: Broken()(odd(7)),
    ),
    ErrorCase(
        cause="`forward` of a workflow returned nothing.",
        cure="Return the session.",
        meet=lambda m: Broken()(user()).text(),
    ),
    ErrorCase(
        cause="A workflow without `forward`.",
        cure="Write `def forward(self, session)`.",
        meet=lambda m: flow.Workflow()(user()),
    ),
    ErrorCase(
        cause="A container was called.",
        cure="Call what it holds, in the `forward` of your workflow.",
        meet=lambda m: flow.WorkflowList([])(user()),
    ),
    ErrorCase(
        cause="Something else than a workflow was put into a container.",
        cure="Give workflows or agents.",
        meet=lambda m: flow.WorkflowList(odd(["agent"])),
    ),
    ErrorCase(
        cause="A tool was given that is none.",
        cure="Decorate the function: `@rath.tool`.",
        meet=lambda m: m.scripted("x", tools=[odd(7)])(user()).text(),
    ),
    ErrorCase(
        cause="Two tools have the same name.",
        cure='Rename one: `@rath.tool(name="...")`.',
        meet=lambda m: m.scripted("x", tools=[double, double], system_tools=False)(user()).text(),
    ),
    ErrorCase(
        cause="A built-in tool that does not exist.",
        cure="Take one of those that the text lists.",
        meet=lambda m: m.scripted("x", system_tools=["shell"])(user().to("local")).text(),
    ),
    ErrorCase(
        cause="An approval rule that does not exist.",
        cure='Give "never", "always" or a function.',
        meet=lambda m: _tool(_many, approval="ask"),
    ),
    ErrorCase(
        cause="Effects that do not exist.",
        cure="Take one of those that the text lists.",
        meet=lambda m: _tool(_many, effects="none"),
    ),
    ErrorCase(
        cause="A parameter of a tool has no type.",
        cure="Write one.",
        meet=lambda m: _tool(_without_hint),
    ),
    ErrorCase(
        cause="A tool takes `*args`.",
        cure="Give its parameters names.",
        meet=lambda m: _tool(_many),
    ),
    ErrorCase(
        cause="A tool is a generator.",
        cure="Return one result.",
        meet=lambda m: _tool(_one_by_one),
    ),
    ErrorCase(
        cause="A lambda was made a tool.",
        cure="Write a function.",
        meet=lambda m: _tool(lambda: 1),
    ),
    ErrorCase(
        cause="`rath.tool` was given something that cannot be called.",
        cure="Give a function.",
        meet=lambda m: _tool("double"),
    ),
    ErrorCase(
        cause="`rath.tool` was given a tool.",
        cure="Use it as it is.",
        meet=lambda m: _tool(double),
    ),
    ErrorCase(
        cause="The name of a tool holds a space.",
        cure="Take letters, digits, `_` and `-`.",
        meet=lambda m: _tool(_many, name="look up"),
    ),
    ErrorCase(
        cause="The time limit of a tool is not above zero.",
        cure="Give seconds, or None.",
        meet=lambda m: _tool(_many, timeout=0),
    ),
    ErrorCase(
        cause="An agent as a tool has no name.",
        cure='Give one: `as_tool("researcher", "Looks things up.")`.',
        meet=lambda m: m.scripted("x").as_tool(odd("")),
    ),
    ErrorCase(
        cause="A tool raised. The model reads the text, and the run goes on.",
        cure="`rath show` tells where; correct the tool, or let the model go on without it.",
        meet=lambda m: _read(m, tool_call("divide", {"a": 1, "b": 0}), divide, system_tools=False),
    ),
    ErrorCase(
        cause="The model called a tool that it was not offered.",
        cure="Nothing: the model reads that. A weak model does this often.",
        meet=lambda m: _read(m, tool_call("dubble", {"n": 1}), double, system_tools=False),
    ),
    ErrorCase(
        cause="The model gave arguments that do not fit.",
        cure="Nothing: the model reads that. Say in the docstring what is expected.",
        meet=lambda m: _read(m, tool_call("double", {"n": "many"}), double, system_tools=False),
    ),
    ErrorCase(
        cause="The model left out an argument.",
        cure="Nothing: the model reads that, and calls again.",
        meet=lambda m: _read(m, tool_call("double", {}), double, system_tools=False),
    ),
    ErrorCase(
        cause="The model called a sandbox tool, and the session has no sandbox.",
        cure='Place the session: `session.to("bubblewrap")`.',
        meet=lambda m: _read(m, tool_call("run_shell_command", {"cmd": "ls"}), system_tools=True),
    ),
    ErrorCase(
        cause="The model wants to read a file that is not there.",
        cure="Nothing: the model reads that.",
        meet=lambda m: _placed(m, tool_call("read_workspace_file", {"path": "none.txt"})),
    ),
    ErrorCase(
        cause="The model wants to read outside of the workspace.",
        cure="Nothing: the model reads that. Put what it needs into the workspace.",
        meet=lambda m: _placed(m, tool_call("read_workspace_file", {"path": "../secret"})),
    ),
    ErrorCase(
        cause="The model wants to change a text that is not in the file.",
        cure="Nothing: the model reads that, and looks again.",
        meet=lambda m: _edited(m),
    ),
    ErrorCase(
        cause="A hook is a coroutine.",
        cure="Write a plain `def`.",
        meet=_hooked,
    ),
    ErrorCase(
        cause="`max_tool_rounds` is negative.",
        cure="Give 0 or more.",
        meet=lambda m: m.scripted("x", max_tool_rounds=-1)(user()).text(),
    ),
    ErrorCase(
        cause="The time limit of a run is not above zero.",
        cure="Give seconds, or None.",
        meet=lambda m: m.scripted("x", timeout=0)(user()).text(),
    ),
    ErrorCase(
        cause="`output_retries` is negative.",
        cure="Give 0 or more.",
        meet=lambda m: m.scripted("x", output=int, output_retries=-1)(user()).text(),
    ),
    ErrorCase(
        cause="`output` was given a value in the place of a type.",
        cure="Give a type, such as a class of pydantic.",
        meet=lambda m: m.scripted("x", output=7)(user()).text(),
    ),
    ErrorCase(
        cause="A prompt that is not a text.",
        cure="Give a str.",
        meet=lambda m: flow.Agent(odd(7), ScriptedClient([]).provider),
    ),
    ErrorCase(
        cause="A key of a workflow in its state that it does not have.",
        cure="Load the state into the workflow that it was saved from, or give `strict=False`.",
        meet=_mismatch,
    ),
    ErrorCase(
        cause="The file of a state holds something else.",
        cure="Name a file that `rath.save` has written.",
        meet=lambda m: _state(m, "[]"),
    ),
    ErrorCase(
        cause="The file of a state is of a later version.",
        cure="Upgrade rath.",
        meet=lambda m: _state(m, '{"format": "rath-state", "state": {}, "version": 99}'),
    ),
    ErrorCase(
        cause="The file of a state is not there.",
        cure="Correct the path.",
        meet=lambda m: rath.load("none.json"),
    ),
    ErrorCase(
        cause="The memory of an agent that has none was asked.",
        cure='Give it one: `Agent(..., memory="local")`.',
        meet=lambda m: m.scripted("x").recall_memory("a fact"),
    ),
    ErrorCase(
        cause="A memory that is none.",
        cure='Give a name such as "local", a spec or a store.',
        meet=lambda m: m.scripted("x", memory=odd(7)),
    ),
]


def _placed(machine: Machine, call: Any) -> str:
    agent = machine.scripted(call, "Done.")
    out = agent(user().to("local", spec=str(machine.project)))
    return next(
        row.content.body for row in out.chunk_table if isinstance(row.content, ToolFeedback)
    )


def _edited(machine: Machine) -> str:
    machine.file("a.txt", "one\n")
    change = {"path": "a.txt", "old_string": "two", "new_string": "three"}
    return _placed(machine, tool_call("edit_workspace_file", change))
