"""Runs that wait for somebody: a tool that notes its calls, and what is read of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from rath.llm.chat_response import RathLLMAssistantMessage
from rath.session import Session
from rath.session.content import ToolFeedback
from rath.session.persistence.store import FileStore, default_store
from rath.session.record import Decision, Interrupt, ToolRun
from rath.session.tooling import ApprovalRule
from rath.testing import Turn, tool_call
from tests.support.api import Entry
from tests.support.sessions import FunctionTool, run

AGENT = Session.from_agent_prompt("You are a test.")
Effects = Literal["read_only", "idempotent", "non_idempotent"]
N_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}


class Noting(FunctionTool):
    """A tool that notes the number it is called with, and answers with it."""

    def __init__(
        self,
        name: str = "f",
        work: Callable[[Any], Any] | None = None,
        *,
        approval: ApprovalRule = "always",
        effects: Effects = "non_idempotent",
    ) -> None:
        super().__init__(name, self._note, schema=N_SCHEMA, parallel_safe=True)
        self.approval = approval
        self.effects = effects
        self.calls: list[Any] = []
        self._work = work

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return (self.name, str(arguments.get("n")))

    def _note(self, _: Session, arguments: Mapping[str, Any]) -> Any:
        number = arguments.get("n")
        self.calls.append(number)
        return {"said": number} if self._work is None else self._work(number)


def calls_of(*numbers: int, name: str = "f") -> RathLLMAssistantMessage:
    """A turn that calls a tool once for each number, under the id `c<number>`."""
    first, *more = (tool_call(name, {"n": n}, id=f"c{n}") for n in numbers)
    parts = [part for turn in (first, *more) for part in turn.tool_calls or ()]
    return RathLLMAssistantMessage(tool_calls=tuple(parts))


def go(
    turns: list[Turn], *tools: FunctionTool, user: Session | None = None, **more: Any
) -> Session:
    """Run until the end, or until it waits."""
    return run(turns, *tools, user=user, agent=AGENT, **more).synchronize()


def waiting(*numbers: int, tool: FunctionTool | None = None, **more: Any) -> Session:
    """A run that waits for approvals of calls with these numbers."""
    return go([calls_of(*numbers)], tool or Noting(), **more)


def log_of(session: UUID) -> Path:
    """The file in which a stored session is."""
    store = default_store()
    assert isinstance(store, FileStore)
    return store.path(session)


def results(session: Session) -> list[tuple[str, Any]]:
    """What the model read of each call, in the order of the rows."""
    contents = [row.content for row in session.chunk_table]
    reply = [each for each in contents if isinstance(each, ToolFeedback)]
    return [(each.call_id, json.loads(each.body)) for each in reply]


def tool_runs(session: Session) -> dict[str, ToolRun]:
    """The tool runs that have a row, by the id of their call."""
    runs = (entry for entry in session.record if isinstance(entry, ToolRun))
    return {entry.call_id: entry for entry in runs if entry.rows}


def decisions(session: Session) -> list[Decision]:
    return [entry for entry in session.record if isinstance(entry, Decision)]


def interrupts(session: Session) -> list[Interrupt]:
    return [entry for entry in session.record if isinstance(entry, Interrupt)]


def kinds(session: Session) -> list[type[Entry]]:
    return [type(entry) for entry in session.record]
