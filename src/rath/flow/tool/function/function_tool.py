"""Tools made of functions and classes: definition, calls, and results as plain values."""

from __future__ import annotations

import base64
import copy
import dataclasses
import inspect
import threading
from abc import ABCMeta, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import is_dataclass
from functools import partial
from types import new_class
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    overload,
)
from weakref import WeakValueDictionary

import pydantic
import pydantic_core

from rath._async.bridge import is_async
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_function
from rath._core.references import (
    Reduction,
    find_code,
    is_by_value,
    require_importable,
)
from rath.backend.results import ToolResult
from rath.flow.tool.base import FlowToolCall, refuse_secrets
from rath.flow.tool.function.arguments import Arguments, arguments_type
from rath.flow.tool.function.source import (
    ToolDocstring,
    ToolSource,
    class_source,
    read_docstring,
    read_signature,
    underneath,
)
from rath.flow.tool.options import ToolOptions, checked_name
from rath.llm.image import Image
from rath.session import Session
from rath.session.tooling import ApprovalRule, ToolEffects

__all__ = ["FunctionTool", "ObjectTool"]


F = TypeVar("F", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")

Binding = Literal["nothing", "object", "class"]
"""What must be bound before a tool can be called: an object for a method."""

_binding = threading.Lock()

# The decorator makes the tools of this module.
_make_tool = lazy_function("rath.flow.tool.function.decorator", "make_tool")


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
    def has_own_description(self) -> bool:
        return True

    def with_description(self, text: str) -> Self:
        options = dataclasses.replace(self._definition.options, description=text)
        tool = copy.copy(self)
        tool._definition = dataclasses.replace(  # noqa: SLF001  # a copy of this very object
            self._definition, description=text, options=options
        )
        return tool

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
        return _plain_awaitable(result) if inspect.isawaitable(result) else plain_result(result)

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
        self.parallel_safe: bool = options.parallel_safe
        self.timeout: float | None = options.timeout
        self.effects: ToolEffects = options.effects
        self.approval: ApprovalRule = options.approval
        self.show_traceback: bool = options.show_traceback
        self.__doc__ = function.__doc__

    @property
    def function(self) -> F:
        return self._function

    @property
    def parameters(self) -> Mapping[str, Any]:
        self._refuse_unbound()
        return super().parameters

    def _pickle_reference(self) -> Reduction:
        """Return its name in its module; else its function and options, else the object's own tool.

        Raises:
            TypeError: Another process cannot import the function, and its code is not sent.
        """
        holder: object = getattr(self._function, "__self__", None)
        attribute = str(getattr(self._function, "__name__", ""))
        if holder is not None:
            refuse_secrets(holder)
        if holder is not None and getattr(holder, attribute, None) is self:
            return getattr, (holder, attribute)
        code = self._definition.source.code
        module, qualname = str(code.__module__), str(code.__qualname__)
        found = find_code(module, qualname)
        is_importable = found is self or found is code
        require_importable(code, known_as=self)
        if found is self and not (module == "__main__" and is_by_value()):
            return find_code, (module, qualname)
        # Hints in quotes mean nothing where the code arrives.
        hints = None if is_importable and module != "__main__" else dict(self._definition.hints)
        return tool_again, (self._function, self._definition.options, self._binds, hints)

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


def tool_again(
    function: Any, options: ToolOptions, binds: Binding, hints: Mapping[str, Any] | None
) -> FlowToolCall:
    """Return the tool that a reference means here.

    Args:
        function: What it calls.
        options: What the program said of it.
        binds: What must be bound first.
        hints: Those of its parameters, where its code was sent with it.
    """
    if hints is not None:
        underneath(function).__annotations__ = dict(hints)
    wrapper = {"nothing": staticmethod, "class": classmethod, "object": None}[binds]
    made: FlowToolCall = _make_tool(options, function if wrapper is None else wrapper(function))
    return made


async def _plain_awaitable(result: Awaitable[object]) -> Any:
    return plain_result(await result)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Definition:
    """A tool as it was declared; one may be shared by many objects."""

    name: str
    description: str | None
    arguments: Arguments
    sessions: tuple[str, ...]
    """Parameters that get the session."""

    hints: Mapping[str, Any]
    """The resolved hints of all parameters."""

    source: ToolSource
    options: ToolOptions
    is_async: bool

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that the function takes.

        Raises:
            BadArguments: They do not fit.
        """
        return self.arguments.read(self.name, arguments)

    def values(self, session: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the function is called with: the arguments, and the session where it asks.

        Raises:
            BadArguments: The arguments do not fit.
        """
        return self.read(arguments) | dict.fromkeys(self.sessions, session)

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...] | None:
        """Return what a call works on, None where the tool does not say.

        Raises:
            BadArguments: The arguments do not fit.
        """
        if not callable(self.options.resource):
            return self.options.resource_key(self.name, arguments)
        return self.options.resource_key(self.name, self.read(arguments))


def define(
    source: ToolSource, name: str, described: ToolDocstring, options: ToolOptions
) -> Definition:
    """Return the definition of a tool.

    Args:
        source: What it is made of.
        name: Its name where `options` has none.
        described: What its docstring says.
        options: What the program says of it.

    Raises:
        TypeError: No schema can be made of its parameters, or it is a generator.
        ValueError: Its name is none that a model can call.
    """
    _refuse_generator(source)
    if options.name is None and name == "<lambda>":
        raise source.refuse("a lambda has no name that a model could call; give name=")
    signature = read_signature(source)
    adapter, schema = arguments_type(source, signature.parameters, described.parameters)
    return Definition(
        name=checked_name(name) if options.name is None else options.name,
        description=options.description if options.description is not None else described.text,
        arguments=Arguments(schema, adapter),
        sessions=signature.sessions,
        hints={one.name: one.hint for one in signature.parameters}
        | dict.fromkeys(signature.sessions, Session),
        source=source,
        options=options,
        is_async=is_async(source.target),
    )


