"""Where a path of a sandbox leads once its links are followed."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rath.backend.opensandbox.answers import Entry
from rath.backend.opensandbox.defaults import CLEANUP_SECONDS, ROOT
from rath.backend.opensandbox.faults import Refused
from rath.backend.opensandbox.processes import Line, run_line

if TYPE_CHECKING:
    from rath.backend.opensandbox.client import Client


async def resolved(client: Client, path: str) -> str | None:
    """Return the path with links followed, None where that cannot be told.

    The file need not be there. One request where no link is in the way and the file is there.

    Args:
        client: Of the sandbox.
        path: Absolute, without `..`.

    Raises:
        RemoteFault: The sandbox cannot be asked.
    """
    parts = _parts(path)
    while parts:
        found = await _found(client, parts)
        if found is None:
            parts = parts[:-1]
            continue
        if all(each.kind != "symlink" for each in found):
            break
        there = await _followed(client, parts[-1])
        return None if there is None else posixpath.normpath(there + path[len(parts[-1]) :])
    return path


def _parts(path: str) -> Sequence[str]:
    """Return the path and those above it, the shortest first; not the workspace and above."""
    parts = [path]
    while parts[0] not in ("/", ROOT):
        parts.insert(0, posixpath.dirname(parts[0]))
    return parts[1:]


async def _found(client: Client, paths: Sequence[str]) -> Sequence[Entry] | None:
    try:
        return await client.info(paths)
    except Refused as exc:
        if exc.is_missing_file:
            return None
        raise


async def _followed(client: Client, path: str) -> str | None:
    ran = await run_line(client, Line(f"readlink -fn -- {shlex.quote(path)}", CLEANUP_SECONDS, "/"))
    code = None if ran.answer is None else ran.answer.exit_code
    try:
        there = ran.stdout.decode()
    except UnicodeDecodeError:
        return None
    return there if code == 0 and there.startswith("/") else None
