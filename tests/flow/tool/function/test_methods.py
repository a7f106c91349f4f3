"""Tools of objects: methods, and classes whose objects are tools."""

from __future__ import annotations

import copy
import gc
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import pytest

import rath
from rath.flow.tool import FlowToolCall, FunctionTool
from rath.session import Session
from rath.session.tooling import BadArguments, CallRequest
from rath.testing import tool_call
from tests.support.sessions import run

SESSION = Session.from_user_message("go")


class Desk:
    """A desk with a drawer."""

    def __init__(self, *papers: str) -> None:
        self.papers = list(papers)

    @rath.tool
    def put(self, paper: str) -> int:
        """Put a paper on the desk."""
        self.papers.append(paper)
        return len(self.papers)

    @rath.tool(name="fetch_paper", parallel_safe=True, timeout=5, effects="read_only")
    async def fetch(self, session: Session, nr: int = 0) -> str:
        """Fetch a paper."""
        return self.papers[nr]

    @rath.tool
    @staticmethod
    def weigh(n: int) -> int:
        """Weigh papers."""
        return 5 * n

    @rath.tool
    @classmethod
    def sort(cls, papers: list[str]) -> list[str]:
        """Sort papers."""
        return [cls.__name__, *sorted(papers)]


class BigDesk(Desk):
    @rath.tool
    def put(self, paper: str) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]  # `self` differs
        """Put a paper on the big desk."""
        return 100 * int(super().put(SESSION, {"paper": paper}))


def test_the_method_of_an_object_is_a_tool() -> None:
    desk = Desk()
    assert isinstance(desk.put, FunctionTool)
    assert (desk.put.name, desk.put.description) == ("put", "Put a paper on the desk.")
    assert [*desk.put.parameters["properties"]] == ["paper"]
    assert desk.put.origin == f"{__name__}:Desk.put"
    assert desk.put(SESSION, {"paper": "a"}) == 1
    assert desk.put.function("b") == 2
    assert desk.papers == ["a", "b"]


def test_an_object_has_one_tool_of_a_method() -> None:
    one, other = Desk(), Desk()
    assert one.put is one.put
    assert one.put is not other.put


def test_a_copy_of_an_object_has_tools_of_its_own() -> None:
    one = Desk()
    kept = one.put
    other = copy.deepcopy(one)
    other.put(SESSION, {"paper": "a"})
    assert (one.papers, other.papers) == ([], ["a"])
    assert kept is one.put


def test_a_tool_keeps_its_object_and_the_class_does_not() -> None:
    desk = Desk("a")
    tool, gone = desk.put, weakref.ref(desk)
    del desk
    gc.collect()
    assert gone() is not None
    del tool
    gc.collect()
    assert gone() is None


def test_options_hold_for_the_tools_of_all_objects() -> None:
    fetch = Desk().fetch
    assert (fetch.name, fetch.parallel_safe, fetch.timeout) == ("fetch_paper", True, 5)
    assert fetch.effects == "read_only"


def test_a_static_method_needs_no_object() -> None:
    desk: Any = Desk()
    assert Desk.weigh is desk.weigh
    assert Desk.weigh(SESSION, {"n": 2}) == 10


def test_a_class_method_is_of_the_class() -> None:
    desk: Any = Desk()
    assert Desk.sort is desk.sort
    assert Desk.sort(SESSION, {"papers": ["b", "a"]}) == ["Desk", "a", "b"]
    assert BigDesk.sort(SESSION, {"papers": []}) == ["BigDesk"]


def test_a_subclass_may_have_a_tool_of_its_own() -> None:
    desk = BigDesk()
    assert desk.put(SESSION, {"paper": "a"}) == 100
    assert desk.papers == ["a"]


@dataclass(eq=True, slots=True, weakref_slot=True)
class Slotted:
    n: int = 0

    @rath.tool
    def count(self, by: int) -> int:
        self.n += by
        return self.n


def test_objects_that_are_equal_have_tools_of_their_own() -> None:
    one, other = Slotted(), Slotted()
    assert one == other
    assert one.count is one.count
    assert one.count is not other.count


def test_a_model_calls_methods() -> None:
    desk = Desk("plan")
    out = run(
        [tool_call("put", {"paper": "note"}), tool_call("fetch_paper", {"nr": "1"}), "ok"],
        desk.put,
        desk.fetch,
    )
    assert out.chunk_table[-2].payload["content"] == '"note"'


