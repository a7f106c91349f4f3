"""The verbs of `rath memory` that change the store."""

from __future__ import annotations

import sqlite3
import sys
from typing import Annotated

import typer

from rath.cli.memory_store import (
    AsJson,
    MemoryName,
    Namespace,
    StoreChoice,
    StorePath,
    as_uri,
    ask,
    existing,
    opened,
)
from rath.cli.terminal import Misuse, Problem, ask_yes_no, note, say, say_json, say_rows
from rath.cli.times import duration
from rath.memory import (
    MemoryForgetResult,
    MemoryOpForget,
    MemoryOpWrite,
    MemoryWriteResult,
)
from rath.memory.adapters.local.catalog import rebuild as rebuild_index
from rath.memory.notes import EXPIRES_AT, note_op

__all__ = ["add", "forget", "rebuild"]


def add(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The note; - reads it from stdin.")],
    category: Annotated[
        str, typer.Option("--category", "-c", help="Directory of the note within its scope.")
    ] = "preferences",
    scope: Annotated[str, typer.Option("--scope", help="user, agent, session or resources.")] = (
        "user"
    ),
    uri: Annotated[
        str | None, typer.Option("--uri", help="The very place; what stands there is replaced.")
    ] = None,
    ttl: Annotated[
        str | None, typer.Option("--ttl", help="Forget it after this time: 90s, 15m, 12h, 30d, 2w.")
    ] = None,
    memory: MemoryName = "local",
    path: StorePath = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Remember a note; the same words in the same category are one note."""
    content = _stdin() if text == "-" else text
    if not content.strip():
        raise Misuse("the note is empty; expected some text")
    kept = None if ttl is None else duration("--ttl", ttl)
    try:
        op = note_op(content, scope=scope, category=category, wait=True, ttl=kept)
    except ValueError as exc:
        raise Misuse(f"--ttl {ttl!r} cannot be: {exc}") from exc
    if uri is not None:
        # Not as a note that another one at its place makes step aside.
        ends = {key: value for key, value in (op.metadata or {}).items() if key == EXPIRES_AT}
        op = MemoryOpWrite(as_uri(uri), content, wait=True, metadata=ends)
    with opened(StoreChoice(memory, path, namespace), to_write=True) as store:
        written = ask(store, op, MemoryWriteResult)
    if as_json:
        say_json({"uri": written.uri, "bytes": written.bytes_written})
    else:
        say(written.uri)


def forget(
    uris: Annotated[
        list[str] | None, typer.Argument(metavar="[URI]...", help="Notes or directories.")
    ] = None,
    session: Annotated[
        str | None, typer.Option("--session", help="Erase all that came from this session alone.")
    ] = None,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Directories with all below them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    memory: MemoryName = "local",
    path: StorePath = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Remove notes, or all that came from a session, so that nothing of them is left."""
    if bool(uris) == (session is not None):
        raise Misuse("expected either URIs or --session ID")
    wide = recursive or session is not None
    if wide and not yes and not ask_yes_no("This cannot be undone. Forget it?"):
        raise typer.Exit(1)
    ops = [MemoryOpForget(as_uri(each), recursive=recursive) for each in uris or ()]
    if session is not None:
        ops = [MemoryOpForget(session_id=session)]
    with opened(StoreChoice(memory, path, namespace)) as store:
        gone: list[str] = []
        try:
            for op in ops:
                gone += ask(store, op, MemoryForgetResult).uris
        except Problem as exc:
            said = str(exc).replace("recursive=True", "--recursive")
            before = f"; already forgotten: {', '.join(gone)}" if gone else ""
            raise Problem(f"{said}{before}") from None
    if as_json:
        say_json({"forgotten": gone})
    elif gone:
        say_rows([[each] for each in gone], [""])
    else:
        note(f"nothing came from session {session}")


def rebuild(path: StorePath = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Build the index of a local store again from its files, and tell what was wrong in it."""
    directory = existing(StoreChoice("local", path, namespace))
    try:
        report = rebuild_index(directory)
    except sqlite3.Error as exc:
        raise Problem(
            f"the index in {directory} cannot be built again: {exc}; if another program uses the "
            "store, try again when that is done"
        ) from exc
    if as_json:
        say_json({"files": report.n_files, "wrong": report.n_wrong})
    else:
        say(f"{report.n_files} files indexed, {report.n_wrong} entries had been wrong")


def _stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as exc:
        raise Misuse(f"what came on stdin is no text: {exc}") from exc
