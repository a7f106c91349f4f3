"""Calls of function tools in a run, and their results."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import rath
from rath import flow
from rath.backend.results import FileWriteResult, ToolExecutionFailure
from rath.flow.tool import FlowToolCall
from rath.flow.tool.function.function_tool import plain_result
from rath.llm.image import Image
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


def test_the_model_is_reported_the_schema() -> None:
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


PNG = Image.from_bytes(b"\x89PNG\r\n\x1a\n" + b"0" * 20)
Old: Any = namedtuple("Old", "a b")  # pyright: ignore[reportUntypedNamedTuple]  # as in old programs


class Colour(Enum):
    RED = "red"


class Word(StrEnum):
    YES = "yes"


class Found(BaseModel):
    day: date
    named: int = Field(alias="name")


@dataclass
class Place:
    town: str
    raw: bytes


RESULTS: list[tuple[object, object]] = [
    (None, None),
    ("text", "text"),
    (True, True),
    (3, 3),
    (0.5, 0.5),
    ([1, "a", None], [1, "a", None]),
    ({"a": {"b": (1, 2)}}, {"a": {"b": [1, 2]}}),
    ({1: "a", date(2026, 1, 2): "b"}, {"1": "a", "2026-01-02": "b"}),
    (Found(day=date(2026, 1, 2), name=1), {"day": "2026-01-02", "named": 1}),
    ([Found(day=date(2026, 1, 2), name=1)], [{"day": "2026-01-02", "named": 1}]),
    (Place("Ulm", b"hi"), {"town": "Ulm", "raw": "aGk="}),
    (date(2026, 1, 2), "2026-01-02"),
    (timedelta(seconds=90), "PT1M30S"),
    (b"hi", "aGk="),
    ({"raw": [b"hi"]}, {"raw": ["aGk="]}),
    # Not in the alphabet of URLs, which `base64 -d` refuses.
    (b"\xfb\xff", "+/8="),
    ({Colour.RED: (bytearray(b"\xff"), timedelta(1))}, {"red": ["/w==", "P1D"]}),
    (Colour.RED, "red"),
    (Word.YES, "yes"),
    (UUID(int=1), str(UUID(int=1))),
    (Decimal("1.10"), "1.10"),
    (Path("a/b"), "a/b"),
    ([PurePosixPath("a/b")], ["a/b"]),
    ({3}, [3]),
    (Old(1, 2), [1, 2]),
    (OrderedDict(a=1), {"a": 1}),
    (ValueError("wrong"), "wrong"),
]


@pytest.mark.parametrize(("value", "plain"), RESULTS, ids=lambda it: repr(it)[:40])
def test_a_result_becomes_plain(value: object, plain: object) -> None:
    made = plain_result(value)
    assert (type(made), made) == (type(plain), plain)
    json.dumps(made)


@pytest.mark.parametrize(
    "value", [PNG, FileWriteResult(3), ToolExecutionFailure("gone", "It is gone.")]
)
def test_pictures_and_answers_of_sandboxes_stay_what_they_are(value: object) -> None:
    assert plain_result(value) is value


def test_pictures_stay_what_they_are_next_to_other_values() -> None:
    value = {"a": [PNG, b"hi", (Place("Ulm", b""),)], 1: (PNG, "text")}
    assert plain_result(value) == {
        "a": [PNG, "aGk=", [{"town": "Ulm", "raw": ""}]],
        "1": [PNG, "text"],
    }


class Scan(BaseModel, arbitrary_types_allowed=True):
    pages: list[Image]


@dataclass
class Shot:
    title: str
    scan: Scan


def nested(n_times: int) -> list[Any]:
    return [PNG] if n_times == 1 else [nested(n_times - 1)]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Shot("a", Scan(pages=[PNG])), {"title": "a", "scan": {"pages": [PNG]}}),
        ({PNG}, [PNG]),
        ((PNG for _ in range(2)), [PNG, PNG]),
        (nested(30), nested(30)),
        ({Colour.RED: PNG, timedelta(1): Found(day=date(2026, 1, 2), name=1)}, {
            "red": PNG, "P1D": {"day": "2026-01-02", "named": 1},
        }),
    ],
    ids=["a dataclass with a model", "a set", "a generator", "deep", "keys"],
)  # fmt: skip
def test_pictures_stay_what_they_are_inside_of_other_values(value: object, plain: object) -> None:
    assert plain_result(value) == plain


def test_the_bytes_of_a_model_are_as_it_says_also_next_to_a_picture() -> None:
    class Raw(BaseModel, ser_json_bytes="hex", arbitrary_types_allowed=True):
        raw: bytes

    assert plain_result([Raw(raw=b"\xff"), PNG]) == [
        {"raw": plain_result(Raw(raw=b"\xff"))["raw"]},
        PNG,
    ]


def test_what_cannot_be_made_plain_is_left() -> None:
    ring: list[object] = []
    ring.append(ring)
    assert plain_result(ring) is ring


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_stays_what_it_is(value: Any) -> None:
    assert plain_result(value) == value


def test_the_result_of_an_async_function_becomes_plain_too() -> None:
    @rath.tool
    async def look() -> Place:
        return Place("Ulm", b"hi")

    out = run([tool_call("look", {}), "ok"], look)
    assert out.chunk_table[-2].payload["content"] == '{"town": "Ulm", "raw": "aGk="}'


def test_a_result_that_must_be_awaited_is_awaited() -> None:
    async def later(n: int) -> date:
        return date(2026, 1, n)

    @rath.tool
    def look(n: int) -> Any:
        return later(n)

    out = run([tool_call("look", {"n": 2}), "ok"], look)
    assert out.chunk_table[-2].payload["content"] == '"2026-01-02"'


def test_no_result() -> None:
    @rath.tool
    def look() -> None: ...

    out = run([tool_call("look", {}), "ok"], look)
    assert out.chunk_table[-2].payload["content"] == "null"


def test_a_failure_that_is_returned_is_one() -> None:
    @rath.tool
    def look() -> ToolExecutionFailure:
        return ToolExecutionFailure("gone", "It is gone.")

    out = run([tool_call("look", {}), "ok"], look)
    assert json.loads(out.chunk_table[-2].payload["content"])["error_kind"] == "gone"


def test_a_picture_is_a_result() -> None:
    @rath.tool
    def draw(session: Session) -> list[object]:
        return ["a picture", PNG]

    assert draw(Session.from_user_message("go"), {}) == ["a picture", PNG]
