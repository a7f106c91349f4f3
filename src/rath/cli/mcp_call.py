"""`rath mcp call`: one call of a tool of a server."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from rath._core.text import did_you_mean
from rath.cli.mcp_servers import AsJson, ServerName, server_named
from rath.cli.terminal import Misuse, complain, say, say_json
from rath.llm.image import Image
from rath.mcp.tools import decode_result, error_text, input_schema

if TYPE_CHECKING:
    from mcp_types import CallToolResult, Tool

__all__ = ["call_tool"]

_MAX_LISTED = 50

_LITERALS = frozenset({"boolean", "integer", "number", "array", "object", "null"})


def call_tool(
    name: ServerName,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="As `rath mcp ls NAME` shows.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JSON | KEY=VALUE...]",
            help="The arguments: one JSON object, or values by name.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0.001, help="Seconds that the call may take.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Call a tool of a server, and show what it answers.

    A value is text where the schema of the tool wants text, else JSON. The exit status is 1 where
    the tool reports an error.
    """
    server = server_named(name)
    # A word that cannot be understood is a misuse, whatever the server says.
    words = _by_name(arguments or [])
    with server.client() as client:
        known = {each.name: each for each in client.list_tools()}
        if tool not in known:
            raise Misuse(
                f"MCP server {name!r} has no tool {tool!r}.{did_you_mean(tool, known)} "
                f"Known: {_listed(known)}"
            )
        given = words if isinstance(words, dict) else _typed(words, known[tool])
        result = client.call_tool(tool, given, timeout=timeout)
    failure = error_text(result)
    if as_json:
        say_json(result.model_dump(mode="json", exclude_none=True))
    elif failure is not None:
        complain(failure)
    else:
        _tell(result)
    if failure is not None:
        raise typer.Exit(1)


def _listed(names: Collection[str]) -> str:
    """Return the first names; a server may have thousands."""
    shown = ", ".join(islice(names, _MAX_LISTED)) or "none"
    n_more = len(names) - _MAX_LISTED
    return f"{shown} and {n_more} more" if n_more > 0 else shown


def _by_name(words: Sequence[str]) -> dict[str, Any] | list[tuple[str, str]]:
    """Return a JSON object as it is, and words as pairs."""
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            payload: object = json.loads(words[0])
        except ValueError as exc:
            raise Misuse(f"the arguments are no JSON object: {exc}") from None
        return cast("dict[str, Any]", payload)
    pairs = [word.partition("=") for word in words]
    for key, equals, value in pairs:
        if not key or not equals:
            raise Misuse(
                f"{key + equals + value!r} is no argument; expected KEY=VALUE, or one JSON object"
            )
    return [(key, value) for key, _, value in pairs]


def _typed(pairs: Sequence[tuple[str, str]], tool: Tool) -> dict[str, Any]:
    kinds = _table(input_schema(tool).get("properties"))
    return {key: _value(key, value, kinds.get(key)) for key, value in pairs}


def _value(key: str, text: str, schema: object) -> object:
    """Return a value as its schema wants it: JSON, but text where text will do."""
    wanted = _table(schema).get("type")
    if wanted == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        if wanted in _LITERALS:
            raise Misuse(
                f"{key}={text!r} is no JSON; the tool wants {wanted} there, such as {key}=1 or "
                f"{key}='[\"a\"]'"
            ) from None
        return text


def _table(found: object) -> Mapping[str, object]:
    """Return what a server gave as an object of JSON, an empty one where it is none."""
    return cast("Mapping[str, object]", found) if isinstance(found, Mapping) else {}


def _tell(result: CallToolResult) -> None:
    found = decode_result(result)
    table = cast("dict[str, Any]", found) if isinstance(found, dict) else {"structured": found}
    text = table.pop("text", None)
    if isinstance(text, str):
        say(text)
    for part in table.pop("content", ()):
        say(part.label if isinstance(part, Image) else json.dumps(part, ensure_ascii=False))
    rest = table.pop("structured_content", table)
    if rest:
        say(json.dumps(rest, indent=2, ensure_ascii=False, default=str))
