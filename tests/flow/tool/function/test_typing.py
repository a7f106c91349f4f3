"""What checkers of types are told; they read this file, and running it shows that it is true."""

from __future__ import annotations

from typing import assert_type

import rath
from rath import flow
from rath.flow.tool import FlowToolCall, ObjectTool
from rath.session import Session
from rath.session.tooling import CallRequest
from rath.testing import ScriptedClient


@rath.tool
def plain(a: int, b: str = "") -> list[str]:
    return [b] * a


@rath.tool(parallel_safe=True, resource="door", effects="read_only", timeout=1, approval="always")
async def later(a: int, session: Session) -> str:
    return str(session.id) * a


def ask(request: CallRequest) -> bool:
    return request.tool == "put"


class Desk:
    @rath.tool
    def put(self, paper: str) -> int:
        return len(paper)

    @rath.tool(approval=ask, resource=lambda arguments: ("desk", str(arguments["nr"])))
    async def fetch(self, nr: int) -> str:
        return str(nr)


class Counter:
    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, by: int) -> int:
        return self.n + by


def test_a_function_keeps_its_types() -> None:
    assert_type(plain.function(1, b="x"), list[str])
    tool: FlowToolCall = later
    assert tool.name == "later"


def test_a_method_keeps_its_types_without_self() -> None:
    desk = Desk()
    assert_type(desk.put.function("x"), int)


def test_an_object_keeps_its_types() -> None:
    tool = rath.tool(Counter(1))
    assert_type(tool.function(2), int)


def test_a_class_gives_tools() -> None:
    kind = rath.tool(Counter)
    assert_type(kind, type[ObjectTool])
    tool: FlowToolCall = kind(1)
    assert tool.name == "Counter"


def test_an_agent_takes_all_of_them() -> None:
    tools = [plain, later, Desk().put, Desk().fetch, rath.tool(Counter(1))]
    agent = flow.Agent("Go.", ScriptedClient(["ok"]).provider, tools)
    assert agent(Session.from_user_message("go")).text() == "ok"
