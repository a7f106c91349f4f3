"""What our side of several rows shares: the add tool, and agents on a fake model."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from benchmarks.by_hand import add_tool
from benchmarks.measure import Sample
from rath.flow import Agent, Provider
from rath.flow.tool import FlowToolCall
from rath.llm import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatRequest,
    RathLLMChatResponse,
    register_chat_client,
)
from rath.session import Session
from rath.testing import tool_call


class AddTool(FlowToolCall):
    """The tool of the loops by hand."""

    parallel_safe = True

    @property
    def name(self) -> str:
        """As the fake server calls it."""
        return "add"

    @property
    def description(self) -> str:
        """As the loops by hand send it."""
        return add_tool.DESCRIPTION

    @property
    def parameters(self) -> Mapping[str, Any]:
        """As the loops by hand send them."""
        return add_tool.PARAMETERS

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return str(arguments["a"] + arguments["b"])


class ClockedAddTool(AddTool):
    """Notes the CPU clock of the process and the time at each call."""

    def __init__(self) -> None:
        self._clock: list[tuple[float, float]] = []

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> str:
        self._clock.append((time.process_time(), time.perf_counter()))
        return super().__call__(session, arguments)

    def rounds(self) -> list[Sample]:
        """Return the cost from each call to the next: the beginning and end of a run are out."""
        return [
            Sample(end[0] - start[0], end[1] - start[1]) for start, end in pairwise(self._clock)
        ]


class InProcessModel:
    """A model that calls the add tool so many times and then answers; asks no server."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._turns = 0
        register_chat_client("in-process", lambda _: self)
        self.provider = Provider(model="in-process", provider_kind="in-process")

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        """Answer the next request of a run; one run goes on at a time."""
        self._turns += 1
        if self._turns > self._rounds:
            self._turns = 0
            message = RathLLMAssistantMessage(content="The work is done.")
        else:
            message = tool_call("add", {"a": self._turns, "b": 1})
        choice = RathLLMChatChoice(0, "tool_calls" if message.tool_calls else "stop", message)
        return RathLLMChatResponse("in-process", (choice,), created=0, model="in-process")


def provider(base_url: str) -> Provider:
    """The fake server as a provider."""
    return Provider(base_url=base_url, api_key="x", model="fake")


def open_agent(
    model: str | Provider, tool: FlowToolCall, *, max_tool_rounds: int, persist: bool = False
) -> Agent:
    """An agent with one tool and no other, on a provider or the fake server at an address."""
    return Agent(
        add_tool.SYSTEM,
        provider(model) if isinstance(model, str) else model,
        [tool],
        system_tools=False,
        max_tool_rounds=max_tool_rounds,
        persist=persist,
    )


@contextmanager
def new_home() -> Generator[None]:
    """Write to an empty home in the block; it is removed afterwards."""
    before = os.environ["OPENRATH_HOME"]
    with tempfile.TemporaryDirectory(prefix="rath-home-") as folder:
        os.environ["OPENRATH_HOME"] = folder
        try:
            yield
        finally:
            os.environ["OPENRATH_HOME"] = before
