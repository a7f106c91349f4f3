"""`rath memory`: see and change what is remembered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from rath.cli import memory_write
from rath.cli.memory_store import (
    AsJson,
    MemoryName,
    Namespace,
    StoreChoice,
    StorePath,
    as_uri,
    ask,
    opened,
    see_changes,
)
from rath.cli.terminal import note, say, say_json, say_rows, show_help
from rath.memory import (
    MemoryEntry,
    MemoryFindResult,
    MemoryListResult,
    MemoryOpFind,
    MemoryOpRead,
    MemoryOpTree,
    MemoryReadResult,
    MemoryStore,
)
from rath.memory.uri import MEMORY_SCOPES, MEMORY_URI_PREFIX

__all__ = ["app"]

_DEFAULT_DEPTH = 3

app = typer.Typer(add_completion=False)
app.callback(invoke_without_command=True, help="See and change what is remembered.")(show_help)
app.command("add")(memory_write.add)
app.command("forget")(memory_write.forget)
app.command("rebuild")(memory_write.rebuild)


@app.command("ls")
def list_notes(
    uri: Annotated[str | None, typer.Argument(metavar="[URI]", help="Where to look.")] = None,
    depth: Annotated[
        int, typer.Option("--depth", min=0, help="How many levels below; 0 is one listing.")
    ] = _DEFAULT_DEPTH,
    memory: MemoryName = "local",
    path: StorePath = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """List notes and directories: the whole store, or what is below a URI."""
    with opened(StoreChoice(memory, path, namespace)) as store:
        tops = [f"{MEMORY_URI_PREFIX}{scope}" for scope in MEMORY_SCOPES]
        entries = list(_entries(store, [as_uri(uri)] if uri else tops, depth))
        name = store.handle
    if as_json:
        say_json({"store": name, "entries": [asdict(entry) for entry in entries]})
        return
    if entries:
        say_rows([_row(entry) for entry in entries], ["", "dim"])
    note(f"{sum(not entry.is_dir for entry in entries)} files in {name}")


@app.command("find")
def find_notes(
    query: Annotated[list[str], typer.Argument(metavar="QUERY...", help="What to look for.")],
    inside: Annotated[
        str | None, typer.Option("--in", metavar="URI", help="Where to look.")
    ] = None,
    top_k: Annotated[int, typer.Option("--top", "-k", min=1, help="How many hits at most.")] = 8,
    memory: MemoryName = "local",
    path: StorePath = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Find the notes that an agent would be reminded of, the closest first, with their scores."""
    op = MemoryOpFind(" ".join(query), as_uri(inside) if inside else None, top_k)
    choice = StoreChoice(memory, path, namespace)
    with opened(choice) as store:
        see_changes(choice)
        hits = ask(store, op, MemoryFindResult).hits
    if as_json:
        say_json({"query": op.query, "hits": [asdict(hit) for hit in hits]})
    elif hits:
        say_rows(
            [[f"{hit.score:.3g}", hit.uri, _line(hit.snippet or "")] for hit in hits],
            ["dim", "bold", ""],
        )
    else:
        note(f"nothing in the memory fits {op.query!r}")


@app.command("show")
def show_note(
    uri: Annotated[str, typer.Argument(metavar="URI", help="As `ls` and `find` show.")],
    memory: MemoryName = "local",
    path: StorePath = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Show a note, and beside it where it comes from and when it expires."""
    with opened(StoreChoice(memory, path, namespace)) as store:
        # A note in another encoding is shown as far as that goes, as `find` shows it.
        read = ask(store, MemoryOpRead(as_uri(uri), encoding=None), MemoryReadResult)
    text = read.data if isinstance(read.data, str) else read.data.decode(errors="replace")
    if as_json:
        sources = [asdict(source) for source in read.sources]
        say_json({"uri": read.uri, "text": text, "sources": sources, "expires_at": read.expires_at})
        return
    say(text.removesuffix("\n"))
    for source in read.sources:
        rows = f", rows {', '.join(map(str, source.rows))}" if source.rows else ""
        author = f", written by {source.model}" if source.model else ""
        note(f"from session {source.session_id}{rows}{author}")
    if read.expires_at is not None:
        note(f"expires at {_moment(read.expires_at)}")


def _entries(store: MemoryStore, tops: list[str], depth: int) -> Iterator[MemoryEntry]:
    for top in tops:
        yield from ask(store, MemoryOpTree(top, depth), MemoryListResult).entries


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} s after 1970"  # a file that was edited by hand may name any time


def _row(entry: MemoryEntry) -> list[str]:
    size = "" if entry.size is None else f"{entry.size} B"
    return [f"{entry.uri}/" if entry.is_dir else entry.uri, size]


def _line(text: str) -> str:
    """Return a text on one line, for a table."""
    return " ".join(text.split())
