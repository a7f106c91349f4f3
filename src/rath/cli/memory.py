"""`rath memory`: notes, seen and changed."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

import typer

import rath.memory
from rath import config
from rath._core.dataclasses import dataclass
from rath.cli.lists import Limit, TextFilter, page_of, say_page
from rath.cli.render import busy, count_of, one_line, say_table
from rath.cli.terminal import (
    AsJson,
    CommandError,
    IsAgreed,
    Misuse,
    ask_yes_no,
    duration,
    note,
    say,
    say_json,
)
from rath.memory.adapters.local.catalog import rebuild as rebuild_index
from rath.memory.adapters.local.catalog import shared_catalog
from rath.memory.adapters.local.layout import META_NAME, project_root, store_id
from rath.memory.notes import EXPIRES_AT, note_op
from rath.memory.persistence import local_store_dir
from rath.memory.uri import MEMORY_SCOPES, MEMORY_URI_PREFIX, is_memory_uri

R = TypeVar("R")

MemoryName = Annotated[
    str, typer.Option("--memory", "-m", help="A memory of the config, or the name of a backend.")
]
StorePath = Annotated[
    Path | None, typer.Option("--path", help="Directory of a local store that is elsewhere.")
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", help="A namespace of the project's store.")
]


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
    """Add a note; the same words in the same category are one note."""
    try:
        content = sys.stdin.read() if text == "-" else text
    except UnicodeDecodeError as exc:
        raise Misuse(f"what came on stdin is no text: {exc}") from exc
    if not content.strip():
        raise Misuse("the note is empty; expected some text")
    seconds = None if ttl is None else duration("--ttl", ttl).total_seconds()
    try:
        op = note_op(content, scope=scope, category=category, wait=True, ttl=seconds)
    except ValueError as exc:
        raise Misuse(f"--ttl {ttl!r} cannot be: {exc}") from exc
    if uri is not None:
        # Not as a note that another one at its place makes step aside.
        ends = {key: value for key, value in (op.metadata or {}).items() if key == EXPIRES_AT}
        op = rath.memory.MemoryOpWrite(_full_uri(uri), content, wait=True, metadata=ends)
    with _StoreChoice(memory, path, namespace).open_store(to_write=True) as store:
        result = _ask(store, op, rath.memory.MemoryWriteResult)
    if as_json:
        say_json({"uri": result.uri, "bytes": result.bytes_written})
    else:
        say(result.uri)


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
    yes: IsAgreed = False,
    memory: MemoryName = "local",
    path: StorePath = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Erase notes, or all that came from a session, without a trace."""
    if bool(uris) == (session is not None):
        raise Misuse("expected either URIs or --session ID")
    is_wide = recursive or session is not None
    if is_wide and not yes and not ask_yes_no("This cannot be undone. Forget it?"):
        raise typer.Exit(1)
    forget_op = rath.memory.MemoryOpForget
    ops = [forget_op(_full_uri(each), recursive=recursive) for each in uris or ()]
    if session is not None:
        ops = [forget_op(session_id=session)]
    removed: list[str] = []
    with _StoreChoice(memory, path, namespace).open_store() as store:
        try:
            for op in ops:
                removed += _ask(store, op, rath.memory.MemoryForgetResult).uris
        except CommandError as exc:
            before = f"; already forgotten: {', '.join(removed)}" if removed else ""
            text = str(exc).replace("recursive=True", "--recursive")
            raise CommandError(f"{text}{before}") from None
    if as_json:
        say_json({"forgotten": removed})
    elif removed:
        say_table([[each] for each in removed], [""])
    else:
        note(f"nothing came from session {session}")


