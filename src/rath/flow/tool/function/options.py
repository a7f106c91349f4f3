"""What a program says of a tool beside its function: lanes, effects, time and approval."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from rath.flow.tool.declared import check_approval, check_effects, check_kind, check_timeout
from rath.session.tooling import ApprovalRule, ToolEffects

Resource = str | tuple[str, ...] | Callable[[Mapping[str, Any]], str | tuple[str, ...]]
"""What a call works on: a name, several, or a function of the arguments that gives them."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names of tools that OpenAI and Anthropic take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `rath.tool` was told.

    Raises:
        TypeError: A value is of the wrong type.
        ValueError: A value is of the right type and means nothing.
    """

    name: str | None = None
    description: str | None = None
    parallel_safe: bool = False
    resource: Resource | None = None
    effects: ToolEffects = "non_idempotent"
    timeout: float | None = None
    approval: ApprovalRule = "never"

    def __post_init__(self) -> None:
        if self.name is not None:
            checked_name(self.name)
        if self.description is not None:
            check_kind("description", self.description, str, "a str")
        check_kind("parallel_safe", self.parallel_safe, bool, "True or False")
        if self.resource is not None and not callable(self.resource):
            _key(self.resource, "resource")
        check_effects(self.effects)
        check_timeout(self.timeout)
        check_approval(self.approval)

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
    if not _NAME.fullmatch(cast("str", name)):
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
