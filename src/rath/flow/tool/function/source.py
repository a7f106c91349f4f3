"""What a tool is made of: a callable, the code underneath it, and where that stands."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType
from typing import Any

from rath._core.options import module_name, origin_of
from rath.flow.tool.base import FlowToolCall

_NO_TYPES = (FunctionType, FlowToolCall, staticmethod, classmethod, property)
_PACKAGE = __name__.rpartition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A callable that shall become a tool."""

    target: Callable[..., Any]
    """What is called: its signature counts."""

    code: Callable[..., Any]
    """The plain function underneath, without wrappers: its module gives the hints a meaning."""

    label: str
    """What errors call it, such as `function lookup`."""

    origin: str
    """`module:qualname`, for the record."""

    takes_self: bool = False
    """Whether the first parameter is the object, which is no argument of a call."""

    inner_names: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The names in the body of the class, where it is one."""

    def refuse(self, problem: str) -> TypeError:
        """Return the error to raise: the place, and then `problem`."""
        return TypeError(f"{self.place}: {self.label}: {problem}")

    @property
    def place(self) -> str:
        """`file:line`, or the module where there is no Python code."""
        code: object = getattr(self.code, "__code__", None)
        if isinstance(code, CodeType):
            return f"{code.co_filename}:{code.co_firstlineno}"
        return str(getattr(self.code, "__module__", None) or "<unknown>")

    @property
    def module_names(self) -> Mapping[str, Any]:
        """The global names that the code sees."""
        names: Mapping[str, Any] = getattr(self.code, "__globals__", {})
        return names

    def local_names(self) -> dict[str, Any]:
        """Return the names of the functions and classes around the code, as it is declared."""
        found = {
            **_names_around(str(getattr(self.code, "__qualname__", ""))),
            **self.inner_names,
            **_enclosed_names(self.code),
        }
        # A method named `list` does not hide the type.
        return {name: one for name, one in found.items() if not isinstance(one, _NO_TYPES)}


def function_source(target: Callable[..., Any], *, takes_self: bool = False) -> Source:
    """Return the source of a function, a method, a partial or another callable."""
    code = underneath(target)
    if not hasattr(code, "__code__") and not hasattr(code, "__qualname__"):
        code = underneath(type(code).__call__)
        label, qualname = f"object of {type(target).__qualname__}", type(target).__qualname__
    else:
        qualname = str(getattr(code, "__qualname__", type(code).__qualname__))
        label = f"function {qualname}"
    return Source(
        target=target,
        code=code,
        label=label,
        origin=f"{module_name(str(getattr(code, '__module__', None) or '<unknown>'))}:{qualname}",
        takes_self=takes_self,
    )


def class_source(kind: type[Any], call: Callable[..., Any]) -> Source:
    """Return the source of a class whose objects are called."""
    return Source(
        target=call,
        code=underneath(call),
        label=f"class {kind.__qualname__}",
        origin=origin_of(kind),
        takes_self=True,
        inner_names=vars(kind),
    )


def underneath(target: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that stands below partials, bindings and `functools.wraps`."""
    while True:
        if isinstance(target, functools.partial):
            target = target.func
        elif inspect.ismethod(target):
            target = target.__func__
        else:
            inner: Callable[..., Any] = inspect.unwrap(target)
            if inner is target:
                return target
            target = inner


def _names_around(qualname: str) -> dict[str, Any]:
    """Return the local names where the code of that name is being declared.

    Hints have a meaning in the body of a class and in the functions around it; but not in a
    function that only calls `rath.tool`.
    """
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_PACKAGE):
        frame = frame.f_back
    names: dict[str, Any] = {}
    while frame is not None and qualname.startswith(_scope(frame)):
        names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def _scope(frame: FrameType) -> str:
    """Return how the names of functions begin that stand in what runs there."""
    if "__qualname__" in frame.f_locals:  # the body of a class
        return f"{frame.f_locals['__qualname__']}."
    return f"{frame.f_code.co_qualname}.<locals>."


def _enclosed_names(code: Callable[..., Any]) -> dict[str, Any]:
    """Return the names of the functions around that the code uses itself."""
    if not inspect.isfunction(code) or not code.__closure__:
        return {}
    cells = zip(code.__code__.co_freevars, code.__closure__, strict=True)
    return {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # an empty cell says so by raising
    except ValueError:
        return False
    return True
