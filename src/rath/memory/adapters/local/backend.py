"""The `local` memory backend: Markdown files in a directory, found through an index beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from rath._async.runtime import runtime
from rath.errors import MemoryBackendError, UnsupportedMemoryOp
from rath.memory.abc import MemoryBackend, MemoryStoreSpec
from rath.memory.adapters.local import notes
from rath.memory.adapters.local.commits import commit
from rath.memory.adapters.local.extraction.jobs import extraction_of
from rath.memory.adapters.local.extraction.learn import resume
from rath.memory.adapters.local.finding.search import find
from rath.memory.adapters.local.indexing.catalog import shared_catalog
from rath.memory.adapters.local.meta import write_meta
from rath.memory.adapters.local.project import project_root, store_id
from rath.memory.adapters.local.removal.expiry import Expiry, now_in_utc
from rath.memory.adapters.local.removal.forgetting import forget
from rath.memory.adapters.local.removal.sweeping import sweep_and_scrub
from rath.memory.adapters.local.resources import ingest
from rath.memory.adapters.local.store import LocalStore, Operation, in_worker
from rath.memory.adapters.local.vectors.choices import choices_of
from rath.memory.adapters.local.vectors.embedding import embedding_of, names_embedding
from rath.memory.adapters.local.vectors.keeper import StoreVectors
from rath.memory.capabilities import MemoryCapabilities, ScopeModel
from rath.memory.op_types import (
    MemoryOp,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpForget,
    MemoryOpList,
    MemoryOpRead,
    MemoryOpResource,
    MemoryOpSearch,
    MemoryOpTree,
    MemoryOpWrite,
)
from rath.memory.persistence.paths import local_store_dir
from rath.memory.persistence.registry import hold_store
from rath.memory.results import MemoryResult

_OPERATIONS: Mapping[type[MemoryOp], Operation] = {
    MemoryOpWrite: in_worker(notes.write),
    MemoryOpRead: in_worker(notes.read),
    MemoryOpList: in_worker(notes.list_entries),
    MemoryOpTree: in_worker(notes.list_tree),
    MemoryOpFind: find,
    MemoryOpSearch: find,
    MemoryOpResource: in_worker(ingest),
    MemoryOpCommit: commit,
    MemoryOpForget: in_worker(forget),
}
_CHANGES = (MemoryOpWrite, MemoryOpCommit, MemoryOpResource)


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

    async def aattach(self, handle: str, spec: MemoryStoreSpec | None) -> LocalStore:
        return await runtime().call_in_worker(
            lambda: self._tidied(_open_directory(Path(handle), {}))
        )

    async def aclose(self, native: LocalStore) -> None:
        if native.extraction is not None:
            await native.extraction.jobs.aclose()
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
    given = {name: value for name, value in providers.items() if isinstance(value, str)}
    extraction, embedding = extraction_of(options), embedding_of(options)
    choices = choices_of(options, has_embedding=names_embedding(options))
    path = options.get("path")
    if path is not None:
        opened = _open_directory(Path(path).expanduser(), given)
    else:
        root = project_root(Path.cwd())
        directory = local_store_dir(store_id(root, spec.namespace))
        opened = _open_directory(
            directory, {**given, "project_root": str(root), "namespace": spec.namespace}
        )
    vectors = None
    if embedding is not None and choices.mode != "bm25":
        vectors = StoreVectors(opened.root, opened.catalog, embedding, choices=choices)
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
        write_meta(root, about)
        opened = LocalStore(root, shared_catalog(root), use)
        undo.pop_all()
    return opened


def _close(store: LocalStore) -> None:
    try:
        store.pace.finish()
        sweep_and_scrub(store)
        store.catalog.close()
        if store.root.is_dir():
            write_meta(store.root)
    except OSError as exc:
        raise MemoryBackendError(
            f"the memory store {store.root} did not close well: {exc}"
        ) from exc
    finally:
        if store.use is not None:
            store.use.end()
