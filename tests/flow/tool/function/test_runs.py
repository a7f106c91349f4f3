"""Tools made of functions in a run: what the model reads, lanes, time, the record."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

import rath
from rath import flow
from rath.flow.tool import FlowToolCall
from rath.session import ChunkKind, Session
from rath.session.record import ToolRun
from rath.session.tooling import BadArguments
from rath.testing import ScriptedClient, tool_call
from tests.support.sessions import run
from tests.support.waiting import PATIENCE, at_a_deadline


class Order(BaseModel):
    item: str
    count: int = 1


def results(out: Session) -> list[Any]:
    return [
        json.loads(row.payload["content"])
        for row in out.chunk_table
        if row.kind is ChunkKind.TOOL_RESULT
    ]


def test_an_agent_calls_a_function() -> None:
    @rath.tool
    def order(what: Order, day: date, session: Session) -> dict[str, Any]:
        """Order something."""
        return {"what": what, "day": day, "where": session.id}

    given = {"what": {"item": "tea", "count": "2"}, "day": "2026-01-02"}
    model = ScriptedClient([tool_call("order", given), "Ordered."])
    out = flow.Agent("Order.", model.provider, [order])(Session.from_user_message("Tea!"))
    assert out.text() == "Ordered."
    what = {"item": "tea", "count": 2}
    assert results(out) == [{"what": what, "day": "2026-01-02", "where": str(out.id)}]


def test_the_model_is_told_the_schema() -> None:
    @rath.tool
    def order(count: Literal[1, 2]) -> None:
        """Order something."""

    model = ScriptedClient(["ok"])
    run([], order, agent_provider=model.provider).synchronize()
    (told,) = list(model.requests[0].tools or [])
    assert (told.name, told.description) == ("order", "Order something.")
    assert told.parameters == order.parameters


def test_async_functions_run_side_by_side() -> None:
    both = asyncio.Barrier(2)

    @rath.tool(parallel_safe=True, resource=lambda arguments: str(arguments["n"]))
    async def meet(n: int) -> int:
        async with asyncio.timeout(PATIENCE):
            await both.wait()
        return n

    out = run([calls(("meet", {"n": 1}), ("meet", {"n": 2})), "ok"], meet)
    assert results(out) == [1, 2]


def calls(*asked: tuple[str, Mapping[str, Any]]) -> Any:
    (name, arguments), *more = asked
    return tool_call(name, arguments, *(tool_call(*one) for one in more))


def test_functions_run_side_by_side_where_their_resources_differ() -> None:
    both = threading.Barrier(2)

    @rath.tool(parallel_safe=True, resource=lambda arguments: ("shelf", str(arguments["n"])))
    def meet(n: int) -> int:
        both.wait(PATIENCE)
        return n

    out = run([calls(("meet", {"n": 1}), ("meet", {"n": "2"})), "ok"], meet)
    assert results(out) == [1, 2]


def test_functions_with_one_resource_run_one_after_the_other() -> None:
    inside: list[int] = []
    most: list[int] = []

    def enter(n: int) -> None:
        inside.append(n)
        most.append(len(inside))
        inside.remove(n)

    @rath.tool(parallel_safe=True, resource="door")
    def come(n: int) -> None:
        enter(n)

    @rath.tool(parallel_safe=True, resource=("door",))
    def go(n: int) -> None:
        enter(n)

    assert come.resource_key({"n": 1}) == go.resource_key({}) == ("door",)
    run([calls(*((name, {"n": n}) for n in range(5) for name in ("come", "go"))), "ok"], come, go)
    assert max(most, default=1) == 1


def test_the_lane_is_the_documented_one_where_no_resource_is_named() -> None:
    def ping() -> None: ...

    assert rath.tool(ping).resource_key({}) == ("global",)
    assert rath.tool(ping, parallel_safe=True).resource_key({}) == ("safe", "ping")


def test_a_resource_is_found_by_the_converted_arguments() -> None:
    @rath.tool(resource=lambda arguments: arguments["path"].name)
    def read(path: Path, n: int = 1) -> None: ...

    assert read.resource_key({"path": "a/b.txt"}) == ("b.txt",)


def test_a_resource_that_is_none_fails_the_call_alone() -> None:
    @rath.tool(resource=lambda arguments: arguments["n"])
    def read(n: int) -> None: ...

    (read_result,) = results(run([tool_call("read", {"n": 1}), "ok"], read))
    assert read_result["error_kind"] == "tool_execution_exception"
    assert "what the resource of tool 'read' gave must be a str" in read_result["message"]


def test_a_function_that_takes_too_long_is_abandoned() -> None:
    end = threading.Event()

    @rath.tool(timeout=0.05)
    def wait() -> None:
        end.wait(PATIENCE)

    out = run([tool_call("wait", {}), "ok"], wait)
    assert results(out)[0]["error_kind"] == "abandoned"
    end.set()


def test_an_async_function_that_takes_too_long_is_ended() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def run_until(deadline: float) -> Session:
        tool = rath.tool(wait, timeout=deadline)
        return run([tool_call("wait", {}), "ok"], tool).synchronize()

    out = at_a_deadline(run_until, lambda _: begun.is_set())
    assert results(out)[0]["error_kind"] == "abandoned"
    assert ended.wait(PATIENCE)


def test_arguments_that_do_not_fit_are_read_by_the_model() -> None:
    made: list[int] = []

    @rath.tool
    def order(count: int) -> int:
        made.append(count)
        return count

    out = run(
        [tool_call("order", {"count": "many"}), tool_call("order", {"count": "3"}), "ok"], order
    )
    refused, done = results(out)
    assert refused == {
        "ok": False,
        "error_kind": "invalid_tool_arguments",
        "message": "the arguments for tool 'order' do not fit: count: Input should be a valid "
        "integer, unable to parse string as an integer, not 'many'",
        "detail": '{"count":"many"}',
    }
    assert (done, made) == (3, [3])


@pytest.mark.parametrize("n_calls", [1, 2])
def test_an_error_inside_is_that_of_the_tool(n_calls: int) -> None:
    @rath.tool
    def order(count: int) -> None:
        Order.model_validate({"item": count})

    out = run([calls(*[("order", {"count": 1})] * n_calls), "ok"], order)
    assert {one["error_kind"] for one in results(out)} == {"tool_execution_exception"}


def test_the_record_says_what_was_called() -> None:
    @rath.tool(effects="idempotent")
    def order(count: int) -> int:
        return count

    out = run([tool_call("order", {"count": "3"}), "ok"], order)
    (entry,) = (entry for entry in out.record if isinstance(entry, ToolRun))
    assert entry.origin == order.origin
    assert entry.effects_declared == "idempotent"
    assert entry.arguments == {"count": "3"}


def test_a_tool_that_checks_its_arguments_itself_is_not_checked_again() -> None:
    @rath.tool
    def order(count: int) -> int:
        return count

    assert order.parameters["properties"]["count"] == {"type": "integer"}
    assert results(run([tool_call("order", {"count": 3.0}), "ok"], order)) == [3]


def test_a_function_may_run_an_agent_on_the_session() -> None:
    inner = flow.Agent("Think.", ScriptedClient(["thought"]).provider, system_tools=False)

    @rath.tool
    async def think(session: Session) -> str:
        return (await inner(session)).text() or ""

    assert results(run([tool_call("think", {}), "ok"], think)) == ["thought"]


class Doubler(FlowToolCall):
    """Takes numbers and what looks like one, which its schema has no words for."""

    @property
    def name(self) -> str:
        return "double"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"type": "object", "properties": {"n": {"type": "integer"}}}

    def check_arguments(self, arguments: Mapping[str, Any]) -> None:
        if not str(arguments.get("n")).isdecimal():
            raise BadArguments("n must be a number", "shown")

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> int:
        return 2 * int(arguments["n"])


def test_a_class_of_tools_may_check_its_arguments_itself() -> None:
    asked = [tool_call("double", {"n": "4"}), tool_call("double", {"n": "x"})]
    taken, refused = results(run([*asked, "ok"], Doubler()))
    assert taken == 8
    assert refused == {
        "ok": False,
        "error_kind": "invalid_tool_arguments",
        "message": "n must be a number",
        "detail": "shown",
    }
