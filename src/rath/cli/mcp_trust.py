"""`rath mcp trust`: allow a server that a project names, and what its tools say of themselves."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from difflib import ndiff
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated

import typer

from rath.cli.layout import number
from rath.cli.mcp_servers import ServerName, own_server, pins_of, server_named, target, trust_of
from rath.cli.terminal import Misuse, Problem, ask_yes_no, note, say, visible
from rath.config.secrets import HIDDEN, looks_secret, shown
from rath.mcp.configured import ConfiguredServer
from rath.mcp.pins import (
    MAX_KEPT_CHARS,
    PinDifferences,
    accept_pins,
    said_of,
)
from rath.mcp.redaction import REFERENCE, is_url, redact_address
from rath.mcp.trust import revoke_trust, trust_server

if TYPE_CHECKING:
    from mcp_types import Tool

__all__ = ["entry_lines", "measured", "trust"]

_DIGEST_CHARS = 12
"""Enough to tell two values apart, and too little to find one by it that was well chosen."""

_SCHEMES = frozenset({"Bearer", "Basic", "Token", "bearer", "token"})
"""What stands before a credential in a header, and is none."""


def trust(
    name: ServerName,
    is_agreed: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    is_revoked: Annotated[
        bool, typer.Option("--revoke", help="Trust it no longer; nothing is started.")
    ] = False,
) -> None:
    """Allow a server that a project names, after showing what is started or contacted.

    Where its tools have changed since their first use, what they say now is shown too, and
    accepted with your word. A changed entry in the config asks anew.
    """
    server = server_named(name)
    if is_revoked:
        _revoke(server, is_agreed=is_agreed)
        return
    if own_server(server):
        note(f"{name} stands in your own config {server.store.path}, so it needs no trust")
    else:
        _trust_entry(server, is_agreed=is_agreed)
    _accept_changes(server, is_agreed=is_agreed)


def _revoke(server: ConfiguredServer, *, is_agreed: bool) -> None:
    if is_agreed:
        raise Misuse("--revoke asks nothing, so it goes without --yes")
    if own_server(server):
        raise Misuse(
            f"{server.name} stands in your own config {server.store.path}; take it out with: "
            f"rath config unset mcp.servers.{server.name}"
        )
    was_trusted = revoke_trust(server.name, server.store)
    say(f"{server.name} is {'trusted no longer' if was_trusted else 'not trusted'}")


def _trust_entry(server: ConfiguredServer, *, is_agreed: bool) -> None:
    for line in entry_lines(server):
        say(visible(line, but=""))
    if trust_of(server) == "trusted":
        note("you have trusted this entry before")
        return
    if not is_agreed and not ask_yes_no(f"Trust {server.name}?"):
        raise Problem(f"{server.name} is not trusted; nothing is changed")
    trust_server(server.name, server.store)
    say(f"{server.name} is trusted")


def entry_lines(server: ConfiguredServer) -> Iterator[str]:
    """Say all that an entry does, as it stands there: what was hidden could not be judged."""
    entry = server.entry
    yield f"{server.name}, from the project's config {server.store.path}"
    if entry.url is None:
        # A single word may be many lines long, or end in blanks.
        yield f"  starts        {shlex.join(entry.command or [])}"
        yield f"  in            {entry.cwd or 'the working directory of the program'}"
    else:
        yield f"  contacts      {redact_address(entry.url, hide=measured)}"
    for label, table in (("variable", entry.env), ("header", entry.headers)):
        for key, value in table.items():
            yield f"  {label:<8}      {key}={_value(key, value)}"
    if entry.bearer_env is not None:
        yield f"  is sent       the token in your variable {entry.bearer_env}"
    if entry.oauth is not None:
        yield (
            f"  is sent       a token from {entry.oauth.issuer}, got for {entry.oauth.client_id} "
            f"with the secret in your variable {entry.oauth.secret_env}"
        )
    if entry.trust_annotations:
        yield "  is believed   what it says of the effects of its tools"


def _value(key: str, value: str) -> str:
    """Measure a secret; a reference to a variable of the user is none, and tells what is sent."""
    if is_url(value):
        return redact_address(value, hide=measured)
    if not looks_secret(key):
        return str(shown(key, value))
    told, end = "", 0
    for found in REFERENCE.finditer(value):
        told += _literal(value[end : found.start()]) + found[0]
        end = found.end()
    return told + _literal(value[end:])


def _literal(text: str) -> str:
    """Tell what stands beside references: the name of a scheme, or what may be a secret."""
    return text if not text or text.strip() in _SCHEMES else measured(text)


def measured(secret: str) -> str:
    """Tell a secret by its length and the beginning of its digest, so that it can be compared."""
    digest = sha256(secret.encode(errors="replace")).hexdigest()[:_DIGEST_CHARS]
    return f"{HIDDEN}({number(len(secret), 'character')}, sha256 {digest})"


def _accept_changes(server: ConfiguredServer, *, is_agreed: bool) -> None:
    if pins_of(server, ()).is_new:
        return  # its tools were not used yet: there is nothing that could have changed
    note(f"asking {target(server)} for its tools")
    with server.client() as client:
        tools = client.list_tools()
    found = pins_of(server, tools)
    if not (found.changed or found.added or found.removed):
        say("its tools are as they were at their first use")
        return
    for line in _change_lines(tools, found):
        say(visible(line, but=""))
    n_changes = number(len(found.changed) + len(found.added) + len(found.removed), "change")
    if not is_agreed and not ask_yes_no(f"Accept {n_changes}?"):
        raise Problem(f"the tools of {server.name} stay pinned as they were")
    accept_pins(server.spec, tools, project=server.project)
    say(f"{n_changes} accepted")


def _change_lines(tools: list[Tool], found: PinDifferences) -> Iterator[str]:
    """Tell how what tools say of themselves has changed: data, not to be followed."""
    for tool in tools:
        mark = "changed" if tool.name in found.changed else "new"
        if mark == "new" and tool.name not in found.added:
            continue
        yield f"{mark}: {tool.name}"
        now, before = said_of(tool).splitlines(), found.before.get(tool.name)
        if before is None:
            yield from (f"  | {line}" for line in now)
            continue
        compared = list(ndiff(before.splitlines(), now))
        yield from (f"  {line}" for line in compared if not line.startswith("?"))
        if not any(line.startswith(("+", "-")) for line in compared):
            yield f"  it differs after the first {MAX_KEPT_CHARS} characters"
    for name in found.removed:
        yield f"gone: {name}"