def _refuse_generator(source: ToolSource) -> None:
    code: Callable[..., Any] = source.code
    if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        raise source.refuse(
            "it is a generator function, which gives values one by one; expected a function that "
            "returns one result, since a model reads one; return a list"
        )


_PLAIN = (str, int, float, bool, type(None))
_BYTES = (bytes, bytearray)
_OURS = (Image, *_BYTES)


def plain_result(value: object) -> Any:
    """Return `value` with models, dataclasses, dates, enums, bytes and sets made plain.

    Bytes become base64, but for those of models, which say themselves how they are written.
    Images, and what sandboxes answer, stay what they are, also inside of other values. What cannot
    be made plain is returned as it is.
    """
    # By exact type: an enum may be a str too.
    if type(value) in _PLAIN or isinstance(value, Image | ToolResult):
        return value
    if isinstance(value, _BYTES):
        # Pydantic writes the alphabet of URLs, which `base64 -d` and most decoders refuse.
        return base64.b64encode(value).decode()
    items = list(cast("Generator[object]", value)) if isinstance(value, Generator) else value
    return _split(items) if _holds_ours(items) else _jsonable(items)


def _jsonable(value: object) -> Any:
    try:
        return pydantic_core.to_jsonable_python(
            value, by_alias=False, bytes_mode="base64", fallback=str
        )
    except (ValueError, RecursionError):
        return value


def _split(value: object) -> Any:
    """Return a value part by part."""
    parts = _parts(value)
    if isinstance(parts, dict):
        return {_key(key): plain_result(part) for key, part in parts.items()}
    return [plain_result(part) for part in parts]


def _key(key: object) -> str:
    written: object = _jsonable({key: None})
    return str(next(iter(cast("dict[object, None]", written))))


def _holds_ours(value: object) -> bool:
    """Tell whether there is an image in it, or bytes outside of a model."""
    todo: list[object] = [value]
    visited: dict[int, object] = {}
    while todo:
        one = todo.pop()
        if type(one) in _PLAIN or id(one) in visited:
            continue
        if isinstance(one, _OURS):
            return True
        visited[id(one)] = one
        parts = _parts(one)
        listed = parts.values() if isinstance(parts, dict) else parts
        is_model = isinstance(one, pydantic.BaseModel)
        todo += [part for part in listed if not (is_model and isinstance(part, _BYTES))]
    return False


def _parts(value: object) -> dict[object, object] | list[object]:
    """Return what a value holds; nothing of one that is looked into by pydantic alone."""
    if isinstance(value, list | tuple):
        return list(cast("list[object]", value))
    if isinstance(value, dict | Mapping):
        return dict(cast("Mapping[object, object]", value))
    if isinstance(value, AbstractSet):
        return list(cast("AbstractSet[object]", value))
    if isinstance(value, pydantic.BaseModel):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type | ToolResult):
        return {each.name: getattr(value, each.name, None) for each in dataclasses.fields(value)}
    return []


CallMethod = Callable[..., Any]


class ObjectTool(DefinedTool):
    """A tool that is an object of a class declared with `rath.tool`; `function` is its call."""

    if TYPE_CHECKING:
        # The class that was declared is the other base, which checkers of types cannot be told.
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

    @property
    def function(self) -> CallMethod:
        return partial(self._definition.source.target, self)


class AsyncObjectTool(ObjectTool):
    """The same where `__call__` is an `async def`."""

    async def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        return await super().__call__(session, arguments)


def object_tool_class(kind: type[Any], options: ToolOptions) -> type[ObjectTool]:
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
    reserved = sorted(_names_of(kind) & {*dir(DefinedTool), "_definition"} - {"_abc_impl"})
    if reserved:
        raise source.refuse(
            f"its {reserved[0]!r} would hide what a tool has under that name; rename it, or make "
            f"the tool of an object: rath.tool({kind.__name__}(...))"
        )
    definition = define(source, kind.__name__, _docstring_of(kind, call), options)
    return _tool_class(kind, definition, call)


def _tool_class(kind: type[Any], definition: Definition, call: CallMethod) -> type[ObjectTool]:
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
        "show_traceback": options.show_traceback,
        "approval": staticmethod(options.approval)
        if callable(options.approval)
        else options.approval,
    }
    subclass = new_class(kind.__name__, (kind, base), exec_body=lambda body: body.update(members))
    return cast("type[ObjectTool]", subclass)


def _own_call(kind: type[Any]) -> CallMethod | None:
    method = next(
        (vars(base)["__call__"] for base in kind.__mro__ if "__call__" in vars(base)), None
    )
    return method if inspect.isfunction(method) else None


def _names_of(kind: type[Any]) -> set[str]:
    """Return the names of a class and of those above, also of fields, but for those of tools."""
    return {
        name
        for base in kind.__mro__
        if not issubclass(ObjectTool, base) and "_definition" not in vars(base)
        for name in (*vars(base), *vars(base).get("__annotations__", ()))
        if not name.startswith("__")
    }


def _docstring_of(kind: type[Any], call: CallMethod) -> ToolDocstring:
    """Return what its call and its class say; `Args:` of a class are about its constructor."""
    of_call = read_docstring(call.__doc__)
    is_generated = is_dataclass(kind) and (kind.__doc__ or "").startswith(f"{kind.__name__}(")
    of_class = ToolDocstring() if is_generated else read_docstring(kind.__doc__)
    return ToolDocstring(of_call.text or of_class.text, of_call.parameters)
