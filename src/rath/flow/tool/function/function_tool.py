"""Tools made of a function or a method."""

from __future__ import annotations

import inspect
import threading
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, cast, overload
from weakref import WeakValueDictionary

from rath.flow.tool.base import FlowToolCall
from rath.flow.tool.function.definition import Definition
from rath.flow.tool.function.encode import plain_result
from rath.session import Session

__all__ = ["FunctionTool"]

F = TypeVar("F", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")

Binding = Literal["nothing", "object", "class"]
"""What must be bound before a tool can be called: an object for a method."""

_binding = threading.Lock()


class DefinedTool(FlowToolCall):
    """A tool whose schema, checks and lanes come from the hints of what it calls."""

    _definition: Definition

    @property
    @abstractmethod
    def function(self) -> Any:
        """What a call of the tool calls, as plain Python."""

    @property
    def name(self) -> str:
        return self._definition.name

    @property
    def description(self) -> str | None:
        return self._definition.description

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self._definition.arguments.schema

    @property
    def origin(self) -> str:
        return self._definition.source.origin

    def check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Check what a model gave, as the loop does in place of the JSON Schema's check.

        Values are converted where that loses nothing, such as "3" to 3.

        Raises:
            BadArguments: They do not fit; the text names the places and what was expected.
        """
        self._definition.read(arguments)

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        key = self._definition.resource_key(arguments)
        return super().resource_key(arguments) if key is None else key

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        result = self.function(**self._definition.values(session, arguments))
        return _awaited(result) if inspect.isawaitable(result) else plain_result(result)

    def __repr__(self) -> str:
        return f"<rath.tool {self.name!r} of {self.origin}>"


class FunctionTool(DefinedTool, Generic[F]):
    """A tool made of a function by `rath.tool`; `function` is the function itself.

    One that was made in the body of a class belongs to its objects, as a method does:
    `desk.lookup` is a tool, and the same one each time.
    """

    def __init__(self, function: F, definition: Definition, *, binds: Binding = "nothing") -> None:
        self._function = function
        self._definition = definition
        self._binds = binds
        # Weakly: a bound tool holds its object, and must not keep it alive from here.
        self._bound: WeakValueDictionary[int, FunctionTool[Any]] = WeakValueDictionary()
        options = definition.options
        self.parallel_safe = options.parallel_safe
        self.timeout = options.timeout
        self.effects = options.effects
        self.approval = options.approval
        self.__doc__ = function.__doc__

    @property
    def function(self) -> F:
        return self._function

    @property
    def parameters(self) -> Mapping[str, Any]:
        self._refuse_unbound()
        return super().parameters

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(
        self: FunctionTool[Callable[Concatenate[Any, P], R]], instance: object, owner: type[Any]
    ) -> FunctionTool[Callable[P, R]]: ...
    def __get__(self, instance: object, owner: type[Any]) -> FunctionTool[Any]:
        holder = owner if self._binds == "class" else instance
        if holder is None or self._binds == "nothing":
            return self
        with _binding:
            # The id is not used again while the tool, and so its object, is there.
            bound = self._bound.get(id(holder))
            if bound is None:
                function = cast("Any", self._function).__get__(holder, owner)
                bound = self._bound[id(holder)] = type(self)(function, self._definition)
            return bound

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        self._refuse_unbound()
        return super().__call__(session, arguments)

    def _refuse_unbound(self) -> None:
        if self._binds != "nothing":
            holder, _, name = self._definition.source.origin.rpartition(":")[2].rpartition(".")
            raise TypeError(
                f"tool {self.name!r} is a method of {holder}, and was given without an object; "
                f"expected that of an object, {holder}(...).{name}"
            )


class AsyncFunctionTool(FunctionTool[F]):
    """The same for an `async def`, which the loop tells by `__call__`."""

    async def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        return await super().__call__(session, arguments)


async def _awaited(result: Awaitable[object]) -> Any:
    return plain_result(await result)
