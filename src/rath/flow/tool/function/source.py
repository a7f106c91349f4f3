"""Source of a tool: the callable, its signature with resolved hints, and its docstring."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import field
from types import CodeType, FrameType, FunctionType
from typing import Annotated, Any, Union, get_args, get_origin

import docstring_parser

from rath._core.dataclasses import dataclass
from rath._core.options import module_name, origin_of
from rath.flow.tool.base import FlowToolCall
from rath.session import Session

_NO_TYPES = (FunctionType, FlowToolCall, staticmethod, classmethod, property)
_PACKAGE = __name__.rpartition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSource:
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
        names_in_scope = {
            **_names_around(str(getattr(self.code, "__qualname__", ""))),
            **self.inner_names,
            **_enclosed_names(self.code),
        }
        # A method named `list` does not hide the type.
        return {name: one for name, one in names_in_scope.items() if not isinstance(one, _NO_TYPES)}


def function_source(target: Callable[..., Any], *, takes_self: bool = False) -> ToolSource:
    """Return the source of a function, a method, a partial or another callable."""
    code = underneath(target)
    if not hasattr(code, "__code__") and not hasattr(code, "__qualname__"):
        code = underneath(type(code).__call__)
        label, qualname = f"object of {type(target).__qualname__}", type(target).__qualname__
    else:
        qualname = str(getattr(code, "__qualname__", type(code).__qualname__))
        label = f"function {qualname}"
    return ToolSource(
        target=target,
        code=code,
        label=label,
        origin=f"{module_name(str(getattr(code, '__module__', None) or '<unknown>'))}:{qualname}",
        takes_self=takes_self,
    )


def class_source(kind: type[Any], call: Callable[..., Any]) -> ToolSource:
    """Return the source of a class whose objects are called."""
    return ToolSource(
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


_KINDS = {
    inspect.Parameter.VAR_POSITIONAL: (
        "*{name}",
        "takes any number of values",
        "take one list, {name}: list[...]",
    ),
    inspect.Parameter.VAR_KEYWORD: (
        "**{name}",
        "takes any names",
        "take one mapping, {name}: dict[str, ...], or name the parameters",
    ),
    inspect.Parameter.POSITIONAL_ONLY: (
        "{name}",
        "is positional-only",
        "leave out the `/` of the signature",
    ),
}
_UNRESOLVED = (NameError, AttributeError, TypeError, SyntaxError, ValueError)


@dataclass(frozen=True, slots=True)
class ToolParameter:
    """A parameter that the model gives an argument for."""

    name: str
    hint: Any
    default: Any
    """`inspect.Parameter.empty` where it has none."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a call of a function takes."""

    parameters: tuple[ToolParameter, ...]
    sessions: tuple[str, ...]
    """Parameters that get the snapshot of the calling session."""


def read_signature(source: ToolSource) -> Signature:
    """Return the parameters of a function that is being declared, by their hints.

    Raises:
        TypeError: A parameter has no hint or none that can be resolved, or cannot be given by name.
    """
    try:
        declared = list(inspect.signature(source.target).parameters.values())
    except (ValueError, TypeError) as exc:
        raise source.refuse(
            "it tells no signature, as functions written in C may; wrap it in a function with hints"
        ) from exc
    # `Session` is often imported for type checkers only.
    names = {"Session": Session, **source.module_names}
    local = source.local_names()
    parameters: list[ToolParameter] = []
    sessions: list[str] = []
    for one in declared[1:] if source.takes_self else declared:
        hint = _resolve_hint(source, _check_parameter(source, one), names, local)
        if _is_session(hint):
            sessions.append(one.name)
        else:
            parameters.append(ToolParameter(one.name, hint, one.default))
    return Signature(tuple(parameters), tuple(sessions))


def _check_parameter(source: ToolSource, one: inspect.Parameter) -> inspect.Parameter:
    if one.kind in _KINDS:
        written, what, cure = (text.format(name=one.name) for text in _KINDS[one.kind])
        raise source.refuse(
            f"parameter {written!r} {what}; expected parameters with names of their own, since a "
            f"model gives its arguments by name; {cure}"
        )
    if one.annotation is inspect.Parameter.empty:
        raise source.refuse(
            f"parameter {one.name!r} has no hint; expected a type, of which the model's schema is "
            f"made; write {one.name}: str, or what it is"
        )
    return one


def _resolve_hint(
    source: ToolSource, one: inspect.Parameter, names: dict[str, Any], local: Mapping[str, Any]
) -> Any:
    holder = types.SimpleNamespace(__annotations__={one.name: one.annotation})
    try:
        return typing.get_type_hints(holder, names, local, include_extras=True)[one.name]
    except _UNRESOLVED as exc:
        raise source.refuse(
            f"the hint {one.annotation!r} of parameter {one.name!r} cannot be resolved "
            f"({type(exc).__name__}: {exc}); expected a type that is there when the tool is "
            "declared; import it outside of TYPE_CHECKING, and above the function"
        ) from exc


def _is_session(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _is_session(get_args(hint)[0])
    if get_origin(hint) in {Union, types.UnionType}:
        return any(_is_session(part) for part in get_args(hint))
    return isinstance(hint, type) and issubclass(hint, Session)


@dataclass(frozen=True, slots=True)
class ToolDocstring:
    """The parts of a docstring that a model reads."""

    text: str | None = None
    """Summary and long text, without the sections on arguments, results and errors."""

    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    """What is said of each parameter, on one line."""


def read_docstring(docstring: str | None) -> ToolDocstring:
    """Return what a docstring of Google's, NumPy's or reST's style says.

    One that can be read in no style is taken whole.
    """
    if not docstring or not docstring.strip():
        return ToolDocstring()
    try:
        parsed = docstring_parser.parse(docstring)
    # The library fails of itself on a line such as ": :".
    except (docstring_parser.ParseError, IndexError):
        return ToolDocstring(inspect.cleandoc(docstring))
    between = "\n\n" if parsed.blank_after_short_description else "\n"
    texts = (parsed.short_description, parsed.long_description)
    return ToolDocstring(
        between.join(part.strip() for part in texts if part) or None,
        {
            name.strip().lstrip("*"): " ".join(one.description.split())
            for one in parsed.params
            if one.description
            for name in one.arg_name.split(",")
        },
    )