def rebuild(path: StorePath = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Rebuild the index of a local store from its files."""
    directory = _StoreChoice("local", path, namespace).local_directory()
    try:
        with busy("reading the files of the memory"):
            report = rebuild_index(directory)
    except sqlite3.Error as exc:
        raise CommandError(
            f"the index in {directory} cannot be built again: {exc}; if another program uses the "
            "store, try again when that is done"
        ) from exc
    if as_json:
        say_json({"files": report.n_files, "wrong": report.n_wrong})
    else:
        say(f"{count_of(report.n_files, 'file')} indexed, {report.n_wrong} entries had been wrong")


def list_notes(
    uri: Annotated[str | None, typer.Argument(metavar="[URI]", help="Where to look.")] = None,
    depth: Annotated[
        int, typer.Option("--depth", min=0, help="How many levels below; 0 is one listing.")
    ] = 3,
    filter_text: TextFilter = None,
    limit: Limit = 1000,
    memory: MemoryName = "local",
    path: StorePath = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """List notes and directories: the whole store, or below a URI."""
    ops = [
        rath.memory.MemoryOpTree(_full_uri(top), depth) for top in ([uri] if uri else MEMORY_SCOPES)
    ]
    with _StoreChoice(memory, path, namespace).open_store() as store:
        entries = [
            entry for op in ops for entry in _ask(store, op, rath.memory.MemoryListResult).entries
        ]
        name = store.handle

    def show(shown: Sequence[rath.memory.MemoryEntry]) -> None:
        say_table(
            [
                [f"{entry.uri}/" if entry.is_dir else entry.uri,
                 "" if entry.size is None else f"{entry.size} B"]
                for entry in shown
            ],
            ["", "dim"],
        )  # fmt: skip
        note(f"{count_of(sum(not each.is_dir for each in shown), 'file')} in {name}")

    say_page(
        page_of(entries, "entry", text=filter_text, limit=limit),
        "entries",
        show,
        as_json=as_json,
        empty=f"nothing in {name} fits" if filter_text else f"0 files in {name}",
        facts={"store": name},
    )


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
    """Search notes as an agent does, the closest first, with scores."""
    op = rath.memory.MemoryOpFind(" ".join(query), _full_uri(inside) if inside else None, top_k)
    choice = _StoreChoice(memory, path, namespace)
    with choice.open_store() as store:
        choice.wait_for_index()
        hits = _ask(store, op, rath.memory.MemoryFindResult).hits
    if as_json:
        say_json({"query": op.query, "hits": hits})
    elif hits:
        rows = [[f"{hit.score:.3g}", hit.uri, one_line(hit.snippet or "")] for hit in hits]
        say_table(rows, ["dim", "bold", ""])
    else:
        note(f"nothing in the memory fits {op.query!r}")


def show_note(
    uri: Annotated[str, typer.Argument(metavar="URI", help="As `ls` and `find` show.")],
    memory: MemoryName = "local",
    path: StorePath = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Show a note with its sources and its expiry."""
    # A note in another encoding is shown as far as that goes, as `find` shows it.
    op = rath.memory.MemoryOpRead(_full_uri(uri), encoding=None)
    with _StoreChoice(memory, path, namespace).open_store() as store:
        read = _ask(store, op, rath.memory.MemoryReadResult)
    text = read.data if isinstance(read.data, str) else read.data.decode(errors="replace")
    if as_json:
        facts = {"uri": read.uri, "text": text, "sources": read.sources}
        say_json({**facts, "expires_at": read.expires_at})
        return
    say(text.removesuffix("\n"))
    for source in read.sources:
        rows = f", rows {', '.join(map(str, source.rows))}" if source.rows else ""
        author = f", written by {source.model}" if source.model else ""
        note(f"from session {source.session_id}{rows}{author}")
    if read.expires_at is not None:
        try:
            end = datetime.fromtimestamp(read.expires_at, UTC).isoformat(" ", "seconds")
        except (OverflowError, ValueError, OSError):
            # A file that was edited by hand may name any time.
            end = f"{read.expires_at:.0f} s after 1970"
        note(f"expires at {end}")


@dataclass(frozen=True, slots=True)
class _StoreChoice:
    """The store that the options of a verb name.

    Raises:
        Misuse: Two of them name different stores.
    """

    name: str
    path: Path | None
    namespace: str | None

    def __post_init__(self) -> None:
        if self.path is not None and (self.namespace is not None or self.name != "local"):
            raise Misuse("--path names a store by itself; leave --memory and --namespace out")

    def _is_configured(self) -> bool:
        layers = config.config_layers()
        return self.path is None and any(
            self.name in layer.config.memory.providers for layer in layers
        )

    def _backend(self) -> str:
        if self._is_configured():
            return config.find_memory_provider(self.name).entry.backend_kind
        return self.name

    def _spec(self) -> rath.memory.MemoryStoreSpec:
        """Return the spec of the store, as an agent with `memory=name` opens it."""
        spec = rath.memory.MemoryStoreSpec
        if self.path is not None:
            return spec(options={"path": str(self.path)})
        if self._is_configured():
            return spec.from_config(self.name, namespace=self.namespace)
        return spec(namespace=self.namespace)

    def _directory(self) -> Path | None:
        """Return where a local store is or would be, None for a store of another backend."""
        if self._backend() != "local":
            return None
        path = (self._spec().options or {}).get("path")
        if path is not None:
            return Path(str(path)).expanduser().resolve()
        return local_store_dir(store_id(project_root(Path.cwd()), self.namespace))

    @contextmanager
    def open_store(self, *, to_write: bool = False) -> Generator[rath.memory.MemoryStore]:
        """Open the store, and close it again.

        Args:
            to_write: Make a local store that is not there yet.

        Raises:
            CommandError: There is no such store yet, and nothing is to be written.
        """
        if not to_write and self._directory() is not None:
            self.local_directory()
        backend = rath.memory.get(self._backend())
        store = backend.open(self._spec())
        try:
            yield store
        finally:
            backend.close(store)

    def wait_for_index(self) -> None:
        """Wait until the index of an open local store has all that was changed by hand.

        In a large store that is seen in the background, for which a command ends too early.
        """
        directory = self._directory()
        if directory is None:
            return
        catalog = shared_catalog(directory.resolve())
        try:
            # An index that cannot be used is told by the operation that needs it.
            with suppress(sqlite3.Error):
                catalog.catch_up()
                catalog.wait_for_walk()
        finally:
            catalog.close()

    def local_directory(self) -> Path:
        """Return the directory of a local store.

        Raises:
            CommandError: There is no such store yet.
            Misuse: It is a store of another backend.
        """
        directory = self._directory()
        if directory is None:
            raise Misuse(f"{self.name!r} is no local store; this is for one")
        # Opening any other directory would make a store of it.
        if not any((directory / name).exists() for name in (META_NAME, *MEMORY_SCOPES)):
            raise CommandError(
                f"nothing is remembered here yet: there is no store {directory}; the first note "
                "makes it: rath memory add TEXT"
            )
        return directory


def _ask(store: rath.memory.MemoryStore, op: rath.memory.MemoryOp, kind: type[R]) -> R:
    """Return the result of an operation.

    Raises:
        CommandError: It failed.
    """
    result = store.dispatch(op)
    if isinstance(result, kind):
        return result
    if isinstance(result, rath.memory.MemoryExecutionFailure):
        raise CommandError(f"{result.message} ({result.kind})")
    raise CommandError(
        f"the memory answered with {type(result).__name__}; expected {kind.__name__}"
    )


def _full_uri(text: str) -> str:
    """Return a URI of the command line, which may leave the scheme out: "user/memories/x"."""
    return text if is_memory_uri(text) else MEMORY_URI_PREFIX + text.strip("/")
