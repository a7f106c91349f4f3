"""The files of a whole workspace: looked at, read, and put into a new sandbox."""

from __future__ import annotations

import os
import posixpath
import shlex
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rath.backend.changes import EffectPolicy, Manifest
from rath.backend.opensandbox.contents import Contents
from rath.backend.opensandbox.defaults import ROOT
from rath.backend.opensandbox.faults import Broken, Refused
from rath.backend.opensandbox.looking import LOOK_SECONDS, CannotLook, look
from rath.backend.opensandbox.paths import OutsideWorkspace, inside
from rath.backend.opensandbox.processes import Line, run_line
from rath.backend.snapshots import NewFile
from rath.errors import BackendError

if TYPE_CHECKING:
    from rath.backend.opensandbox.client import Client

_BATCH = 200
"""How many paths are named in one command line; a guess well below what the kernel takes."""

_TAKE_AWAY = (
    'for each; do if [ -d "$each" ] && [ ! -L "$each" ]; then rmdir -- "$each"; '
    'else rm -f -- "$each"; fi || exit 1; done'
)


async def read_manifest(client: Client) -> Manifest:
    """Return what the workspace holds, without ignored directories.

    Raises:
        BackendError: A file cannot be read, or there are too many.
        RemoteFault: The sandbox cannot be asked.
    """
    policy = EffectPolicy(keep_contents=False)
    try:
        found = await look(client, policy, known={}, contents=Contents())
    except CannotLook as exc:
        raise BackendError(f"the files of a workspace cannot be told apart: {exc}") from exc
    manifest = found.manifest()
    if manifest is None:
        unread = [path for path, seen in found.files.items() if seen.state is None]
        where = ", ".join(unread[:3]) or "it has too many files"
        raise BackendError(
            f"the files of a workspace cannot be told apart: not all can be looked at ({where}); "
            "make them readable, or remove them"
        )
    return manifest


async def read_content(path: str, client: Client) -> bytes:
    """Return the content of a file, the target of a link.

    Raises:
        FileNotFoundError: There is no such file.
        RemoteFault: The sandbox cannot be asked.
    """
    missing = FileNotFoundError(f"there is no file {path!r} in the frozen workspace")
    try:
        where = inside(path.lstrip("/"))
        (entry,) = await client.info([where])
        if entry.kind == "symlink":
            return await _ran(client, f"readlink -n -- {shlex.quote(where)}")
        if entry.kind != "file":
            raise missing
        return await client.read(where) if entry.size else b""
    except OutsideWorkspace as exc:
        raise missing from exc
    except Refused as exc:
        if exc.is_missing_file:
            raise missing from exc
        raise


async def apply_changes(client: Client, changes: Mapping[str, NewFile | None]) -> None:
    """Put new files into the workspace of a sandbox that nobody uses yet, and take others out.

    Raises:
        RemoteFault: One of them cannot be written.
    """
    try:
        wheres = {path: inside(path.lstrip("/")) for path in changes}
    except OutsideWorkspace as exc:
        raise Broken(str(exc)) from exc
    new = {wheres[path]: each for path, each in sorted(changes.items()) if each is not None}
    # What goes, goes first: a file may take the place of a directory that becomes empty.
    await _take_away(client, sorted(wheres[path] for path, each in changes.items() if each is None))
    await _take_away(client, list(new))
    for where, each in new.items():
        if stat.S_ISLNK(each.mode):
            await _link(client, where, os.fsdecode(each.data))
        else:
            await client.write(where, each.data, stat.S_IMODE(each.mode))


async def _take_away(client: Client, paths: Sequence[str]) -> None:
    for some in _batches(paths):
        await _ran(client, f"set -- {shlex.join(some)}\n{_TAKE_AWAY}")


async def _link(client: Client, where: str, target: str) -> None:
    await client.make_directory(posixpath.dirname(where))
    await _ran(client, f"ln -s -- {shlex.quote(target)} {shlex.quote(where)}")


def _batches(paths: Sequence[str]) -> Iterable[Sequence[str]]:
    return (paths[at : at + _BATCH] for at in range(0, len(paths), _BATCH))


async def _ran(client: Client, text: str) -> bytes:
    """Return what a command line prints that must not fail."""
    ran = await run_line(client, Line(text, LOOK_SECONDS, ROOT))
    code = ran.answer.exit_code if ran.answer is not None else None
    if code != 0 or ran.lost is not None:
        said = ran.lost or ran.stderr.decode(errors="replace").strip()[:200] or f"exit code {code}"
        raise Broken(f"a file of the workspace could not be read or written: {said}")
    return ran.stdout
