"""Digests and texts of each server's tools at their first use: `mcp_pins.json`."""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from rath._core.dataclasses import dataclass
from rath._core.text import one_line_preview, valid_unicode
from rath.config.paths import own_config_dir
from rath.config.records import change_file, read_file
from rath.errors import ConfigError
from rath.mcp.spec import ServerSpec, StdioServer, server_name
from rath.mcp.tools import input_schema

__all__ = [
    "MAX_KEPT_CHARS",
    "PINS_FILENAME",
    "PinDifferences",
    "accept_pins",
    "pin_differences",
    "pin_tools",
    "said_of",
    "tool_digest",
]

PINS_FILENAME = "mcp_pins.json"

MAX_SERVERS = 1000
"""How many servers are remembered; the one that was pinned first is forgotten first. A guess."""

MAX_KEPT_CHARS = 4000
"""How much of what a tool says of itself is kept, to show what has changed in it. A guess."""

MAX_KEPT_OF_SERVER = 1_000_000
"""The same for all tools of a server together; of more than that the digests alone are kept."""

MAX_TOOLS_OF_SERVER = 20_000
"""How many tools of a server are remembered, with those that it does not list any more. A guess."""

_log = logging.getLogger("rath.mcp")


@dataclass(frozen=True, slots=True)
class PinDifferences:
    """Differences between the tools of a server and those that were pinned."""

    changed: tuple[str, ...] = ()
    """Tools whose description or arguments are others now."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    is_new: bool = False
    """Whether nothing of the server was pinned before."""

    before: Mapping[str, str] = field(default_factory=dict[str, str])
    """Text of each changed tool when it was pinned, as `said_of`, as far as it is stored."""


def tool_digest(tool: object) -> str:
    """Return the sha256 over name, description and arguments of a tool, in hex."""
    identity = [
        getattr(tool, "name", None),
        getattr(tool, "description", None),
        input_schema(tool),
    ]
    return sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()


def said_of(tool: object) -> str:
    """Return what a tool says of itself, in lines: its description, and its arguments as JSON.

    Not more than the first `MAX_KEPT_CHARS` characters.
    """
    arguments = json.dumps(input_schema(tool), sort_keys=True, indent=2, default=str)
    return valid_unicode(f"{getattr(tool, 'description', None) or ''}\n{arguments}")[
        :MAX_KEPT_CHARS
    ]


def pin_differences(
    spec: ServerSpec, tools: Sequence[object], *, project: str | None = None
) -> PinDifferences:
    """Return how the tools of a server differ from what is pinned; changes nothing.

    Args:
        spec: The server. It is the same one if all is equal that decides which program answers:
            the command with its arguments, its variables and the directory where it starts; or
            the address. `${NAME}` counts as it stands, so that a new token changes nothing.
        tools: What it lists now.
        project: Directory of the project's config that names the server; None for any other.

    Raises:
        ConfigError: The file cannot be read.
    """
    stored = read_file(_path()).get("servers", {}).get(_identity(spec, project))
    return _differences(stored, _digests(tools))


def pin_tools(
    spec: ServerSpec, tools: Sequence[object], *, project: str | None = None
) -> PinDifferences:
    """Pin the tools that were not seen before, and warn of those that have changed.

    What has changed stays pinned as it was until `accept_pins` is called. A home that cannot be
    read or written keeps nobody from using a server: that is logged, and nothing is pinned.
    The arguments are those of `pin_differences`.
    """
    digests = _digests(tools)
    try:
        identity = _identity(spec, project)
        stored = read_file(_path()).get("servers", {}).get(identity)
        found = _differences(stored, digests)
        if found.is_new or found.added:
            _write(spec, tools, identity=identity, keep=True)
    except (OSError, ConfigError) as exc:
        _log.warning("the tools of an MCP server could not be pinned: %s", exc)
        return PinDifferences(is_new=True)
    if found.changed:
        _log.warning(
            "MCP server %s: what it says of these tools has changed since they were first used: "
            "%s. Look at them (rath mcp ls), then accept them (rath mcp trust NAME, or "
            "rath.mcp.pins.accept_pins)",
            server_name(spec),
            ", ".join(one_line_preview(name, 64) for name in found.changed[:20]),
        )
    return found


def accept_pins(spec: ServerSpec, tools: Sequence[object], *, project: str | None = None) -> None:
    """Pin the tools of a server as they are now, and forget what was pinned before.

    The arguments are those of `pin_differences`.

    Raises:
        ConfigError: The file cannot be read or changed.
        OSError: It cannot be written.
    """
    _write(spec, tools, identity=_identity(spec, project), keep=False)


def _write(spec: ServerSpec, tools: Sequence[object], *, identity: str, keep: bool) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    digests, texts = _digests(tools), {_name(tool): said_of(tool) for tool in tools}

    def change(payload: dict[str, Any]) -> None:
        servers = payload.setdefault("servers", {})
        before = servers.pop(identity, {})
        stored: Mapping[str, Any] = before if keep else {}
        pinned: dict[str, str] = {**digests, **stored.get("tools", {})}
        if len(pinned) > MAX_TOOLS_OF_SERVER:
            pinned = {name: pinned[name] for name in digests}
        # What a pinned tool says now may be something else.
        added = {name: text for name, text in texts.items() if name not in stored.get("tools", {})}
        servers[identity] = {
            "server": server_name(spec),
            "first": before.get("first", now),
            "tools": pinned,
            "said": _bounded({**stored.get("said", {}), **added}),
        }
        for oldest in list(servers)[:-MAX_SERVERS]:
            del servers[oldest]

    change_file(_path(), change)


def _differences(stored: Mapping[str, Any] | None, digests: Mapping[str, str]) -> PinDifferences:
    pinned: Mapping[str, str] = {} if stored is None else stored.get("tools", {})
    texts: Mapping[str, str] = {} if stored is None else stored.get("said", {})
    changed = [name for name, digest in digests.items() if pinned.get(name, digest) != digest]
    return PinDifferences(
        changed=tuple(changed),
        added=tuple(name for name in digests if name not in pinned),
        removed=tuple(name for name in pinned if name not in digests),
        is_new=stored is None,
        before={name: texts[name] for name in changed if name in texts},
    )


def _digests(tools: Sequence[object]) -> dict[str, str]:
    return {_name(tool): tool_digest(tool) for tool in tools}


def _bounded(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the first tools, as far as there is room."""
    room = itertools.accumulate(map(len, texts.values()))
    return {
        name: text
        for (name, text), n_chars in zip(texts.items(), room, strict=True)
        if n_chars <= MAX_KEPT_OF_SERVER
    }


def _name(tool: object) -> str:
    return str(getattr(tool, "name", ""))


def _identity(spec: ServerSpec, project: str | None) -> str:
    """Return by what a server is known again; a digest, since all of it may hold a key."""
    if isinstance(spec, StdioServer):
        # Programs are also looked for where they start: a relative path, packages of a project.
        where = os.path.realpath(spec.cwd or os.curdir)
        server: list[object] = ["stdio", spec.command, *spec.args, where, dict(spec.env)]
    else:
        server = ["url", spec.url]
    content = json.dumps([server, project], sort_keys=True)
    return sha256(content.encode(errors="replace")).hexdigest()[:32]


def _path() -> Path:
    return own_config_dir() / PINS_FILENAME
