"""A tool with one parameter, called as the loop calls it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import rath
from rath.flow.tool import FlowToolCall
from rath.session import Session
from tests.support.api import ArgumentChecker

SESSION = Session.from_user_message("go")


@dataclass(frozen=True, slots=True)
class Taker:
    """A tool that notes what it got."""

    tool: FlowToolCall
    got: list[object]

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Do with the JSON text of arguments what the loop does with it before a call."""
        checker = ArgumentChecker()
        arguments = checker.parse(self.tool.name, json.dumps(given))
        checker.check_call(self.tool, self.tool.name, self.tool.parameters, arguments)
        return arguments

    def call(self, given: Mapping[str, Any]) -> object:
        """Return what the function gets."""
        self.tool(SESSION, self.check(given))
        return self.got.pop()


def taker(hint: object) -> Taker:
    """Return a tool whose parameter `value` has the hint."""
    got: list[object] = []

    def take(value: Any) -> None:
        got.append(value)

    take.__annotations__["value"] = hint
    return Taker(rath.tool(take), got)
