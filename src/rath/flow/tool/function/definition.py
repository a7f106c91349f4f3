"""All that is known of a tool when it is declared."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rath._async.bridge import is_async
from rath.flow.tool.function.arguments import Arguments
from rath.flow.tool.function.docstring import Described
from rath.flow.tool.function.hints import read_signature
from rath.flow.tool.function.options import Options, checked_name
from rath.flow.tool.function.schema import arguments_type
from rath.flow.tool.function.source import Source
from rath.session import Session


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Definition:
    """A tool as it was declared; one may be shared by many objects."""

    name: str
    description: str | None
    arguments: Arguments
    sessions: tuple[str, ...]
    """Parameters that get the session."""

    source: Source
    options: Options
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


def define(source: Source, name: str, described: Described, options: Options) -> Definition:
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
        source=source,
        options=options,
        is_async=is_async(source.target),
    )


def _refuse_generator(source: Source) -> None:
    code: Callable[..., Any] = source.code
    if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        raise source.refuse(
            "it is a generator function, which gives values one by one; expected a function that "
            "returns one result, since a model reads one; return a list"
        )
