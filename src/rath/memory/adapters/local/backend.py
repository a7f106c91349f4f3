"""The `local` memory backend: Markdown files in a directory, found through an index beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from rath._async.runtime import runtime
from rath._core.files import atomic_write_json
from rath.errors import MemoryBackendError, UnsupportedMemoryOp
from rath.memory import op_types as ops
from rath.memory.abc import MemoryBackend, MemoryStore, MemoryStoreSpec
from rath.memory.adapters.local import notes
from rath.memory.adapters.local.catalog import shared_catalog
from rath.memory.adapters.local.embedding import (
    EmbeddingWorker,
    choices_of,
    embedding_of,
    names_embedding,
)
from rath.memory.adapters.local.extraction import commit, extraction_of, resume
from rath.memory.adapters.local.files import read_file
from rath.memory.adapters.local.forgetting import forget, sweep_and_scrub
from rath.memory.adapters.local.layout import META_NAME, logger, project_root, store_id
from rath.memory.adapters.local.search import find
from rath.memory.adapters.local.store import Expiry, LocalStore, Operation, in_worker, now_in_utc
from rath.memory.capabilities import MemoryCapabilities, ScopeModel
from rath.memory.op_types import MemoryOp
from rath.memory.persistence.paths import local_store_dir
from rath.memory.persistence.registry import hold_store
from rath.memory.results import MemoryResult

META_SCHEMA_VERSION = 1

_MAX_META_BYTES = 1_048_576
_OPENING_COUNTS_AFTER = timedelta(hours=1)
"""Opening a store is recorded if the last use is longer ago; closing always is."""

_OPERATIONS: Mapping[type[MemoryOp], Operation] = {
    ops.MemoryOpWrite: in_worker(notes.write),
    ops.MemoryOpRead: in_worker(notes.read),
    ops.MemoryOpList: in_worker(notes.list_entries),
    ops.MemoryOpTree: in_worker(notes.list_entries),
    ops.MemoryOpFind: find,
    ops.MemoryOpSearch: find,
    ops.MemoryOpResource: in_worker(notes.ingest),
    ops.MemoryOpCommit: commit,
    ops.MemoryOpForget: in_worker(forget),
}
_CHANGES = (ops.MemoryOpWrite, ops.MemoryOpCommit, ops.MemoryOpResource)


class LocalMemoryBackend(MemoryBackend):
    """Keeps notes as Markdown files, which may be read and edited by hand.

    Without `options.path` there is one store for each project (and each `namespace` of it), so
    that the next run recalls what this one learned; `project_root` says what a project is.

    Args:
        clock: Tells the time, by which notes expire; it must have a zone.
    """

    name = "local"

    def __init__(self, *, clock: Callable[[], datetime] = now_in_utc) -> None:
        self._clock = clock

    @classmethod
    def capabilities(cls) -> MemoryCapabilities:
        return MemoryCapabilities(
            scope_model=ScopeModel.HYBRID,
            supports_write=True,
            supports_read=True,
            supports_list=True,
            supports_tree=True,
            supports_vector_search=True,
            supports_intent_search=False,
            supports_resource_ingest=True,
            supports_session_commit=True,
            supports_l0_l1_l2=False,
            supports_forget=True,
            supports_namespaces=True,
        )

    @classmethod
    def supported_ops(cls) -> frozenset[type[MemoryOp]]:
        return frozenset(_OPERATIONS)

    async def aopen(self, spec: MemoryStoreSpec | None) -> LocalStore:
        opened = await runtime().call_in_worker(
            lambda: self._tidied(_open(spec or MemoryStoreSpec()))
        )
        if opened.extraction is not None:
            resume(opened, opened.extraction)
        return opened

    def portable_spec(self, store: MemoryStore) -> MemoryStoreSpec | None:
        """Return its spec with its directory: the project of another process is another one."""
        spec = store.spec or MemoryStoreSpec()
        if not store.handle or "path" in (spec.options or {}):
            return store.spec
        return replace(spec, options={**(spec.options or {}), "path": store.handle})

    async def aattach(self, handle: str, spec: MemoryStoreSpec | None) -> LocalStore:
        return await runtime().call_in_worker(
            lambda: self._tidied(_open_directory(Path(handle), {}))
        )

    async def aclose(self, native: LocalStore) -> None:
        if native.extraction is not None:
            await native.extraction.aclose()
        if native.vectors is not None:
            await native.vectors.aclose()
        await runtime().call_in_worker(lambda: _close(native))

    async def adispatch(self, native: LocalStore, op: MemoryOp) -> MemoryResult:
        operation = _OPERATIONS.get(type(op))
        if operation is None:
            raise UnsupportedMemoryOp(type(op), self.name)
        if native.use is not None:
            native.use.touch()
        result = await operation(native, op)
        if native.vectors is not None and isinstance(op, _CHANGES):
            await native.vectors.achanged(wait=op.wait, timeout=op.timeout_seconds)
        return result

    def _tidied(self, opened: LocalStore) -> LocalStore:
        return sweep_and_scrub(replace(opened, expiry=Expiry(self._clock)))


def _open(spec: MemoryStoreSpec) -> LocalStore:
    options = spec.options or {}
    providers = {
        "embedding_provider": options.get("embedding_provider"),
        "vlm_provider": options.get("chat_provider"),
    }
    names = {name: value for name, value in providers.items() if isinstance(value, str)}
    extraction, embedding = extraction_of(options), embedding_of(options)
    choices = choices_of(options, has_embedding=names_embedding(options))
    path = options.get("path")
    if path is not None:
        opened = _open_directory(Path(path).expanduser(), names)
    else:
        root = project_root(Path.cwd())
        directory = local_store_dir(store_id(root, spec.namespace))
        opened = _open_directory(
            directory, {**names, "project_root": str(root), "namespace": spec.namespace}
        )
    vectors = None
    if embedding is not None and choices.mode != "bm25":
        vectors = EmbeddingWorker(opened.root, opened.catalog, embedding, choices=choices)
    return replace(opened, extraction=extraction, vectors=vectors)


def _open_directory(directory: Path, about: Mapping[str, object]) -> LocalStore:
    root = directory.resolve()
    use = hold_store(root)
    with ExitStack() as undo:
        if use is not None:
            undo.callback(use.end)
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise MemoryBackendError(
                f"the memory store {str(root)!r} cannot be made: {exc}; expected a directory, "
                "which may be new"
            ) from exc
        write_meta(root, about, is_opening=True)
        opened = LocalStore(root, shared_catalog(root), use)
        undo.pop_all()
    return opened


def _close(store: LocalStore) -> None:
    try:
        store.scrubbing.flush()
        sweep_and_scrub(store)
        store.catalog.close()
        if store.root.is_dir():
            write_meta(store.root)
    except OSError as exc:
        raise MemoryBackendError(
            f"the memory store {store.root} did not close well: {exc}; look after the disk, "
            "and where notes are not found make its index anew with `rath memory rebuild`"
        ) from exc
    finally:
        if store.use is not None:
            store.use.end()


def write_meta(
    root: Path, changes: Mapping[str, object] | None = None, *, is_opening: bool = False
) -> None:
    """Record in `meta.json` that the store is in use now; creates the file, keeps unknown keys.

    A store that cannot be written to can still be read, so that is only logged.

    Args:
        root: Directory of the store.
        changes: Further keys.
        is_opening: Leave out to write only that it is in use once more since a moment ago: waiting
            for the disk is most of the time that opening takes.

    Raises:
        MemoryBackendError: A newer version of rath has written the store.
    """
    now = datetime.now(UTC)
    old: Mapping[str, object] = {}
    with suppress(OSError, ValueError, RecursionError):
        found = read_file(root / META_NAME, _MAX_META_BYTES, follow=True)
        payload: object = json.loads(b"" if found is None else found[0])
        old = cast("dict[str, object]", payload) if isinstance(payload, dict) else {}
    version = old.get("schema_version", META_SCHEMA_VERSION)
    if not isinstance(version, int) or version > META_SCHEMA_VERSION:
        raise MemoryBackendError(
            f"the memory store {root} has schema version {version!r}, and this version of rath "
            f"reads up to {META_SCHEMA_VERSION}; install a newer one"
        )
    first = {
        "schema_version": META_SCHEMA_VERSION,
        "created_at": now.isoformat(),
        "last_used_at": now.isoformat(),
        "embedding_provider": None,
        "vlm_provider": None,
    }
    new = {**first, **old, **(changes or {})}
    if is_opening and new == old:
        with suppress(TypeError, ValueError):
            since = now - datetime.fromisoformat(cast("str", old["last_used_at"]))
            if timedelta(0) <= since < _OPENING_COUNTS_AFTER:
                return
    try:
        atomic_write_json(root / META_NAME, {**new, "last_used_at": now.isoformat()})
    except OSError as exc:
        logger.warning("the memory store %s cannot be written to: %s", root, exc)
