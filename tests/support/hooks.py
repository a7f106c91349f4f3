"""Hooks that tests need in many places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rath.flow import Agent, CallRequest, ToolResultText


def always(value: Any) -> Callable[..., Any]:
    """A hook that gives `value`, whatever it is shown."""

    def hook(*_: object) -> Any:
        return value

    return hook


def noting(seen: list[Any]) -> Callable[..., None]:
    """A hook that notes all that it is shown, and leaves it as it is."""

    def hook(*given: Any) -> None:
        seen.append(given)

    return hook


def calling(
    change: Callable[[Mapping[str, Any]], Any], **more: Any
) -> Callable[[Agent, CallRequest], CallRequest]:
    """A hook that gives a call the arguments that `change` makes of those that it has."""

    def hook(_: Agent, call: CallRequest) -> CallRequest:
        return replace(call, arguments=change(call.arguments), **more)

    return hook


def telling(
    change: Callable[[str], str],
) -> Callable[[Agent, CallRequest, ToolResultText], ToolResultText]:
    """A hook that gives a result the text that `change` makes of what it says."""

    def hook(_: Agent, __: CallRequest, result: ToolResultText) -> ToolResultText:
        return replace(result, text=change(result.text))

    return hook


def arguments_of(_: object, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool that gives back what it is called with."""
    return arguments