# ---------------------------------------------------------------- classes


@rath.tool(parallel_safe=True, resource="counter")
class Counter:
    """Counts."""

    def __init__(self, start: int = 0) -> None:
        self.n = start

    def __call__(self, by: int = 1) -> int:
        """Count up.

        Args:
            by: How far.
        """
        self.n += by
        return self.n


@rath.tool(name="wait")
class Waiter:
    """Waits for nothing.

    Args:
        n: Of the constructor.
    """

    async def __call__(self, session: Session, n: int) -> str:
        return f"{session.id} {n}"


# mypy sees the class below a decorator of classes, and not what that gives.
counters: Any = Counter
waiters: Any = Waiter


def test_objects_of_a_class_are_tools() -> None:
    counter = counters(5)
    assert {FlowToolCall, counters} <= {*type(counter).__mro__}
    assert (counter.name, counter.description) == ("Counter", "Count up.")
    assert counter.parameters["properties"]["by"]["description"] == "How far."
    assert counter(SESSION, {"by": "2"}) == 7
    assert counter.function(by=1) == 8
    assert counter.n == 8
    with pytest.raises(BadArguments, match="for tool 'Counter' do not fit: by: "):
        counter(SESSION, {"by": "x"})


def test_a_class_keeps_its_name_and_its_words() -> None:
    assert (Counter.__name__, Counter.__qualname__) == ("Counter", "Counter")
    assert (Counter.__module__, Counter.__doc__) == (__name__, "Counts.")
    assert counters().origin == f"{__name__}:Counter"
    assert repr(counters()) == f"<rath.tool 'Counter' of {__name__}:Counter>"


def test_options_hold_for_all_objects() -> None:
    assert counters().parallel_safe is True
    assert counters().resource_key({}) == ("counter",)


def test_the_words_of_a_class_do_where_its_call_has_none() -> None:
    waiter = waiters()
    assert (waiter.name, waiter.description) == ("wait", "Waits for nothing.")
    assert "description" not in waiter.parameters["properties"]["n"]


def test_a_dataclass_that_was_not_described_has_no_description() -> None:
    @rath.tool
    @dataclass
    class Adder:
        by: int
        log: list[int] = field(default_factory=list[int])

        def __call__(self, n: int) -> int:
            self.log.append(n)
            return n + self.by

    adder: Any = Adder(2)
    assert adder.description is None
    assert adder(SESSION, {"n": 1}) == 3
    assert adder.log == [1]


def test_an_abstract_class_may_be_declared_below() -> None:
    class Base(ABC):
        @abstractmethod
        def word(self) -> str: ...

        def __call__(self, n: int) -> str:
            return self.word() * n

    @rath.tool
    class Hello(Base):
        def word(self) -> str:
            return "hello "

    hello: Any = Hello()
    assert hello(SESSION, {"n": 2}) == "hello hello "


def test_a_subclass_is_declared_anew() -> None:
    @rath.tool
    class Twice(counters):  # type: ignore[misc]  # a class for Python
        """Counts by two numbers."""

        def __call__(self, by: int, again: int) -> int:
            here: Any = self
            here.n += by + again
            return int(here.n)

    with pytest.raises(TypeError, match="is a tool already"):
        rath.tool(type("Thrice", (Twice,), {}))
    twice: Any = Twice(1)
    assert (twice.name, twice.description) == ("Twice", "Counts by two numbers.")
    assert twice(SESSION, {"by": 1, "again": 2}) == 4


def test_an_approval_that_is_a_function_gets_the_request_alone() -> None:
    def rule(request: CallRequest) -> bool:
        return bool(request)

    @rath.tool(approval=rule)
    class Quiet:
        def __call__(self) -> None: ...

    quiet: Any = Quiet()
    assert quiet.approval is rule


def test_a_model_calls_objects() -> None:
    counter = counters()
    calls = [tool_call("Counter", {"by": 2}), tool_call("wait", {"n": 3})]
    out = run([*calls, "ok"], counter, waiters())
    assert out.chunk_table[-2].payload["content"] == f'"{out.id} 3"'
    assert counter.n == 2
