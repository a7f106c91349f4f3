"""Hints of parameters: read, resolved, and told apart from the session."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from rath.flow.tool.function.source import Source
from rath.session import Session

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
class Parameter:
    """A parameter that the model gives an argument for."""

    name: str
    hint: Any
    default: Any
    """`inspect.Parameter.empty` where it has none."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a call of a function takes."""

    parameters: tuple[Parameter, ...]
    sessions: tuple[str, ...]
    """Parameters that get the snapshot of the calling session."""


def read_signature(source: Source) -> Signature:
    """Return the parameters of a function that is being declared, by their hints.

    Raises:
        TypeError: A parameter has no hint or none that can be resolved, or cannot be given by name.
    """
    try:
        found = list(inspect.signature(source.target).parameters.values())
    except (ValueError, TypeError) as exc:
        raise source.refuse(
            "it tells no signature, as functions written in C may; wrap it in a function with hints"
        ) from exc
    # `Session` is often imported for type checkers only.
    known = {"Session": Session, **source.module_names}
    local = source.local_names()
    parameters: list[Parameter] = []
    sessions: list[str] = []
    for one in found[1:] if source.takes_self else found:
        hint = _resolved(source, _checked(source, one), known, local)
        if _is_session(hint):
            sessions.append(one.name)
        else:
            parameters.append(Parameter(one.name, hint, one.default))
    return Signature(tuple(parameters), tuple(sessions))


def _checked(source: Source, one: inspect.Parameter) -> inspect.Parameter:
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


def _resolved(
    source: Source, one: inspect.Parameter, known: dict[str, Any], local: Mapping[str, Any]
) -> Any:
    holder = types.SimpleNamespace(__annotations__={one.name: one.annotation})
    try:
        return typing.get_type_hints(holder, known, local, include_extras=True)[one.name]
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
