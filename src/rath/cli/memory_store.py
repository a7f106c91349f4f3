"""Which memory store the verbs of `rath memory` work on, and how they ask it."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer

import rath.memory
from rath import config
from rath.cli.terminal import Misuse, Problem
from rath.memory import MemoryExecutionFailure, MemoryOp, MemoryStore, MemoryStoreSpec
from rath.memory.adapters.local.catalog import shared_catalog
from rath.memory.adapters.local.layout import META_NAME, project_root, store_id
from rath.memory.persistence import local_store_dir
from rath.memory.uri import MEMORY_SCOPES, MEMORY_URI_PREFIX, is_memory_uri

__all__ = [
    "AsJson",
    "MemoryName",
    "Namespace",
    "StoreChoice",
    "StorePath",
    "as_uri",
    "ask",
    "existing",
    "opened",
    "see_changes",
]

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
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """What the options of a verb say about the store.

    Raises:
        Misuse: Two of them name different stores.
    """

    name: str
    path: Path | None
    namespace: str | None

    def __post_init__(self) -> None:
        if self.path is not None and (self.namespace is not None or self.name != "local"):
            raise Misuse("--path names a store by itself; leave --memory and --namespace out")

    def backend(self) -> str:
        """Return the name of the backend."""
        if self.path is None and self._is_configured():
            return config.find_memory_provider(self.name).entry.backend_kind
        return self.name

    def spec(self) -> MemoryStoreSpec:
        """Return the spec of the store, as an agent with `memory=name` opens it."""
        if self.path is not None:
            return MemoryStoreSpec(options={"path": str(self.path)})
        if self._is_configured():
            return MemoryStoreSpec.from_config(self.name, namespace=self.namespace)
        return MemoryStoreSpec(namespace=self.namespace)

    def directory(self) -> Path | None:
        """Return where a local store is or would be, None for a store of another backend."""
        if self.backend() != "local":
            return None
        path = (self.spec().options or {}).get("path")
        if path is not None:
            return Path(str(path)).expanduser().resolve()
        return local_store_dir(store_id(project_root(Path.cwd()), self.namespace))

    def _is_configured(self) -> bool:
        return any(self.name in layer.config.memory.providers for layer in config.config_layers())


@contextmanager
def opened(choice: StoreChoice, *, to_write: bool = False) -> Generator[MemoryStore]:
    """Open a store, and close it again.

    Args:
        choice: Which one.
        to_write: Make a local store that is not there yet.

    Raises:
        Problem: There is no such store yet, and nothing is to be written.
    """
    if not to_write and choice.directory() is not None:
        existing(choice)
    backend = rath.memory.get(choice.backend())
    store = backend.open(choice.spec())
    try:
        yield store
    finally:
        backend.close(store)


def see_changes(choice: StoreChoice) -> None:
    """Wait until the index of an open local store has all that was changed by hand.

    In a large store that is seen in the background, for which a command ends too early.
    """
    directory = choice.directory()
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


def existing(choice: StoreChoice) -> Path:
    """Return the directory of a local store.

    Raises:
        Problem: There is no such store yet.
        Misuse: It is a store of another backend.
    """
    directory = choice.directory()
    if directory is None:
        raise Misuse(f"{choice.name!r} is no local store; this is for one")
    # Opening any other directory would make a store of it.
    if not any((directory / name).exists() for name in (META_NAME, *MEMORY_SCOPES)):
        raise Problem(f"nothing is remembered here yet: there is no store {directory}")
    return directory


def ask(store: MemoryStore, op: MemoryOp, kind: type[R]) -> R:
    """Return the result of an operation.

    Raises:
        Problem: It failed.
    """
    result = store.dispatch(op)
    if isinstance(result, kind):
        return result
    if isinstance(result, MemoryExecutionFailure):
        raise Problem(f"{result.message} ({result.kind})")
    raise Problem(f"the memory answered with {type(result).__name__}; expected {kind.__name__}")


def as_uri(text: str) -> str:
    """Return a URI of the command line, which may leave the scheme out: "user/memories/x"."""
    return text if is_memory_uri(text) else MEMORY_URI_PREFIX + text.strip("/")
