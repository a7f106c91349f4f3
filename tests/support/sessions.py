"""Sessions, tools and strategies that many tests need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar
from uuid import UUID

from hypothesis import strategies as st

from rath._async.deferred import Deferred
from rath.flow.tool import FlowToolCall
from rath.llm.chat_response import tool_call_part
from rath.session import (
    ChunkRow,
    ChunkTable,
    Session,
    assistant_turn_chunk,
    run_session_loop,
    system_text_chunk,
    tool_feedback_chunk,
    user_text_chunk,
)
from rath.session.record import Verdict
from rath.testing import ScriptedClient, Turn
from tests.support.images import pictures

T = TypeVar("T")
AGENT = Session.from_agent_prompt("You are a test.")


class FunctionTool(FlowToolCall):
    """A tool made of a function of the session, or of session and arguments."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        schema: Mapping[str, Any] | None = None,
        parallel_safe: bool = False,
        timeout: float | None = None,
    ) -> None:
        self._name = name
        self._function = function
        self._schema = schema or {"type": "object"}
        self.parallel_safe = parallel_safe
        self.timeout = timeout

    @property
    def name(self) -> str:
        return self._name

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self._schema

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return (str(arguments.get("key", self._name)),)

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        return self._function(session, arguments)


class AsyncFunctionTool(FunctionTool):
    """The same with a coroutine function."""

    async def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        return await self._function(session, arguments)


def run(
    turns: Iterable[Turn],
    *tools: FlowToolCall,
    user: Session | None = None,
    agent: Session | None = None,
    **options: Any,
) -> Session:
    """Submit a run of scripted turns; built-in tools are left out unless asked for."""
    client = ScriptedClient(turns)
    return run_session_loop(
        user or Session.from_user_message("go"),
        agent or AGENT,
        agent_provider=options.pop("agent_provider", client.provider),
        tools=list(tools),
        system_tools=options.pop("system_tools", False),
        **options,
    )


def entries_of(session: Session, kind: type[T]) -> list[T]:
    """Return the entries of one kind, when the run of a session has ended."""
    return [entry for entry in session.record if isinstance(entry, kind)]


def echo(_: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answer with the arguments, as the function of a tool."""
    return dict(arguments)


def verdict(name: str = "good") -> Verdict:
    """A verdict that belongs to no check."""
    return Verdict(operation=UUID(int=1), name=name, judge="me", passed=True, report="")


def cancelled_session(text: str = "go") -> Session:
    """Return a session whose run was cancelled."""
    session = Session.from_user_message(text)
    body = session.core.body.result().cancelled(session.id)
    return Session.from_body(Deferred.of(body), session.provenance, id=session.id)


texts = st.text(max_size=30)
any_texts = st.text(st.characters(codec=None), max_size=30)
"""Text that may hold lone surrogates, as models and broken programs write it."""

call_ids = st.sampled_from(["", "a", "b", "call_1", "same"])
arguments = st.sampled_from(["", "{}", '{"x": 1}', "{broken", "[1]", '"text"'])
parts = st.builds(tool_call_part, call_ids, st.sampled_from(["f", "g"]), arguments)


@st.composite
def assistant_rows(draw: st.DrawFn) -> ChunkRow:
    calls = tuple(draw(st.lists(parts, max_size=3)))
    content = draw(st.none() | any_texts)
    return assistant_turn_chunk(tool_calls=calls or None, content=content)


rows = st.one_of(
    st.builds(user_text_chunk, any_texts),
    st.builds(user_text_chunk, any_texts, images=st.lists(pictures, min_size=1, max_size=2)),
    st.builds(system_text_chunk, any_texts),
    assistant_rows(),
    st.builds(tool_feedback_chunk, call_ids, st.sampled_from(["f", "g"]), any_texts),
    st.builds(
        tool_feedback_chunk,
        call_ids,
        st.sampled_from(["f", "g"]),
        any_texts,
        images=st.lists(pictures, min_size=1, max_size=2),
    ),
    st.builds(ChunkRow, st.just("from_the_future"), st.just({"content": "?", "x": [1, {"y": 2}]})),
)
row_lists = st.lists(rows, max_size=12)
sessions = row_lists.map(lambda made: Session(ChunkTable(made)))
