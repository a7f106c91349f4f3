"""Classes whose objects are tools."""

from __future__ import annotations

import inspect
from abc import ABCMeta
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import partial
from types import new_class
from typing import TYPE_CHECKING, Any, cast

from rath._async.bridge import is_async
from rath.flow.tool.function.definition import Definition, define
from rath.flow.tool.function.docstring import Described, read_docstring
from rath.flow.tool.function.function_tool import DefinedTool
from rath.flow.tool.function.options import Options
from rath.flow.tool.function.source import class_source
from rath.session import Session

__all__ = ["ObjectTool"]

Call = Callable[..., Any]


class ObjectTool(DefinedTool):
    """A tool that is an object of a class declared with `rath.tool`; `function` is its call."""

    if TYPE_CHECKING:
        # The class that was declared is the other base, which checkers of types cannot be told.
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

    @property
    def function(self) -> Call:
        return partial(self._definition.source.target, self)


class AsyncObjectTool(ObjectTool):
    """The same where `__call__` is an `async def`."""

    async def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        return await super().__call__(session, arguments)


def object_tool_class(kind: type[Any], options: Options) -> type[ObjectTool]:
    """Return the class `kind` with objects that are tools.

    Raises:
        TypeError: It has no `__call__` that can be one of a tool, or attributes that tools have.
    """
    call = _own_call(kind)
    source = class_source(kind, kind if call is None else call)
    if call is None:
        raise source.refuse(
            "it has no __call__ that is a method; expected one with hints, which is what a call "
            "of the tool does: def __call__(self, text: str) -> str"
        )
    if type(kind) not in (type, ABCMeta):
        raise source.refuse(
            f"it has the metaclass {type(kind).__name__}, so no class of tools can be made of it; "
            f"make the tool of an object: rath.tool({kind.__name__}(...))"
        )
    taken = sorted(_names_of(kind) & {*dir(DefinedTool), "_definition"} - {"_abc_impl"})
    if taken:
        raise source.refuse(
            f"its {taken[0]!r} would hide what a tool has under that name; rename it, or make the "
            f"tool of an object: rath.tool({kind.__name__}(...))"
        )
    definition = define(source, kind.__name__, _described(kind, call), options)
    return _made(kind, definition, call)


def _made(kind: type[Any], definition: Definition, call: Call) -> type[ObjectTool]:
    base = AsyncObjectTool if is_async(call) else ObjectTool
    options = definition.options
    members = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__call__": base.__call__,
        "_definition": definition,
        "parallel_safe": options.parallel_safe,
        "timeout": options.timeout,
        "effects": options.effects,
        "approval": staticmethod(options.approval)
        if callable(options.approval)
        else options.approval,
    }
    made = new_class(kind.__name__, (kind, base), exec_body=lambda body: body.update(members))
    return cast("type[ObjectTool]", made)


def _own_call(kind: type[Any]) -> Call | None:
    found = next(
        (vars(base)["__call__"] for base in kind.__mro__ if "__call__" in vars(base)), None
    )
    return found if inspect.isfunction(found) else None


def _names_of(kind: type[Any]) -> set[str]:
    """Return the names of a class and of those above, also of fields, but for those of tools."""
    return {
        name
        for base in kind.__mro__
        if not issubclass(ObjectTool, base) and "_definition" not in vars(base)
        for name in (*vars(base), *vars(base).get("__annotations__", ()))
        if not name.startswith("__")
    }


def _described(kind: type[Any], call: Call) -> Described:
    """Return what its call and its class say; `Args:` of a class are about its constructor."""
    of_call = read_docstring(call.__doc__)
    is_generated = is_dataclass(kind) and (kind.__doc__ or "").startswith(f"{kind.__name__}(")
    of_class = Described() if is_generated else read_docstring(kind.__doc__)
    return Described(of_call.text or of_class.text, of_call.parameters)
