"""Options of a tool, checked where they are given: name, lanes, effects, time and approval."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, cast, get_args

from rath._core.dataclasses import dataclass
from rath.session.tooling import ApprovalRule, ToolEffects

__all__ = ["check_approval", "check_effects", "check_kind", "check_timeout"]


def check_kind(option: str, value: object, kind: type, words: str) -> None:
    """Refuse a value of another type; `words` say which one is expected.

    Raises:
        TypeError: It is of another type.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{option} must be {words}, not {value!r:.80}")


def check_effects(effects: object) -> None:
    """Refuse what says nothing of effects.

    Raises:
        ValueError: It is none of the known words.
    """
    known = get_args(ToolEffects)
    if effects not in known:
        raise ValueError(f"effects must be one of {', '.join(map(repr, known))}, not {effects!r}")


def check_timeout(timeout: object) -> None:
    """Refuse what is no time that a call may take.

    Raises:
        TypeError: It is neither a number nor None.
        ValueError: It is a number that is not above 0, or infinite.
    """
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be seconds or None, not {timeout!r:.80}")
    if not (math.isfinite(timeout) and timeout > 0):
        raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}")


def check_approval(approval: object) -> None:
    """Refuse what is no rule of approval.

    Raises:
        ValueError: It is none.
    """
    if callable(approval) or approval in ("never", "always"):
        return
    raise ValueError(
        "approval must be 'never', 'always' or a function that takes a CallRequest and returns a "
        f"bool, not {approval!r:.80}"
    )


Resource = str | tuple[str, ...] | Callable[[Mapping[str, Any]], str | tuple[str, ...]]
"""Resources of a call: a name, several, or a function of the arguments that gives them."""

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names of tools that OpenAI and Anthropic take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """How calls of a tool are made.

    Raises:
        TypeError: A value is of the wrong type.
        ValueError: A value is of the right type and means nothing.
    """

    effects: ToolEffects = "non_idempotent"
    timeout: float | None = None
    """Seconds a call may take; None takes the loop's own limit."""

    parallel_safe: bool = False
    approval: ApprovalRule = "never"
    show_traceback: bool = False
    """Whether the model reads where and how the tool raised."""

    def __post_init__(self) -> None:
        check_effects(self.effects)
        check_timeout(self.timeout)
        check_kind("parallel_safe", self.parallel_safe, bool, "True or False")
        check_kind("show_traceback", self.show_traceback, bool, "True or False")
        check_approval(self.approval)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions(CallOptions):
    """Options of `rath.tool`.

    Raises:
        TypeError: A value is of the wrong type.
        ValueError: A value is of the right type and means nothing.
    """

    name: str | None = None
    description: str | None = None
    resource: Resource | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            checked_name(self.name)
        if self.description is not None:
            check_kind("description", self.description, str, "a str")
        if self.resource is not None and not callable(self.resource):
            _key(self.resource, "resource")
        CallOptions.__post_init__(self)

    def resource_key(self, tool: str, arguments: Mapping[str, Any]) -> tuple[str, ...] | None:
        """Return what a call works on, None where `resource` does not say.

        Raises:
            TypeError: The function that should tell it gave something else.
        """
        if self.resource is None:
            return None
        if callable(self.resource):
            return _key(self.resource(arguments), f"what the resource of tool {tool!r} gave")
        return _key(self.resource, "resource")


def checked_name(name: object) -> str:
    """Return `name` if a model can call a tool by it.

    Raises:
        TypeError: It is no str.
        ValueError: No vendor takes it.
    """
    check_kind("name", name, str, "a str")
    if not TOOL_NAME.fullmatch(cast("str", name)):
        raise ValueError(
            f"a tool cannot be named {name!r}; expected 1 to 64 letters of a to z, digits, _ and "
            '-, which is what models can call; give another one, @rath.tool(name="...")'
        )
    return cast("str", name)


def _key(value: object, what: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    parts = cast("tuple[object, ...]", value) if isinstance(value, tuple) else ()
    if not parts or not all(isinstance(part, str) for part in parts):
        raise TypeError(
            f"{what} must be a str or a tuple of str that names what a call works on, or a "
            f"function of the arguments that gives one; it is {value!r:.80}"
        )
    return cast("tuple[str, ...]", parts)
