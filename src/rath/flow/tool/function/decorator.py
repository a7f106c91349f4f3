"""`rath.tool`: a typed function, method or class becomes a tool."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

from rath.flow.tool.base import FlowToolCall
from rath.flow.tool.function.function_tool import (
    AsyncFunctionTool,
    Binding,
    FunctionTool,
    ObjectTool,
    define,
    object_tool_class,
)
from rath.flow.tool.function.source import ToolSource, function_source, read_docstring
from rath.flow.tool.options import Resource, ToolOptions
from rath.session.tooling import ApprovalRule, ToolEffects

__all__ = ["tool"]

P = ParamSpec("P")
R = TypeVar("R")


class ToolDecorator(Protocol):
    """What `rath.tool(...)` with options gives."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a class is called too: the first one counts
        self, function: type[Any], /
    ) -> type[ObjectTool]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> FunctionTool[Callable[P, R]]: ...


@overload
def tool(  # type: ignore[overload-overlap]  # a class is called too: the first one counts
    function: type[Any],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parallel_safe: bool = False,
    resource: Resource | None = None,
    effects: ToolEffects = "non_idempotent",
    timeout: float | None = None,
    approval: ApprovalRule = "never",
    show_traceback: bool = False,
) -> type[ObjectTool]: ...
@overload
def tool(
    function: Callable[P, R],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parallel_safe: bool = False,
    resource: Resource | None = None,
    effects: ToolEffects = "non_idempotent",
    timeout: float | None = None,
    approval: ApprovalRule = "never",
    show_traceback: bool = False,
) -> FunctionTool[Callable[P, R]]: ...
@overload
def tool(
    function: None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parallel_safe: bool = False,
    resource: Resource | None = None,
    effects: ToolEffects = "non_idempotent",
    timeout: float | None = None,
    approval: ApprovalRule = "never",
    show_traceback: bool = False,
) -> ToolDecorator: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parallel_safe: bool = False,
    resource: Resource | None = None,
    effects: ToolEffects = "non_idempotent",
    timeout: float | None = None,
    approval: ApprovalRule = "never",
    show_traceback: bool = False,
) -> Any:
    """Make a tool of a typed function, `def` or `async def`; for use as a decorator.

    The model's JSON Schema comes from the hints, its words from the docstring. What the model
    gives is checked and converted before the function is called. A parameter with the hint
    `Session` gets a snapshot of the calling session and is not in the schema.

    Of a method it makes one tool for each object, of a class one whose objects are tools, and of
    any other object with a `__call__` one tool.

    Args:
        function: What is called; left out to give options: `@rath.tool(timeout=5)`.
        name: Name for the model: up to 64 letters of a to z, digits, `_` and `-`; by default that
            of the function.
        description: What it does and when to use it; by default what the docstring says.
        parallel_safe: Whether calls may run beside others of their round.
        resource: What a call works on, a name or several, or a function that gives them for the
            mapping of converted arguments: calls with equal ones never overlap.
        effects: What repeating a call would do: "read_only", "idempotent" or "non_idempotent".
        timeout: Seconds that a call may take; None takes the loop's own limit.
        approval: Whether somebody must allow a call first: "never", "always", or a function that
            gets a `CallRequest` and says so.
        show_traceback: Whether the model reads the last frames where it raises, beside the error;
            the record has them anyway.

    Raises:
        TypeError: A parameter has no hint, or one without JSON Schema, or cannot be given by
            name; an option is of the wrong type.
        ValueError: An option, or the name, is none that can be used.
    """
    options = ToolOptions(
        name=name,
        description=description,
        parallel_safe=parallel_safe,
        resource=resource,
        effects=effects,
        timeout=timeout,
        approval=approval,
        show_traceback=show_traceback,
    )
    if function is None:
        return functools.partial(make_tool, options)
    return make_tool(options, function)


def make_tool(options: ToolOptions, target: object, /) -> FlowToolCall | type[ObjectTool]:
    if _is_tool(target):
        raise TypeError(f"{target!r:.120} is a tool already; leave out rath.tool")
    if isinstance(target, type):
        return object_tool_class(target, options)
    if isinstance(target, staticmethod | classmethod):
        inner = cast("Callable[..., Any]", cast("Any", target).__func__)  # unknown to pyright
        if isinstance(target, staticmethod):
            return _function_tool(function_source(inner), options)
        return _function_tool(function_source(inner, takes_self=True), options, binds="class")
    if not callable(target):
        raise TypeError(
            f"rath.tool was given {target!r:.80}, which cannot be called; expected a function with "
            'hints; options are given by name, @rath.tool(name="...")'
        )
    if _is_method(target):
        source = function_source(target, takes_self=True)
        _check_self(source)
        return _function_tool(source, options, binds="object")
    return _function_tool(function_source(target), options)


def _is_tool(target: object) -> bool:
    """Tell what is a tool, and no class that calls something else than the tool above it."""
    if isinstance(target, type) and issubclass(target, FlowToolCall):
        return not (issubclass(target, ObjectTool) and "__call__" in vars(target))
    return isinstance(target, FlowToolCall)


def _function_tool(
    source: ToolSource, options: ToolOptions, *, binds: Binding = "nothing"
) -> FunctionTool[Any]:
    named = source.target
    name: str | None = getattr(named, "__name__", None)
    if name is None and not isinstance(named, functools.partial):
        name = type(named).__name__
    if name is None and options.name is None:
        raise source.refuse("a partial has no name that a model could call; give name=")
    described = read_docstring(_docstring(source))
    definition = define(source, name or "", described, options)
    if definition.is_async:
        return AsyncFunctionTool(source.target, definition, binds=binds)
    return FunctionTool(source.target, definition, binds=binds)


def _docstring(source: ToolSource) -> str | None:
    if isinstance(source.target, functools.partial) or source.code.__doc__:
        return source.code.__doc__
    return source.target.__doc__


def _is_method(target: Callable[..., Any]) -> bool:
    """Tell whether a function stands in the body of a class, by its name."""
    around = target.__qualname__.rpartition(".")[0] if inspect.isfunction(target) else ""
    return bool(around) and not around.endswith("<locals>")


def _check_self(source: ToolSource) -> None:
    """Refuse what `staticmethod` and `classmethod` above `rath.tool` leave it with."""
    first = next(iter(inspect.signature(source.target).parameters.values()), None)
    if first is not None and (
        first.name == "self"
        or (first.annotation is inspect.Parameter.empty and first.name != "cls")
    ):
        return
    kind = "classmethod" if first is not None and first.name == "cls" else "staticmethod"
    raise source.refuse(
        "it stands in a class and its first parameter is not `self`; expected a method, or a "
        f"{kind} made first; write @rath.tool above @{kind}"
    )
